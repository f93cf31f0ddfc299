"""What a check found: a line, a table, a page, and the figure of each statement."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from roundround.config.verb import FigureStyle
from roundround.papers.claim import DIFFERS, FAILS, HOLDS, SHOWN, Answer, CheckedNumber
from roundround.report.drawing.figures import save_drawing
from roundround.support.console import print_table
from roundround.support.files import write_atomically
from roundround.support.markdown import markdown_table
from roundround.support.panels import Drawing

MARGIN = "margin: 1 in the middle of what is allowed, 0 at an end, negative outside; with one end, as a share of it"


def line(answer: Answer) -> str:
    """The verdict with the number nearest to failing."""
    closest = answer.finding.closest
    what = f"{closest.what}: {number(closest.ours)} ({interval(closest)})"
    return f"{answer.finding.verdict}  {answer.label}: {answer.claim.title}; {what}"


def counted(answers: Sequence[Answer]) -> str:
    """How many statements hold and how many fail."""
    n_failing = sum(answer.finding.verdict == FAILS for answer in answers)
    return f"{len(answers) - n_failing} hold, {n_failing} fail"


def interval(comparison: CheckedNumber) -> str:
    """The interval in which the number had to lie, in words; "" where it is not judged."""
    low, high = comparison.low, comparison.high
    if not comparison.is_judged:
        return ""
    if not math.isfinite(low):
        return f"at most {number(high)}"
    if not math.isfinite(high):
        return f"at least {number(low)}"
    if low == high:
        return f"must be {number(low)}"
    middle, half = (low + high) / 2, (high - low) / 2
    if half < 0.001 * abs(middle):  # its ends would read alike
        return f"must be {number(middle)} within {half:.1g}"
    return f"from {number(low)} to {number(high)}"


def number(value: float | None) -> str:
    """As digits; "" for None."""
    if value is None:
        return ""
    return f"{value:,.0f}" if float(value).is_integer() and abs(value) < 1e9 else f"{value:.4g}"


def verdict(comparison: CheckedNumber) -> str:
    """The verdict on a number of a statement: it fails where it differs."""
    return {DIFFERS: FAILS, SHOWN: SHOWN}.get(comparison.verdict, HOLDS)


def records(answers: Sequence[Answer]) -> list[dict[str, Any]]:
    """Every number of every check."""
    return [
        {"metric": "comparison", "claim": answer.label, "what": c.what, "value": c.ours, "low": c.low, "high": c.high,
         "published": c.published, "margin": c.margin, "verdict": verdict(c)}
        for answer in answers for c in answer.finding.comparisons
    ]  # fmt: skip


def curves(answers: Sequence[Answer]) -> dict[str, Any]:
    """The curves of the figures, as numbers."""
    return {
        answer.label: {
            "x_label": picture.x_label,
            "y_label": picture.y_label,
            "log": picture.log,
            "curves": [
                {"name": c.name, "x": np.asarray(c.x).tolist(), "y": np.asarray(c.y).tolist(), "points": c.points}
                for c in picture.curves
            ],
        }
        for answer in answers
        if (picture := answer.finding.picture)
    }


def show(answers: Sequence[Answer]) -> None:
    """One row for each statement."""
    table = Table("claim", "says", "numbers", "margin", "verdict", title="theory")
    for answer in answers:
        finding = answer.finding
        numbers, margin = str(len(finding.comparisons)), f"{finding.closest.margin:.2f}"
        table.add_row(answer.label, answer.claim.title, numbers, margin, finding.verdict)
    table.caption = f"{counted(answers)}\n{MARGIN}"
    print_table(table, first_to_leave=["numbers", "margin"])


def write(answers: Sequence[Answer], path: Path) -> None:
    """A page with every statement, its formula, its source and all its numbers."""
    parts = [f"# Theory\n\n{counted(answers)}.\n"]
    for answer in answers:
        finding = answer.finding
        statement, formula, source = answer.claim.words()
        rows = [(c.what, number(c.ours), interval(c), number(c.published), verdict(c)) for c in finding.comparisons]
        parts += [
            f"\n## {answer.label}: {finding.verdict}\n\n{statement}\n\n    {formula}\n\n{source}\n",
            *([f"\n{finding.remark}\n"] if finding.remark else []),
            "\n",
            markdown_table(("number", "ours", "allowed", "published", "verdict"), rows),
        ]
    write_atomically(path, "".join(parts))


def draw(answer: Answer, folder: Path, style: FigureStyle) -> None:
    """The statement's figure, legible without colour."""
    picture = answer.finding.picture
    if picture is not None:
        name = "_".join(re.findall(r"[\w.-]+", answer.label))
        save_drawing(Drawing(name, f"{answer.label}: {answer.claim.title}", [picture]), folder, style)
