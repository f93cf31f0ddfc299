"""`roundround check`: the rotations that a loaded model applies, and test vectors for implementations of an encoding.

Tested by tests/asking/test_applied_rotations.py.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from rich.table import Table
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from roundround.asking.applied_rotations import (
    AS_DECLARED,
    NOT_COMPARED,
    LayerReport,
    check_pretrained,
    check_run,
    named,
    unread_keys,
)
from roundround.asking.fitted_rotations import fitted_rotations
from roundround.config.build import build, checked
from roundround.config.recorded import give_theta, overridden
from roundround.data.corpora import Corpus
from roundround.distributed.device import describe_device, pick_device
from roundround.kernels.keys import AttentionShape
from roundround.pe.base import PositionalEncoding
from roundround.pe.rotary import RotaryEncoding
from roundround.probing import conformance
from roundround.probing.conformance import DIFFERS, HIDDEN
from roundround.records.directories import find_run
from roundround.records.opening import opened_run
from roundround.records.run import Invocation
from roundround.support import __version__
from roundround.support.console import print_status, print_table
from roundround.support.errors import NoVerdict, Refuted, UserError, one_line
from roundround.support.files import home_expanded, write_atomically
from roundround.trained.models import TrainedRun, refuse_other_kinds
from roundround.trained.patterns import runs_of, without_attention
from roundround.verbs.check import CheckConfig

OF_THE_VECTORS = ("n_heads", "n_key_heads", "head_dim", "positions", "seed")
ROWS = ("rotation", "pairing", "pairs", "wavelength", "attention factor", "window", "chunk", "norm", "scale")


def check(cfg: DictConfig, invocation: Invocation) -> None:
    """Check a model's layers against its config, write an encoding's test vectors to a file, or check such a file."""
    config = checked(CheckConfig, cfg)
    [given] = config.given if config.against is None else ["against"]
    own = {
        "run": ["checkpoint", "device", "trust"],
        "model": ["device"],
        "pe": ["train_length", *OF_THE_VECTORS],
        "against": ["train_length"],  # the file has the vectors
    }
    if unread := sorted(
        {name for names in own.values() for name in names} & overridden(invocation.overrides) - {*own.get(given, [])}
    ):
        raise UserError(f"{unread[0]}= has no effect here, because {given}= does not use it; leave it out")
    if config.pe is not None:
        give_theta(cfg)
        config = checked(CheckConfig, cfg)
        if config.to is not None:
            return write_vectors(cfg, config, invocation)
        return hold_against(cfg, config, invocation)
    if config.suite:
        from roundround.verbs.check import suite

        act = suite.judge_all if config.to is None else suite.write
        return act(cfg, config, invocation)
    device = pick_device(config.device)
    if config.model is not None:
        from roundround.hf.checkpoint import read_json
        from roundround.hf.load import Pretrained

        refuse_other_kinds(config.model)
        source = build(config.model, Pretrained)
        model, tokenizer = source.load(device)
        if config.weights:
            return show_fitted(cfg, config, invocation, model, tokenizer)
        from roundround.hf.patching.attention import other_layers

        reports, run_of, unread = check_pretrained(model), None, unread_keys(read_json(source.config_file()), model)
        others, n_chosen = other_layers(model), getattr(model.config.get_text_config(), "index_topk", None)
        name, where = source.path.rstrip("/").rpartition("/")[2], "config.json"
    else:
        assert config.run is not None
        directory = find_run(config.run, config.outputs, "train", done=True)
        trained = TrainedRun(directory, trust=config.trust)
        reports, run_of, unread = check_run(trained, config.checkpoint, device), str(directory), []
        others, n_chosen = dict[int, str](), None
        name, where = "/".join(directory.parts[-2:]), "run.json"
    with opened_run(invocation, cfg) as run:
        run.note(choices=invocation.given, device=describe_device(device), run=run_of, facts={"model": name})
        found = [{"metric": "kind_of_layer", "layer": layer, "value": kind} for layer, kind in others.items()]
        found += [] if n_chosen is None else [{"metric": "keys_of_indexer", "value": n_chosen}]
        run.results(records(reports, unread) + found, differences=sum(len(one.differences()) for one in reports))
        if run.writes:
            show(reports, unread, name, where)
            if others:
                print_status(without_attention(others))
            if n_chosen is not None:
                print_status(f"an indexer chooses at most {n_chosen:,} keys for each query; its choice is not checked")
    for verdict, error, words in (
        (DIFFERS, Refuted, "differ from"),
        (NOT_COMPARED, NoVerdict, "could not be compared with"),
    ):
        if n := sum(one.verdict == verdict for one in reports):
            raise error(f"{n} of {len(reports)} layers {words} {where}")


def show_fitted(cfg: DictConfig, config: CheckConfig, invocation: Invocation, model: Any, tokenizer: Any) -> None:
    """Show which rotation gives a model's weights the lowest loss on text."""
    assert config.data is not None
    corpus = build(config.data, Corpus)  # type: ignore[type-abstract]
    ids = tokenizer("\n\n".join(text for _, text in corpus.documents())).input_ids
    with opened_run(invocation, cfg) as run:
        run.note(choices=invocation.given, device=describe_device(model.device), facts={"model": type(model).__name__})
        found = fitted_rotations(model, ids, first=tokenizer.bos_token_id)
        run.results(found)
        if run.writes:
            table = Table("layers", "declared", "best", "declared costs, nats per token", "", title="loss on text")
            for one in found:
                table.add_row(
                    *(one[key] for key in ("kind", "declared", "best")),
                    f"{one['value']:.4f} ± {one['half_width']:.4f}",
                    one["verdict"],
                )
            print_table(table)
            for kind, alike in ((one["kind"], one["alike"] or "no other guess that was asked") for one in found):
                for guess in alike.split("; "):
                    print_status(f"{kind}: no clear difference from the best: {guess}")
    if wrong := [one["kind"] for one in found if one["verdict"] == DIFFERS]:
        raise Refuted(f"the weights contradict config.json: {', '.join(wrong)}")


