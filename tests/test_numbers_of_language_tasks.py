"""The tables of docs/language_tasks.md, from the accuracy of each phenomenon and seed that is stored beside it.

Shapes: S seeds, P phenomena.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from helpers_stored import DOCS, Array, text_of

from roundround.analysis.intervals import half_width
from roundround.analysis.load import rows_of

NAMES = {"rope": "RoPE", "p_rope": "0.75-RoPE", "nope": "NoPE", "alibi": "ALiBi"}
PREFIXES = (0, 128, 512, 2048, 8192)
Stored = dict[tuple[str, int], Array]  # by encoding and prefix: [S, P]


def stored(data: str) -> Stored:
    found: dict[tuple[str, int], dict[int, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    for _, row in rows_of(DOCS / "language_tasks" / f"{data}.csv"):
        if row["phenomenon"] is not None:
            found[row["pe"], row["prefix"]][row["seed"]][row["phenomenon"]] = row["value"]
    return {
        place: np.array([[by_name[name] for name in sorted(by_name)] for _, by_name in sorted(by_seed.items())])
        for place, by_seed in found.items()
    }


def cell(values_P: Array, sign: str = "") -> str:
    """The mean over phenomena with its interval, of the means over seeds."""
    mean, half = values_P.mean(), float(half_width(values_P))
    return f"{mean:{sign}.3f} ({mean - half:{sign}.3f} to {mean + half:{sign}.3f})"


def table_of_accuracy(found: Stored) -> list[str]:
    return [
        f"| {name}, {len(found[pe, 0])} | {' | '.join(cell(found[pe, n].mean(0)) for n in PREFIXES)} |"
        for pe, name in NAMES.items()
    ]


def table_of_changes(found: Stored) -> list[str]:
    return [
        f"| {name} | {' | '.join(cell((found[pe, n] - found[pe, 0]).mean(0), '+') for n in PREFIXES[1:])} |"
        for pe, name in NAMES.items()
    ]


def table_of_seeds(found: Stored) -> list[str]:
    """The change from no prefix of each seed."""

    def seeds(pe: str, n: int) -> str:
        return " ".join(f"{value:+.3f}" for value in (found[pe, n] - found[pe, 0]).mean(1))

    return [f"| {name} | {' | '.join(seeds(pe, n) for n in PREFIXES[1:])} |" for pe, name in NAMES.items()]


def table_of_blimp(found: Stored) -> list[str]:
    return [f"| {name}, {len(found[pe, 0])} | {cell(found[pe, 0].mean(0))} |" for pe, name in NAMES.items()]


ZORRO, BLIMP = stored("zorro"), stored("blimp")


@pytest.mark.parametrize(
    "rows", [table_of_accuracy(ZORRO), table_of_changes(ZORRO), table_of_seeds(ZORRO), table_of_blimp(BLIMP)]
)
def test_the_tables_are_those_of_the_stored_values(rows: list[str]) -> None:
    page = text_of("language_tasks")
    for row in rows:
        assert row in page


def test_every_seed_has_every_phenomenon() -> None:
    assert {values.shape[1] for values in ZORRO.values()} == {23}
    assert {values.shape[1] for values in BLIMP.values()} == {67}
    assert ZORRO.keys() == {(pe, n) for pe in NAMES for n in PREFIXES}
