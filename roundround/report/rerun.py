"""What came of a repetition: a table by metric, the numbers that differ, and records.

Tested by tests/analysis/test_rerun.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from roundround.analysis.repetition import CLOSE, DIFFERENT, EQUAL, MISSING, VERDICTS, Repeated
from roundround.report.drawing.tables import Table
from roundround.support.console import print_table

MOST_SHOWN = 20  # numbers that differ


def counts(numbers: Sequence[Repeated]) -> dict[str, int]:
    return {verdict: sum(number.verdict == verdict for number in numbers) for verdict in VERDICTS}


def largest(numbers: Sequence[Repeated]) -> float:
    """The largest relative difference of any number that is there on both sides."""
    return max((number.difference for number in numbers if number.difference is not None), default=0.0)


def records(numbers: Sequence[Repeated]) -> list[dict[str, Any]]:
    """One for each number, whose value is the relative difference, after the totals."""
    total = [{"metric": f"n_{verdict}", "value": n} for verdict, n in counts(numbers).items()]
    total.append({"metric": "largest_relative_difference", "value": largest(numbers)})
    for number in numbers:
        where = {name: value for name, value in number.where.items() if name not in ("metric", "verb", "run")}
        about = {"of": number.metric, "verdict": number.verdict, "then": number.then, "now": number.now}
        total.append({"metric": "relative_difference", **where, **about, "value": number.difference})
    return total


def summary(numbers: Sequence[Repeated], rtol: float) -> str:
    """All numbers in one sentence."""
    n = counts(numbers)
    more = {
        EQUAL: "",
        CLOSE: f" (the largest relative difference is {largest([p for p in numbers if p.verdict == CLOSE]):.1g})",
        DIFFERENT: f" (by more than rtol={rtol:g}; the largest relative difference is {largest(numbers):.2g})",
        MISSING: " on one side",
    }
    parts = [f"{n[verdict]:,} {verdict}{more[verdict]}" for verdict in VERDICTS if n[verdict] or verdict == EQUAL]
    return f"{len(numbers):,} numbers: {', '.join(parts)}"


def show(numbers: Sequence[Repeated]) -> None:
    """The table by metric, and the first numbers that differ."""
    by_metric: dict[str, list[Repeated]] = {}
    for number in numbers:
        by_metric.setdefault(number.metric, []).append(number)
    rows = [
        [metric, *(n or "" for n in counts(own).values()), f"{largest(own):.2g}"] for metric, own in by_metric.items()
    ]
    table = Table("", ["metric", *VERDICTS, "difference"], rows).rich()
    for column in table.columns[1:]:
        column.justify = "right"
    table.caption = "difference: the largest, relative to the larger number"
    worst = [number for number in numbers if number.verdict in (DIFFERENT, MISSING)]
    rows = []
    for number in worst[:MOST_SHOWN]:
        others = [other.where for other in by_metric[number.metric]]
        keys = [key for key, value in number.where.items() if any(other.get(key) != value for other in others)]
        of = ", ".join(f"{key}={number.where[key]}" for key in keys if key not in ("run", "step"))
        rows.append([number.metric, of, format_number(number.then), format_number(number.now)])
    differing = Table("", ["metric", "of", "then", "now"], rows).rich()
    if len(worst) > MOST_SHOWN:
        differing.caption = f"and {len(worst) - MOST_SHOWN:,} more, see results.json"
    print_table(table, *[differing] * bool(worst))


def format_number(value: Any) -> str:
    return "missing" if value is None else f"{value:.10g}" if isinstance(value, float) else str(value)
