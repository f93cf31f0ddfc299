"""Past runs on a screen: the list of `roundround runs`, and one run of `roundround show`.

Tested by tests/analysis/test_runs_and_show.py.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from roundround.analysis.past_run import PastRun
from roundround.config.options import Change
from roundround.report.drawing.numbers import shown
from roundround.report.drawing.tables import tables_of
from roundround.report.facts import commands_of, duration, facts_of, settings_of
from roundround.support.console import print_result, print_status, print_table
from roundround.support.errors import UserError

NUMBERS_SHOWN = 2  # of a headline
ROWS_SHOWN = 20  # of a table of results
TO_LEAVE = ("took", "verb", "headline", "status", "overridden")  # columns of the list, where a terminal is narrow
WHY = 60  # characters of why a run failed
BARS = "▁▂▃▄▅▆▇█"  # rising
POINTS = 60  # of a sparkline


def show_runs(runs: Sequence[PastRun], *, n_runs: int, all_seen: bool) -> None:
    """The list, and how many more there are."""
    table = Table("run", "verb", "overridden", "status", "took", "headline", box=box.SIMPLE_HEAD, pad_edge=False)
    for run in runs:
        overridden, numbers = " ".join(run.manifest["overrides"]), list(run.manifest["headline"].items())
        headline = ", ".join(f"{name} {shown(value)}" for name, value in numbers[:NUMBERS_SHOWN])
        status = run.status if len(run.status) <= WHY else f"{run.status[: WHY - 3]}..."
        table.add_row(relative(run.directory), run.verb, overridden, status, duration(run.seconds), headline)
    if runs:
        print_table(table, on_output=True, first_to_leave=TO_LEAVE, see="format=json")
    if not n_runs:
        print_status("no run is there yet; start one with: roundround train")
    elif not runs:
        print_status(f"no run passes the filters; {n_runs:,} run{' was' if n_runs == 1 else 's were'} read")
    elif not all_seen:
        print_status(f"the newest {len(runs):,} of those that are meant, out of {n_runs:,} runs; limit=all shows all")


def as_record(run: PastRun) -> dict[str, Any]:
    """A run of the list as values by name."""
    return {
        "run": str(run.directory),
        "verb": run.verb,
        "overrides": run.manifest["overrides"],
        "status": run.status,
        "started": run.manifest["started"],
        "seconds": run.seconds,
        "headline": run.manifest["headline"],
    }


def show_run(run: PastRun, changes: Sequence[Change] | None) -> None:
    """Where it is from, its settings, results, curves and files, in the words of its page."""
    print_result(relative(run.directory))
    for fact in facts_of(run):
        print_result(f"{fact.name:<24} {fact.value}")
    for name, command in commands_of(run):
        print_result(f"{name}:")
        print_result(command)  # a line of its own, to be copied
    settings = settings_of(run, changes)
    if settings.rows:
        print_table(settings.rich(), on_output=True, first_to_leave=["default"])
    else:
        print_result("Everything is as the defaults have it.")
    try:
        for table in tables_of(run.results()):
            table.cut(ROWS_SHOWN)
            found = table.rich()
            found.caption = "\n".join(filter(None, [table.note, f"and {table.more:,} more" * bool(table.more)]))
            print_table(found, on_output=True)
        show_curves(run)
    except UserError as error:
        print_status(f"damaged: {error}")
    print_result(f"files: {', '.join(sorted(path.name for path in run.directory.iterdir() if path.name[0] != '.'))}")


def show_curves(run: PastRun) -> None:
    """Every metric of metrics.jsonl as a line of bars, from its first value to its last."""
    lines, n_damaged = run.metrics()
    for name in dict.fromkeys(name for line in lines for name in line if name != "step"):
        values = [float(v) for line in lines if isinstance(v := line.get(name), int | float) and math.isfinite(v)]
        if len(values) > 1:
            print_result(f"{name:<24} {sparkline(values)}  {shown(values[0])} to {shown(values[-1])}")
    if n_damaged:
        lines_of = "1 line" if n_damaged == 1 else f"{n_damaged} lines"
        print_status(f"damaged: {lines_of} of {run.directory / 'metrics.jsonl'} cannot be read")


def sparkline(values: Sequence[float]) -> str:
    """Bars whose height is the value between the lowest and the highest: means over equal parts of a long curve."""
    n = min(POINTS, len(values))
    parts = [values[k * len(values) // n : (k + 1) * len(values) // n] for k in range(n)]
    means = [sum(part) / len(part) for part in parts]
    low, height = min(means), max(means) - min(means)
    return "".join(BARS[round((mean - low) / height * (len(BARS) - 1)) if height else 0] for mean in means)


def relative(directory: Path) -> str:
    """The directory as one would type it from here."""
    near = os.path.relpath(directory)
    return str(directory) if near.startswith("..") else near