# -- a model's layers, as a table with a column for each kind of layer, and a line for each difference


def row(report: LayerReport) -> tuple[str, ...]:
    """The measurements of a layer as cells of a table; ROWS has the names of these measurements."""
    turning, seen = report.turning, report.seen
    rotates, least = bool(turning.n_rotated), "at least " if report.n_slow else ""
    first, last = (int(end) for end in turning.channels_P2.aminmax())
    where = f", channels {first} to {last}" if rotates and first else ""  # of latent attention the last
    remarks = ["bias on logits"] if seen.biased else []
    if abs(seen.growth - 1) > 1e-2:
        remarks.append(f"queries grow by {seen.growth:.3g}")
    return (
        "; ".join([named(report.scheme), *remarks]),
        turning.pairing or "",
        f"{least}{turning.n_rotated} of {turning.n_pairs}{where}",
        f"{least}{float(f'{slowest(report):.5g}'):,.0f}" if rotates else "",  # further digits are rounding
        "" if not rotates else "unknown" if seen.factor is None else f"{seen.factor:.4g}",
        "" if report.window is None else f"{report.window:,}",
        "" if report.chunk is None else f"{report.chunk:,}",
        "" if seen.norm is None else f"{seen.norm}{' after' if seen.norm_after else ''}",
        f"{seen.scale:.4g}",
    )


def slowest(report: LayerReport) -> float:
    """The wavelength in tokens of the slowest pair that rotates."""
    f_P = report.turning.frequencies_P.abs()
    return 2 * math.pi / float(f_P[f_P > 0].min())


def records(reports: Sequence[LayerReport], unread: Sequence[str]) -> list[dict[str, Any]]:
    """A record for each layer with its numbers and differences.

    If the config has keys that no code of the model reads, the first record lists these keys.
    """
    keys = [{"metric": "unread_keys", "value": len(unread), "keys": ", ".join(unread)}] if unread else []
    return keys + [
        {
            "metric": "differences",
            "value": None if report.verdict == NOT_COMPARED else len(report.differences()),
            "verdict": report.verdict,
            "layer": report.declared.number,
            "scheme": report.scheme.name,
            "base": report.scheme.base,
            "factor": report.scheme.factor,
            "attention_factor": report.seen.factor if report.turning.n_rotated else None,
            "pairing": report.turning.pairing,
            "rotated_pairs": report.turning.n_rotated,
            "slow_pairs": report.n_slow,
            "pairs": report.turning.n_pairs,
            "first_channel": int(report.turning.channels_P2.min()) if report.turning.n_rotated else None,
            "slowest_wavelength": slowest(report) if report.turning.n_rotated else None,
            "window": report.window,
            "chunk": report.chunk,
            "query_norm": report.seen.norm,
            "query_norm_after_rotation": report.seen.norm_after,
            "logit_scale": report.seen.scale,
            "declared_scheme": report.declared.scheme.name,
            "declared_base": report.declared.scheme.base,
            "declared_factor": report.declared.scheme.factor,
            "difference": "; ".join(report.differences()),
            "not_compared": report.not_compared,
        }
        for report in reports
    ]


