"""What `roundround check` found: a table with a row for each kind of layer, and a line for each difference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rich.table import Table

from roundround.asking.applied_rotations import AS_DECLARED, NOT_COMPARED, LayerReport, named
from roundround.probing.conformance import DIFFERS, HIDDEN, Held
from roundround.support.console import print_status, print_table
from roundround.trained.patterns import runs_of

EXPLAINED = (
    "measured on single tokens at known positions; pairs: how many rotate of all; "
    "wavelength: tokens in which the slowest of them turns once"
)


def alike(reports: Sequence[LayerReport]) -> list[list[LayerReport]]:
    """The layers in groups that perform the same and differ from their config by the same."""
    groups: dict[tuple[Any, ...], list[LayerReport]] = {}
    for report in reports:
        groups.setdefault((*row(report), report.not_compared, *report.differences()), []).append(report)
    return list(groups.values())


def row(report: LayerReport) -> tuple[str, ...]:
    """What a layer performs, in cells."""
    turning, seen, scheme = report.turning, report.seen, report.scheme
    rotates, least = bool(turning.n_rotated), "at least " if report.n_slow else ""
    norm = "" if seen.norm is None else f"{seen.norm}{' after' if seen.norm_after else ''}"
    remarks = ["bias on logits"] * seen.biased + [f"queries grow by {seen.growth:.3g}"] * (abs(seen.growth - 1) > 1e-2)
    return (
        "; ".join([named(scheme), *remarks]),
        turning.pairing or "",
        f"{least}{turning.n_rotated} of {turning.n_pairs}",
        f"{least}{float(f'{slowest(report):.5g}'):,.0f}" if rotates else "",  # further digits are rounding
        "" if not rotates else "unknown" if seen.factor is None else f"{seen.factor:.4g}",
        "" if report.window is None else f"{report.window:,}",
        "" if report.chunk is None else f"{report.chunk:,}",
        norm,
        f"{seen.scale:.4g}",
    )


def slowest(report: LayerReport) -> float:
    """Tokens in which the slowest pair that rotates turns once."""
    f_P = report.turning.frequencies_P.abs()
    return 2 * math.pi / float(f_P[f_P > 0].min())


def records(reports: Sequence[LayerReport], unread: Sequence[str]) -> list[dict[str, Any]]:
    """Each layer's numbers and differences; before them, the keys of the config that nothing reads, if any."""
    keys = [{"metric": "unread_keys", "value": len(unread), "keys": ", ".join(unread)}] if unread else []
    return keys + [
        {
            "metric": "differences",
            "value": None if report.verdict == NOT_COMPARED else len(report.differences()),
            "verdict": report.verdict,
            "layer": report.number,
            "scheme": report.scheme.name,
            "base": report.scheme.base,
            "factor": report.scheme.factor,
            "attention_factor": report.seen.factor if report.turning.n_rotated else None,
            "pairing": report.turning.pairing,
            "rotated_pairs": report.turning.n_rotated,
            "slow_pairs": report.n_slow,
            "pairs": report.turning.n_pairs,
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
    """A column for each kind of layer, and the differences. where: what declares, such as config.json."""
    names = (
        "performs",
        "pairing",
        "pairs",
        "wavelength",
        "attention factor",
        "window",
        "chunk",
        "norm",
        "scale",
    )
    groups = alike(reports)
    table = Table("", title=f"{name}: what its layers perform", caption=EXPLAINED)
    for group in groups:
        table.add_column(runs_of([report.number for report in group]), overflow="fold")
    for of_all in zip(names, *(row(group[0]) for group in groups), strict=True):
        if any(of_all[1:]):
            table.add_row(*of_all)
    print_table(table)
    for group in groups:
        remarks = [f"not compared: {group[0].not_compared}"] if group[0].not_compared else []
        for remark in (*group[0].differences(), *remarks):
            print_status(f"{runs_of([r.number for r in group])}: {remark}")
    if all(report.verdict == AS_DECLARED for report in reports):
        print_status(f"all as {where} declares" + (" in the keys that are read" if unread else ""))
    if unread:
        print_status(f"{where} has keys about positions that nothing reads: {', '.join(unread)}")


def held_records(held: Sequence[Held]) -> list[dict[str, Any]]:
    return [
        {
            "metric": "difference",
            "tensor": one.name,
            "value": one.difference,
            "share_of_rounding": one.share,
            "verdict": one.verdict,
            "hidden_by_rounding": one.n_hidden,
        }
        for one in held
    ]


def show_held(held: Sequence[Held], name: str) -> None:
    """A row for each tensor that was compared."""
    table = Table("tensor", "largest difference", "share of rounding", "", title=f"held against {name}")
    for one in held:
        words = {DIFFERS: DIFFERS.upper(), HIDDEN: f"{HIDDEN} in {one.n_hidden:,} values"}.get(one.verdict, one.verdict)
        table.add_row(one.name, f"{one.difference:.3g}", f"{one.share:.3g}", words)
    print_table(table)
