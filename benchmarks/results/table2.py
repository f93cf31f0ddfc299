"""The tables of docs/results/table2.md."""

from __future__ import annotations

import numpy as np
import pandas as pd

from results.stored import DOCS, Array, Values, family, stored
from roundround.analysis.intervals import half_width
from roundround.analysis.load import rows_of
from roundround.papers.figures import own as table2
from roundround.papers.figures.own import BASELINE, PAPER, Difference, difference, paper_difference

LENGTHS = (256, 512, 1024, 2048)
CORPORA = ("tinystories", "wikitext2")


def sweep(corpus: str) -> pd.DataFrame:
    rows = (row for _, row in rows_of(DOCS / "table2" / f"{corpus}.csv"))
    found = table2.sweep_of({**row, "verb": "eval"} for row in rows)
    assert (list(found.index), found.shape[1]) == ([1, 2, 3, 4, 5], 7 * len(LENGTHS))
    return found


# FIRST: the first measurement, with a setting that nobody recorded
TURNING, MORE_TURNING, FIRST = (
    stored(f"table2/{name}", "pe.theta", "pe.p") for name in ("turning", "turning_more", "turning_first")
)


def resting(theta: str, p: str, length: int, values: Values = TURNING) -> Array:
    """Nats that resting costs at this base, by seed."""
    return values[theta, p, "nats_per_token", length] - values[theta, "1", "nats_per_token", length]


def nats(values: Array, *, bold: bool = True) -> str:
    mean, half = values.mean(), float(half_width(values))
    text = f"{mean:+.4f} ({mean - half:+.4f} to {mean + half:+.4f})"
    return f"**{text}**" if bold and abs(mean) > half else text


def forty(length: int) -> tuple[Array, Array]:
    """What resting costs at base 98 over all seeds, and over those that came later."""
    more = resting("98", "0.75", length, MORE_TURNING)
    return np.concatenate([resting("98", "0.75", length), more]), more


def excludes_zero(found: Difference) -> bool:
    return found.low > 0 or found.high < 0


def in_nats(sweep: pd.DataFrame, encoding: str, length: int) -> Array:
    return np.log(sweep[length, encoding].to_numpy())


def p_of_differences(sweep: pd.DataFrame) -> dict[tuple[str, int], float]:
    """Of each encoding against RoPE, after Holm's correction over all encodings and lengths."""
    cells = [(pe, n) for pe in PAPER if pe != BASELINE for n in LENGTHS]
    return family({(pe, n): (in_nats(sweep, pe, n), in_nats(sweep, BASELINE, n)) for pe, n in cells})


def row_of(encoding: str) -> str:
    """Differences from RoPE on both corpora at the shortest and the longest length, and the paper's on Wikipedia."""
    cells = [
        difference_cell(difference(found, encoding, BASELINE, n)) + " *" * (p_of_differences(found)[encoding, n] < 0.05)
        for found in map(sweep, CORPORA)
        for n in (LENGTHS[0], LENGTHS[-1])
    ]
    theirs, _ = paper_difference(encoding, BASELINE)
    return f"| {PAPER[encoding][0]} | {' | '.join(cells)} | {theirs:+.4f} |"


def difference_cell(found: Difference) -> str:
    text = f"{found.nats:+.4f} ({found.low:+.4f} to {found.high:+.4f})"
    return f"**{text}**" if excludes_zero(found) else text


def rows_of_turning() -> list[str]:
    rows = []
    for p in ("0.75", "0.5"):
        slow, fast = (resting(theta, p, 256) for theta in ("98", "10000"))
        rows.append(f"| {p}, eight | {nats(slow)} | {nats(fast)} | {nats(slow - fast)} |")
    return [*rows, f"| 0.75, forty | {nats(forty(256)[0])} | - | - |"]


TABLES = {
    "differences": lambda: [row_of(pe) for pe in PAPER if pe != BASELINE],
    "turning": rows_of_turning,
}
