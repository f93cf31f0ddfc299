"""`roundround check`: the rotations that a loaded model performs, and vectors of conformance of an encoding.

Tested by tests/asking/test_applied_rotations.py.
"""

from __future__ import annotations

import json
import os
from itertools import pairwise
from pathlib import Path

import torch
from omegaconf import DictConfig, OmegaConf
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from roundround.asking.applied_rotations import NOT_COMPARED, check_pretrained, check_run, unread_keys
from roundround.config.build import build, checked
from roundround.config.recorded import give_theta, overridden
from roundround.distributed.device import check_fits, describe_device, pick_device
from roundround.kernels.keys import AttentionShape
from roundround.pe.base import PositionalEncoding
from roundround.pe.rotary import RotaryEncoding
from roundround.probing import conformance
from roundround.probing.conformance import AGREES, DIFFERS, HIDDEN
from roundround.records.directories import find_run
from roundround.records.opening import opened_run
from roundround.records.run import Invocation
from roundround.report import check as report
from roundround.support import __version__
from roundround.support.console import print_status
from roundround.support.errors import NoVerdict, Refuted, UserError, one_line
from roundround.support.files import home_expanded, write_atomically
from roundround.trained.models import TrainedRun, refuse_other_kinds
from roundround.verbs.check import FARTHEST, CheckConfig

OF_THE_VECTORS = ("n_heads", "n_key_heads", "head_dim", "positions", "seed")


def check(cfg: DictConfig, invocation: Invocation) -> None:
    """A model's layers beside their config; or an encoding's vectors, written or compared."""
    config = checked(CheckConfig, cfg)
    refuse_unread(config, overridden(invocation.overrides))
    if config.pe is not None:
        give_theta(cfg)
        config = checked(CheckConfig, cfg)
        write_vectors(cfg, config, invocation) if config.to is not None else hold_against(cfg, config, invocation)
        return
    device = pick_device(config.device)
    if config.model is not None:
        from roundround.hf.checkpoint import read_json
        from roundround.hf.load import Pretrained

        refuse_other_kinds(config.model)
        source = build(config.model, Pretrained)
        model, _ = source.load(device)
        reports, run_of, unread = check_pretrained(model), None, unread_keys(read_json(source.config_file()), model)
        name, where = source.path.rstrip("/").rpartition("/")[2], "config.json"
    else:
        assert config.run is not None
        directory = find_run(config.run, config.outputs, "train", done=True)
        trained = TrainedRun(directory, trust=config.trust)
        reports, run_of, unread = check_run(trained, config.checkpoint, device), str(directory), []
        name, where = "/".join(directory.parts[-2:]), "run.json"
    with opened_run(invocation, cfg) as run:
        run.note(choices=invocation.given, device=describe_device(device), run=run_of, facts={"model": name})
        run.results(report.records(reports, unread), differences=sum(len(one.differences()) for one in reports))
        if run.writes:
            report.show(reports, unread, name, where)
    for verdict, error, words in (
        (DIFFERS, Refuted, "differ from"),
        (NOT_COMPARED, NoVerdict, "could not be compared with"),
    ):
        if n := sum(one.verdict == verdict for one in reports):
            raise error(f"{n} of {len(reports)} layers {words} {where}")


def refuse_unread(config: CheckConfig, keys: set[str]) -> None:
    """UserError for a value of the command line that nothing would read."""
    read = {"run": ["checkpoint"], "model": [], "pe": ["train_length", *OF_THE_VECTORS]}
    if config.against is not None:
        read["pe"] = ["train_length"]  # the file has the vectors
    [given] = [name for name in ("run", "model", "pe") if getattr(config, name) is not None]
    unread = sorted({"checkpoint", "train_length", *OF_THE_VECTORS} & keys - set(read[given]))
    if unread:
        why = "the file of against= brings them" if config.against is not None else f"{given}= leaves it unread"
        raise UserError(f"{unread[0]}= says nothing here: {why}; leave it out")


# -- vectors of conformance


def encoding_of(
    config: CheckConfig, n_heads: int, n_key_heads: int, head_dim: int, n_positions: int
) -> PositionalEncoding:
    """The encoding of `pe=` in these sizes.

    UserError where queries and keys do not show it, or memory cannot hold them rotated, copied and multiplied.
    """
    n_bytes = 32 * n_heads * n_positions * (head_dim + n_positions)
    check_fits(n_bytes, torch.device("cpu"), "a file of these sizes", "give fewer heads, channels or positions")
    shape = AttentionShape(
        n_heads=n_heads,
        n_key_heads=n_key_heads,
        head_dim=head_dim,
        d_model=n_heads * head_dim,
        layer=0,
        train_length=config.train_length,
    )
    assert config.pe is not None, "it has been asked for"
    encoding = build(config.pe, PositionalEncoding, shape)
    try:
        conformance.check_conformable(encoding)
    except ValueError as error:
        raise UserError(f"pe: {one_line(error)}") from error
    return encoding


