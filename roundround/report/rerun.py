"""What came of a repetition: a table by metric, the numbers that differ, and records.

Tested by tests/analysis/test_rerun.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.table import Table

from roundround.analysis.repetition import CLOSE, DIFFERENT, EQUAL, MISSING, VERDICTS, Pair
from roundround.support.console import print_table

MOST_SHOWN = 20  # numbers that differ


def counts(pairs: Sequence[Pair]) -> dict[str, int]:
    return {verdict: sum(pair.verdict == verdict for pair in pairs) for verdict in VERDICTS}


def largest(pairs: Sequence[Pair]) -> float:
    """The largest relative difference of any number that is there on both sides."""
    return max((pair.difference for pair in pairs if pair.difference is not None), default=0.0)


def records(pairs: Sequence[Pair]) -> list[dict[str, Any]]:
    """One for each number, whose value is the relative difference, after the totals."""
    total = [{"metric": f"n_{verdict}", "value": n} for verdict, n in counts(pairs).items()]
    total.append({"metric": "largest_relative_difference", "value": largest(pairs)})
    for pair in pairs:
        where = {name: value for name, value in pair.where.items() if name not in ("metric", "verb", "run")}
        about = {"of": pair.metric, "verdict": pair.verdict, "then": pair.then, "now": pair.now}
        total.append({"metric": "relative_difference", **where, **about, "value": pair.difference})
    return total


def summary(pairs: Sequence[Pair], rtol: float) -> str:
    """All numbers in one sentence."""
    n = counts(pairs)
    more = {
        EQUAL: "",
        CLOSE: f" (the largest relative difference is {largest([p for p in pairs if p.verdict == CLOSE]):.1g})",
        DIFFERENT: f" (by more than rtol={rtol:g}; the largest relative difference is {largest(pairs):.2g})",
        MISSING: " on one side",
    }
    parts = [f"{n[verdict]:,} {verdict}{more[verdict]}" for verdict in VERDICTS if n[verdict] or verdict == EQUAL]
    return f"{len(pairs):,} numbers: {', '.join(parts)}"


def show(pairs: Sequence[Pair]) -> None:
    """The table by metric, and the first numbers that differ."""
    by_metric: dict[str, list[Pair]] = {}
    for pair in pairs:
        by_metric.setdefault(pair.metric, []).append(pair)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption="difference: the largest, relative to the larger number")
    table.add_column("metric", overflow="fold")
    for name in (*VERDICTS, "difference"):
        table.add_column(name, justify="right")
    for metric, own in by_metric.items():
        n = counts(own)
        table.add_row(metric, *(f"{n[v]:,}" if n[v] else "" for v in VERDICTS), f"{largest(own):.2g}")
    print_table(table)
    worst = [pair for pair in pairs if pair.verdict in (DIFFERENT, MISSING)]
    if not worst:
        return
    differing = Table("metric", "of", "then", "now", box=box.SIMPLE_HEAD, pad_edge=False)
    for pair in worst[:MOST_SHOWN]:
        others = [other.where for other in by_metric[pair.metric]]
        keys = (key for key in pair.where if key not in ("run", "step"))
        telling = [key for key in keys if any(other.get(key) != pair.where[key] for other in others)]
        of = ", ".join(f"{key}={pair.where[key]}" for key in telling)
        differing.add_row(pair.metric, of, format_number(pair.then), format_number(pair.now))
    if len(worst) > MOST_SHOWN:
        differing.caption = f"and {len(worst) - MOST_SHOWN:,} more, see results.json"
    print_table(differing)


def format_number(value: Any) -> str:
    return "missing" if value is None else f"{value:.10g}" if isinstance(value, float) else str(value)
