"""The tables of docs/results/table2.md, written from a sweep: what the page has to say."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from roundround.papers.figures.own import BASELINE, PAPER, Difference, difference, paper_difference
from roundround.support.markdown import markdown_table


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


def difference_table(sweep: pd.DataFrame, pairs: Sequence[tuple[str, str]] | None = None) -> str:
    """Markdown: differences in nats with 95 % intervals, those that exclude 0 in bold, and the paper's two.

    pairs: (A, B), a row A - B for each; None for every encoding against RoPE.
    """
    pairs = [(name, BASELINE) for name in encodings(sweep) if name != BASELINE] if pairs is None else pairs
    rows = []
    for encoding, baseline in pairs:
        cells = [difference_cell(difference(sweep, encoding, baseline, length)) for length in lengths(sweep)]
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