def show(reports: Sequence[LayerReport], unread: Sequence[str], name: str, where: str) -> None:
    """Print a table with a column for each group of equal layers; then the layers' differences from the config.

    where: the name of the file that declares the layers, such as config.json.
    """
    groups: dict[tuple[Any, ...], list[int]] = {}  # {column and remarks: numbers of the layers}
    for report in reports:
        remarks = [f"not compared: {report.not_compared}"] if report.not_compared else []
        groups.setdefault((row(report), *report.differences(), *remarks), []).append(report.declared.number)
    table = Table(
        "",
        title=f"{name}: what its layers do",
        caption="measured on single tokens at known positions; pairs: how many of all pairs rotate; wavelength: tokens "
        "in which the slowest pair turns once",
    )
    for numbers in groups.values():
        table.add_column(runs_of(numbers), overflow="fold")
    for of_all in zip(ROWS, *(cells for cells, *_ in groups), strict=True):
        if any(of_all[1:]):
            table.add_row(*of_all)
    print_table(table)
    for (_, *remarks), numbers in groups.items():
        for remark in remarks:
            print_status(f"{runs_of(numbers)}: {remark}")
    if all(report.verdict == AS_DECLARED for report in reports):
        print_status(f"all layers do what {where} declares" + (" in the keys that are read" if unread else ""))
    if unread:
        print_status(f"{where} has keys about positions that no code of the model reads: {', '.join(unread)}")


# -- vectors of conformance


def encoding_of(config: CheckConfig, n_heads: int, n_key_heads: int, head_dim: int) -> PositionalEncoding:
    """The encoding of `pe=` with these sizes.

    Raises UserError if the encoding depends on more than queries, keys and positions.
    """
    shape = AttentionShape(
        n_heads=n_heads,
        n_key_heads=n_key_heads,
        head_dim=head_dim,
        d_model=n_heads * head_dim,
        layer=0,
        train_length=config.train_length,
    )
    assert config.pe is not None, "this is only called with pe="
    encoding = build(config.pe, PositionalEncoding, shape)
    conformance.check_conformable(encoding)
    return encoding


def write_vectors(cfg: DictConfig, config: CheckConfig, invocation: Invocation) -> None:
    """Write the file of `to=`: the tensors and, as metadata, the settings that made them."""
    assert config.to is not None
    path = Path(os.path.abspath(home_expanded(config.to, "to")))
    if path.exists() or not path.parent.is_dir():
        raise UserError(f"to={config.to} exists already, or its folder does not exist; give another name")
    encoding = encoding_of(config, config.n_heads, config.n_key_heads, config.head_dim)
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
    """Compare the tensors in the file `against=` with the tensors that the encoding gives.

    Raises Refuted if a tensor differs by more than rounding, and NoVerdict if rounding is so large that it could hide a
    difference.
    """
    assert config.against is not None
    path = home_expanded(config.against, "against")
    theirs, about = read_vectors(path)
    encoding = encoding_of(config, len(theirs["q"]), len(theirs["k"]), theirs["q"].shape[-1])
    ours = conformance.made(encoding, theirs)
    for name in theirs.keys() & {*conformance.MADE}:
        own = list(ours[name].shape) if name in ours else "none"
        if list(theirs[name].shape) != own:
            gives = f"pe={invocation.given.get('pe')} gives {own}"
            raise UserError(f"{path}: {name} has the shape {list(theirs[name].shape)}, and {gives}")
    held = conformance.held_against(encoding, theirs)
    differing, hidden = ([one.name for one in held if one.verdict == verdict] for verdict in (DIFFERS, HIDDEN))
    with opened_run(invocation, cfg) as run:
        run.note(choices=invocation.given, device=describe_device(torch.device("cpu")), against=str(path))
        run.results(
            [
                {
                    "metric": "difference",
                    "tensor": one.name,
                    "value": one.difference,
                    "share_of_rounding": one.share,
                    "verdict": one.verdict,
                    "hidden_by_rounding": one.n_hidden,
                }
                for one in held
            ],
            differing=len(differing),
        )
        if run.writes:
            title = f"compared with {about.get('made_by', path.name)}"
            table = Table("tensor", "largest difference", "share of rounding", "", title=title)
            for one in held:
                words = f"{HIDDEN} in {one.n_hidden:,} values" if one.verdict == HIDDEN else one.verdict
                table.add_row(one.name, f"{one.difference:.3g}", f"{one.share:.3g}", words)
            print_table(table)
    if differing:
        raise Refuted(f"{', '.join(differing)} of {path} differ by more than rounding")
    if hidden:
        raise NoVerdict(
            f"no verdict on {', '.join(hidden)} of {path}: rounding can be as large as some of the values; "
            "make the file with smaller positions"
        )


def read_vectors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a file of vectors, and the file's metadata.

    Raises UserError if the file cannot be read, or if it lacks an input (positions, q, k) or has no result to compare.
    """
    try:
        with safe_open(path, "pt") as opened:
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
            about = opened.metadata() or {}
    except (OSError, SafetensorError) as error:
        raise UserError(f"against={path} cannot be read: {one_line(error)}") from error
    if not {*conformance.GIVEN} <= tensors.keys() or tensors.keys().isdisjoint(conformance.MADE):
        words = f"{', '.join(conformance.GIVEN)} and one of {', '.join(conformance.MADE)}"
        raise UserError(f"{path} must contain {words}; roundround check pe=... to=FILE writes a file of this form")
    converted = {"positions": tensors["positions"].long(), "q": tensors["q"].float(), "k": tensors["k"].float()}
    return tensors | converted, about
