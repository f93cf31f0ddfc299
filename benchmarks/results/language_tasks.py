"""The tables of docs/results/language_tasks.md, of the accuracy of each phenomenon and seed.

Shapes: S seeds, P phenomena.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from scipy import stats

from results.stored import DOCS, Array
from roundround.analysis.intervals import half_width, holm
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


def cell(values: Array, sign: str = "") -> str:
    """The mean of the values, over phenomena or seeds, with its interval."""
    mean, half = values.mean(), float(half_width(values))
    return f"{mean:{sign}.3f} ({mean - half:{sign}.3f} to {mean + half:{sign}.3f})"


def table_by_the_rule(found: Stored) -> list[str]:
    """The rule of conf/experiment/rope/grammar.yaml: Student's t over seeds, Holm over the encodings at each prefix."""
    cells: dict[str, list[str]] = {pe: [] for pe in NAMES}
    for n in PREFIXES[1:]:
        changes = {pe: (found[pe, n] - found[pe, 0]).mean(1) for pe in NAMES}
        p_values = holm([float(stats.ttest_1samp(change, 0).pvalue) for change in changes.values()])
        for (pe, change), p_value in zip(changes.items(), p_values, strict=True):
            lost = f", **lost** (p = {p_value:.2g})" if change.mean() < 0 and p_value < 0.05 else ""
            cells[pe].append(cell(change, "+") + lost)
    return [f"| {NAMES[pe]} | {' | '.join(row)} |" for pe, row in cells.items()]


ZORRO, BLIMP = stored("zorro"), stored("blimp")


TABLES = {"by-the-rule": lambda: table_by_the_rule(ZORRO)}
