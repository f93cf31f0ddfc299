"""What train and eval share: from config nodes to a decoder, and what a run's own config may name."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from roundround.build import build, maker
from roundround.directories import read_manifest
from roundround.errors import UserError
from roundround.model.decoder import Decoder
from roundround.pe.base import PositionalEncoding
from roundround.run import tell
from roundround.softmax.base import AttentionSoftmax, RunsInBlocks


def decoder_of(model: DictConfig, pe: DictConfig, softmax: DictConfig, n_vocab: int) -> Decoder:
    """The decoder that the three nodes describe, freshly initialised from torch's global generator."""
    kind = model.get("kind")
    if kind != "architecture":
        raise UserError(f"model is of kind '{kind}'; this verb takes an architecture: see roundround list model")
    return build(
        model,
        Decoder,
        n_vocab=n_vocab,
        make_encoding=maker(pe, PositionalEncoding),
        make_softmax=maker(softmax, AttentionSoftmax),
    )


def check_buildable(model: DictConfig, pe: DictConfig, softmax: DictConfig) -> None:
    """Raises UserError where the nodes do not fit each other, before minutes go into data; costs no memory."""
    with torch.device("meta"):
        decoder_of(model, pe, softmax, n_vocab=2)


def refuse_foreign(config: DictConfig, *, trust: bool) -> None:
    """Raises UserError where a config read from a run names a class from elsewhere: it would run somebody's code."""
    if trust:
        return
    for key, target in flat(as_dict(config)).items():
        name, _, last = key.rpartition(".")
        if last == "_target_" and not str(target).startswith("roundround.") and target != "lightning.Trainer":
            raise UserError(f"the run's {name} is {target}, which is not roundround's; trust=true runs it all the same")


OF_THE_COMMAND = {"run", "resume", "outputs", "logger", "trust"}  # never taken from another run's config


def config_of_run(
    cfg: DictConfig, directory: Path, overrides: list[str], *, verb: str, free: set[str]
) -> tuple[DictConfig, dict[str, str]]:
    """The config and the choices of the run in `directory`, with the `free` keys that the command line gives.

    Raises UserError where the run is of another verb, and naming every other parameter that the command line changes.
    """
    manifest = read_manifest(directory)
    if manifest["verb"] != verb:
        raise UserError(f"{directory} is a run of {manifest['verb']}, and this takes one of {verb}")
    own = OmegaConf.create(manifest["config"])
    assert isinstance(own, DictConfig)
    refuse_foreign(own, trust=cfg.trust)
    keys = overridden(overrides)
    everything = "experiment" in keys
    before, after = flat(as_dict(own)), flat(as_dict(cfg))
    changed = [
        f"{key} ({before.get(key)} -> {after.get(key)})"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
        and (everything or any(key == k or key.startswith(k + ".") for k in keys))
        and not any(key == name or key.startswith(name + ".") for name in free)
    ]
    if changed:
        raise UserError(f"a run goes on as it was; leave out what changes: {', '.join(changed)}")
    for name in free:
        whole = everything or name in OF_THE_COMMAND
        for key in [name] if whole else [k for k in keys if k == name or k.startswith(name + ".")]:
            OmegaConf.update(own, key, OmegaConf.select(cfg, key), merge=False)
    return own, manifest.get("choices", {})


def overridden(overrides: list[str]) -> set[str]:
    """The dotted keys that overrides of the command line name, groups included."""
    return {override.split("=", 1)[0].lstrip("+~").split("@")[-1].replace("/", ".") for override in overrides}


def flat(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested dicts as one, by dotted keys."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found


@contextmanager
def without_denormals() -> Iterator[None]:
    """Takes numbers below 1.2e-38 for zero, on which a CPU spends up to a hundred times as long.

    Threads inherit it from the one that starts them, so it comes before the first parallel operation.
    """
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


@contextmanager
def told_in_lines() -> Iterator[None]:
    """Shows what the normalisers warn of as lines like all others, each once."""
    told = set()
    with warnings.catch_warnings():
        shown = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *place: Any, **options: Any) -> None:
            if not issubclass(category, RunsInBlocks):
                shown(message, category, *place, **options)
            elif str(message) not in told:
                told.add(str(message))
                tell(str(message))

        warnings.showwarning = show
        warnings.simplefilter("always", RunsInBlocks)
        yield


def as_dict(cfg: DictConfig) -> dict[str, Any]:
    """The resolved config as plain Python."""
    resolved = OmegaConf.to_container(cfg, resolve=True)
    assert isinstance(resolved, dict)
    return {str(key): value for key, value in resolved.items()}


def n_parameters(decoder: Decoder) -> int:
    return sum(parameter.numel() for parameter in decoder.parameters())


def pick_device(name: str) -> torch.device:
    """`auto` is a GPU where there is one. UserError for a device that torch does not know or have."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"device={name} cannot be used: {str(error).splitlines()[0]}") from error
    return device


def memory(device: torch.device) -> int:
    """Bytes of the device; on a CPU what the machine and the control group allow."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[1])
    limit = Path("/sys/fs/cgroup/memory.max")
    allowed = limit.read_text().strip() if limit.exists() else "max"
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(there, int(allowed)) if allowed.isdigit() else there


def describe_device(device: torch.device) -> str:
    """The device in words, for the manifest."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    cpuinfo = Path("/proc/cpuinfo")
    names = (
        [line.split(":")[1].strip() for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        if cpuinfo.exists()
        else []
    )
    return f"{device.type}: {names[0] if names else 'unknown'}, {torch.get_num_threads()} threads"
