"""Past runs on a screen: the list of `roundround runs`, and one run of `roundround show`.

Tested by tests/analysis/test_runs_and_show.py.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from roundround.analysis.past_run import PastRun
from roundround.analysis.repetition import Change
from roundround.support.console import print_result, print_status, print_table
from roundround.support.errors import UserError

NUMBERS_SHOWN = 2  # of a headline
RECORDS_SHOWN = 20
TO_LEAVE = ("took", "verb", "headline", "status", "overridden")  # columns of the list, where a terminal is narrow
WHY = 60  # characters of why a run failed
BARS = "▁▂▃▄▅▆▇█"  # rising
POINTS = 60  # of a sparkline
IDENTITY = {"verb", "run"}  # fields of a record that the page says above


def show_runs(runs: Sequence[PastRun], *, n_runs: int, all_seen: bool) -> None:
    """The list, and how many more there are."""
    table = Table("run", "verb", "overridden", "status", "took", "headline", box=box.SIMPLE_HEAD, pad_edge=False)
    for run in runs:
        overridden, numbers = " ".join(run.manifest["overrides"]), list(run.manifest["headline"].items())
        headline = ", ".join(f"{name} {format_value(value)}" for name, value in numbers[:NUMBERS_SHOWN])
        status = run.status if len(run.status) <= WHY else f"{run.status[: WHY - 3]}..."
        table.add_row(relative(run.directory), run.verb, overridden, status, format_duration(run.seconds), headline)
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
    """Where it is from, its settings, results, curves and files."""
    print_result(relative(run.directory))
    for line in origin(run):
        print_result(line)
    print_table(settings_table(run, changes), on_output=True, first_to_leave=["default"])
    try:
        records = run.results()
        if records:
            print_table(results_table(records), on_output=True)
            if len(records) > RECORDS_SHOWN:
                print_result(f"and {len(records) - RECORDS_SHOWN:,} more in results.json")
        show_curves(run)
    except UserError as error:
        print_status(f"damaged: {error}")
    print_result(f"files: {', '.join(sorted(path.name for path in run.directory.iterdir() if path.name[0] != '.'))}")


def origin(run: PastRun) -> list[str]:
    """Lines about when, how and with what code it was made."""
    m, git = run.manifest, run.manifest.get("git") or {}
    commit = f"commit {str(git.get('commit'))[:10]}{', changed' if git.get('dirty') else ''}" if git else ""
    when = run.started.strftime("%Y-%m-%d %H:%M:%S")
    duration = (
        f" {'for' if run.status == 'running' else 'after'} {format_duration(run.seconds)}"
        if run.seconds is not None
        else ""
    )
    code = ", ".join(filter(None, [f"roundround {m['roundround']}", commit, str(m.get("device") or "")]))
    lines = [f"{run.verb}: {run.status}{duration}, started {when}", code, m["command"]]
    return lines + ([f"of the model of {m['run']}"] if m.get("run") else [])


def settings_table(run: PastRun, changes: Sequence[Change] | None) -> Table:
    """What differs from the defaults; what was typed, where these cannot be known."""
    table = Table("setting", "value", "default", box=box.SIMPLE_HEAD, pad_edge=False)
    if changes is None:
        for override in run.manifest["overrides"]:
            key, _, value = override.partition("=")
            table.add_row(key, value, "not known")
        return table
    for change in changes:
        table.add_row(change.key, format_value(change.value, None), format_value(change.default, None))
    if not changes:
        table.add_row("all", "as the default", "")
    return table


def results_table(records: Sequence[Mapping[str, Any]]) -> Table:
    """The first records, with the fields in which they differ."""
    shown = records[:RECORDS_SHOWN]
    fields = dict.fromkeys(key for record in shown for key in record if key not in IDENTITY | {"metric", "value"})
    varying = [key for key in fields if len({str(record.get(key)) for record in shown}) > 1]
    table = Table("metric", *varying, "value", box=box.SIMPLE_HEAD, pad_edge=False)
    table.columns[-1].justify = "right"
    for record in shown:
        cells = (format_value(record[key], None) if key in record else "" for key in varying)
        table.add_row(record["metric"], *cells, format_value(record["value"]))
    return table


def show_curves(run: PastRun) -> None:
    """Every metric of metrics.jsonl as a line of bars, from its first value to its last."""
    lines, n_damaged = run.metrics()
    for name in dict.fromkeys(name for line in lines for name in line if name != "step"):
        values = [float(v) for line in lines if isinstance(v := line.get(name), int | float) and math.isfinite(v)]
        if len(values) > 1:
            print_result(f"{name:<24} {sparkline(values)}  {format_value(values[0])} to {format_value(values[-1])}")
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


def format_duration(seconds: float | None) -> str:
    """A duration such as 3.2 s, 12:40 or 2:10:33."""
    if seconds is None:
        return ""
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    hours = f"{whole // 3600}:{whole // 60 % 60:02}" if whole >= 3600 else f"{whole // 60}"
    return f"{hours}:{whole % 60:02}"


def format_value(value: Any, digits: int | None = 4) -> str:
    """A value as text. Four digits of a number are enough to tell runs apart; the files have all."""
    if isinstance(value, float) and digits is not None:
        return f"{value:.{digits}g}"
    return "null" if value is None else ",".join(map(str, value)) if isinstance(value, list) else str(value)
