"""The config of a run that starts from something: from its own past, or from a checkpoint that brings its model."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from roundround.config.build import literal, plain
from roundround.config.recorded import as_dict, flat, give_theta, overridden, own_config
from roundround.config.verbs import HOW, WHERE, is_below, verb_named
from roundround.support.errors import UserError

OF_THE_COMMAND = {"run", "resume", "outputs", "trust"}  # never taken from another run's config
OF_THE_WEIGHTS = {"model", "tokenizer", "pattern", "qk_norm", "gate"}
NOT_IN_WEIGHTS = {"model.train_length", "model.initializer_range"}  # may be given beside init=


def config_of_run(
    cfg: DictConfig,
    manifest: dict[str, Any],
    directory: Path,
    overrides: list[str],
    *,
    verb: str,
    also_free: Collection[str] = (),
) -> DictConfig:
    """The config of the run in `directory`, with what the command line gives of the keys that change no result.

    also_free: further keys that may be given. Raises UserError where the run is of another verb, and naming every other
    parameter that the command line changes.
    """
    if manifest["verb"] != verb:
        raise UserError(f"{directory} is a run of {manifest['verb']}, and this takes one of {verb}")
    free = {*verb_named(verb).keys_of(HOW, WHERE), *also_free}
    own = own_config(manifest, directory, trust=cfg.trust)
    keys = overridden(overrides)
    everything = "experiment" in keys
    give_theta(cfg, OmegaConf.select(own, "pe.theta"))
    before, after = flat(as_dict(own)), flat(as_dict(cfg))
    changed = [
        f"{key} ({before.get(key)} -> {after.get(key)})"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
        and (everything or any(key == k or key.startswith(k + ".") for k in keys))
        and not is_below(key, free)
    ]
    if changed:
        raise UserError(f"a resumed run keeps its settings; leave out what changes: {', '.join(changed)}")
    for name in free:
        whole = everything or name in OF_THE_COMMAND
        for key in [name] if whole else [k for k in keys if k == name or k.startswith(name + ".")]:
            OmegaConf.update(own, key, literal(plain(OmegaConf.select(cfg, key))), merge=False)
    return own


def refuse_own_model(overrides: list[str]) -> None:
    """Raises UserError where the command line gives the model or the tokenizer beside `init`, which brings both."""
    keys = overridden(overrides)
    brought = sorted(k for k in keys if k.partition(".")[0] in OF_THE_WEIGHTS and k not in NOT_IN_WEIGHTS)
    if brought:
        raise UserError(f"init= brings the model and the tokenizer; leave out {', '.join(brought)}")


def config_from_checkpoint(
    cfg: DictConfig,
    overrides: list[str],
    choices: dict[str, str | None],
    brought: dict[str, Any],
    names: dict[str, str | None],
) -> tuple[DictConfig, dict[str, str | None]]:
    """The config with the nodes that a checkpoint brings, and with their names among the choices.

    Its encoding and its normaliser give way to those of the command line; `pe.theta` null is the checkpoint's.
    """
    keys = overridden(overrides)
    given = {key.partition(".")[0] for key in keys} | ({"pe"} if "experiment" in keys else set())
    kept = {part for part in ("pe", "softmax") if part in given and part in brought}
    typed = {key.partition(".")[2]: OmegaConf.select(cfg, key) for key in NOT_IN_WEIGHTS & keys}
    nodes = {key: value for key, value in brought.items() if key not in kept} | {"model": {**brought["model"], **typed}}
    if "pe" in kept and brought["pe"] is not None and "theta" in brought["pe"]:
        give_theta(cfg, brought["pe"]["theta"])
    with open_dict(cfg):
        for key, node in nodes.items():
            OmegaConf.update(cfg, key, literal(node), merge=False)
    return cfg, {**choices, **{key: name for key, name in names.items() if key not in kept}}
