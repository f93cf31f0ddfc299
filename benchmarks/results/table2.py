"""The tables of docs/results/table2.md, written from a sweep, and those of table2_turning.md."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from results.stored import DOCS, Array, Values, family, stored
from roundround.analysis.intervals import half_width
from roundround.analysis.load import rows_of
from roundround.papers.figures import own as table2
from roundround.papers.figures.own import BASELINE, PAPER, Difference, difference, paper_difference
from roundround.support.markdown import markdown_table

LENGTHS = (256, 512, 1024, 2048)


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


def perplexity_table(sweep: pd.DataFrame) -> str:
    """Markdown: mean perplexity over seeds, a row for each encoding, a column for each length, and the paper's two."""
    rows = []
    for encoding in encodings(sweep):
        name, *published = PAPER.get(encoding, (encoding, math.nan, math.nan))
        means = [f"{sweep[length, encoding].mean():.2f}" for length in lengths(sweep)]
        rows.append([str(name), *means, *("" if encoding not in PAPER else f"{value:.4f}" for value in published)])
    return markdown_table(["encoding", *columns(sweep)], rows)


def in_nats(sweep: pd.DataFrame, encoding: str, length: int) -> Array:
    return np.log(sweep[length, encoding].to_numpy())


def p_of_differences(sweep: pd.DataFrame) -> dict[tuple[str, int], float]:
    """Of each encoding against RoPE, after Holm's correction over all encodings and lengths."""
    cells = [(pe, n) for pe in encodings(sweep) if pe != BASELINE for n in lengths(sweep)]
    return family({(pe, n): (in_nats(sweep, pe, n), in_nats(sweep, BASELINE, n)) for pe, n in cells})


def difference_table(sweep: pd.DataFrame, pairs: Sequence[tuple[str, str]] | None = None) -> str:
    """Markdown: differences in nats with 95 % intervals, those that exclude 0 in bold, and the paper's two.

    pairs: (A, B), a row A - B for each; None for every encoding against RoPE, with a star where p after Holm is below
    0.05.
    """
    p = p_of_differences(sweep) if pairs is None else {}
    pairs = [(name, BASELINE) for name in encodings(sweep) if name != BASELINE] if pairs is None else pairs
    rows = []
    for encoding, baseline in pairs:
        cells = [
            difference_cell(difference(sweep, encoding, baseline, n)) + " *" * (p.get((encoding, n), 1.0) < 0.05)
            for n in lengths(sweep)
        ]
        known = {encoding, baseline} <= PAPER.keys()
        theirs = [f"{nats:+.4f}" for nats in paper_difference(encoding, baseline)] if known else ["", ""]
        named = (PAPER.get(name, (name,))[0] for name in (encoding, baseline))
        rows.append([" - ".join(named), *cells, *theirs])
    return markdown_table(["nats per token", *columns(sweep)], rows)


def lengths(sweep: pd.DataFrame) -> list[int]:
    return sorted({length for length, _ in sweep.columns})


def encodings(sweep: pd.DataFrame) -> list[str]:
    """Those of the table in the paper's order, others after them."""
    names = {pe for _, pe in sweep.columns}
    return [pe for pe in PAPER if pe in names] + sorted(names - PAPER.keys())


def columns(sweep: pd.DataFrame) -> list[str]:
    return [*map("{:,}".format, lengths(sweep)), "paper: Wikipedia", "paper: FLAN v2"]


def difference_cell(found: Difference) -> str:
    text = f"{found.nats:+.4f} ({found.low:+.4f} to {found.high:+.4f})"
    return f"**{text}**" if excludes_zero(found) else text


def body(table: str) -> list[str]:
    """The rows of a table without its heads."""
    return table.splitlines()[2:]


def row_of_turning(length: int) -> str:
    found = [(resting("98", p, length), resting("10000", p, length)) for p in ("0.75", "0.5")]
    cells = [nats(values) for slow, fast in found for values in (slow, fast, slow - fast)]
    return f"| {length:,} | {' | '.join(cells)} |"


def row_of_forty(length: int) -> str:
    whole, more = forty(length)
    return f"| {length:,} | {nats(whole)} | {nats(more)} |"


TABLES = {
    "turning": lambda: [row_of_turning(256)],
    "forty": lambda: [row_of_forty(length) for length in LENGTHS[:3]],
}
for corpus in ("tinystories", "wikitext2"):
    TABLES[f"{corpus}-perplexity"] = lambda corpus=corpus: body(perplexity_table(sweep(corpus)))
    TABLES[f"{corpus}-differences"] = lambda corpus=corpus: body(difference_table(sweep(corpus)))
    TABLES[f"{corpus}-controls"] = lambda corpus=corpus: body(difference_table(sweep(corpus), table2.CONTROLS))