def write_vectors(cfg: DictConfig, config: CheckConfig, invocation: Invocation) -> None:
    """The file of `to=`: tensors, and what made them as its metadata."""
    assert config.to is not None
    path = Path(os.path.abspath(home_expanded(config.to, "to")))
    if path.exists() or not path.parent.is_dir():
        raise UserError(f"to={config.to} is there already, or its folder is not; give another name")
    encoding = encoding_of(config, config.n_heads, config.n_key_heads, config.head_dim, len(config.positions))
    given = conformance.drawn(encoding.shape, config.positions, config.seed)
    tensors = {**given, **conformance.made(encoding, given)}
    about = {
        "format": "roundround vectors 1",
        "made_by": f"roundround {__version__}",
        "pe": str(invocation.given.get("pe")),
        "parameters": json.dumps(OmegaConf.to_container(config.pe, resolve=True)),
        "train_length": str(config.train_length),
        "seed": str(config.seed),
        "pairing": "half-split" if isinstance(encoding, RotaryEncoding) else "",
        "attention_factor": repr(float(encoding.attention_factor)) if isinstance(encoding, RotaryEncoding) else "1.0",
        "logit_scale": repr(encoding.shape.scale),
    }
    with opened_run(invocation, cfg) as run:
        run.note(choices=invocation.given, device=describe_device(torch.device("cpu")), vectors=str(path))
        run.results([{"metric": "tensors", "value": len(tensors)}])
        if run.writes:
            write_atomically(path, save(tensors, metadata=about))
            print_status(f"{path}: {', '.join(f'{name} {list(x.shape)}' for name, x in tensors.items())}")


def hold_against(cfg: DictConfig, config: CheckConfig, invocation: Invocation) -> None:
    """Compare the tensors of a file with ours.

    Refuted where one differs by more than rounding, NoVerdict where rounding hides whether it does.
    """
    assert config.against is not None
    path = home_expanded(config.against, "against")
    theirs, about = read_vectors(path)
    n_heads, n_positions, head_dim = theirs["q"].shape
    encoding = encoding_of(config, n_heads, len(theirs["k"]), head_dim, n_positions)
    ours = conformance.made(encoding, theirs)
    for name in conformance.MADE:
        own = list(ours[name].shape) if name in ours else "none"
        if name in theirs and list(theirs[name].shape) != own:
            shapes = f"{list(theirs[name].shape)}, and pe={invocation.given.get('pe')} gives {own}"
            raise UserError(f"{path}: {name} is {shapes}")
    held = conformance.held_against(encoding, theirs)
    with opened_run(invocation, cfg) as run:
        run.note(choices=invocation.given, device=describe_device(torch.device("cpu")), against=str(path))
        run.results(report.held_records(held), differing=sum(one.verdict == DIFFERS for one in held))
        if run.writes:
            report.show_held(held, about.get("made_by", path.name))
    differing, hidden = ([one.name for one in held if one.verdict == verdict] for verdict in (DIFFERS, HIDDEN))
    if differing:
        why = hint(encoding, theirs, differing)
        raise Refuted(f"{', '.join(differing)} of {path} differ by more than rounding{why}")
    if hidden:
        raise NoVerdict(
            f"{', '.join(hidden)} of {path} cannot be told: some values are no larger than their rounding; give nearer "
            "positions"
        )


def hint(encoding: PositionalEncoding, theirs: dict[str, Tensor], differing: list[str]) -> str:
    """What would make a file agree that differs in what is rotated alone."""
    if not isinstance(encoding, RotaryEncoding) or not set(differing) <= {"q_rotated", "k_rotated", "logits"}:
        return ""
    held = conformance.held_against(encoding, conformance.as_interleaved(theirs, 2 * len(encoding.frequencies())))
    agree = all(one.verdict == AGREES for one in held)
    return "; they agree where channels pair interleaved (2m with 2m + 1)" if agree else ""


def read_vectors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a file and its metadata. UserError where it is none, or has not what the others are made from."""
    try:
        with safe_open(path, "pt") as opened:
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
            about = opened.metadata() or {}
    except (OSError, SafetensorError) as error:
        raise UserError(f"against={path} cannot be read: {one_line(error)}") from error
    lacking = [name for name in conformance.GIVEN if name not in tensors]
    if lacking or not any(name in tensors for name in conformance.MADE):
        words = lacking[0] if lacking else f"one of {', '.join(conformance.MADE)}"
        raise UserError(f"{path} has no {words}; roundround check pe=... to=FILE writes a file of this form")
    positions, q, k = (tensors[name] for name in conformance.GIVEN)
    fits = q.dim() == k.dim() == 3 and q.shape[1:] == k.shape[1:] and q.numel() > 0 < len(k) and not len(q) % len(k)
    ascend = positions.dtype in (torch.int32, torch.int64) and list(positions.shape) == list(q.shape[1:2])
    if not fits or not ascend or any(a >= b for a, b in pairwise([-1, *positions.tolist(), FARTHEST + 1])):
        raise UserError(
            f"{path}: positions {list(positions.shape)} must be whole and ascend, from 0 to {FARTHEST:,}, and q "
            f"{list(q.shape)}, k {list(k.shape)} have heads, positions and channels"
        )
    return {**tensors, "positions": positions.long(), "q": q.float(), "k": k.float()}, about
