"""What a page and a terminal say about a past run beside its results; the output of `roundround runs` and `show`.

Tested by tests/analysis/test_runs_and_show.py and tests/report/test_page_command.py.
"""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import rich.table
from rich import box

from roundround.analysis.past_run import PastRun, directories_of, last
from roundround.config.options import Change
from roundround.config.verb import Verb
from roundround.report.drawing.tables import Table, in_words, shown, tables_of, text_of
from roundround.support.console import print_result, print_status, print_table
from roundround.support.errors import UserError, nearest
from roundround.verbs import verb_named

NUMBERS_SHOWN = 2  # of a headline
ROWS_SHOWN = 20  # of a table of results
TO_LEAVE = ("took", "verb", "headline", "status", "overridden")  # columns of the list, where a terminal is narrow
WHY = 60  # characters of why a run failed
BARS = "▁▂▃▄▅▆▇█"  # rising
POINTS = 60  # of a sparkline
SHORT_HASH = 12  # characters


@dataclass(frozen=True)
class Fact:
    """A name and its value; `whole` is the full value if `value` is cut."""

    name: str
    value: str
    whole: str = ""


def facts_of(run: PastRun) -> list[Fact]:
    """Where the run comes from: time, device, data, code and versions."""
    manifest, git = run.manifest, run.manifest.get("git") or {}
    looked_at, commit = manifest.get("run"), str(git.get("commit") or "")
    values = [
        ("verb", run.verb),
        ("status", run.status),
        ("started", run.started.isoformat(sep=" ", timespec="seconds")),
        ("duration", duration(run.seconds)),
        ("directory", str(run.directory)),
        ("looks at the model of", looked_at if looked_at != str(run.directory) else None),
        ("job of the sweep", manifest["sweep"]),
        ("seed", manifest["seed"]),
        ("device", manifest.get("device")),
        *manifest["facts"].items(),
        *(manifest["data"] or {}).items(),
        ("roundround", manifest["roundround"]),
    ]
    found = []
    for name, value in values:  # a hash is cut; a seed and the id of a token are numbers whose digits stay together
        if name.endswith("_hash") and isinstance(value, str):
            found.append(Fact(in_words(name), value[:SHORT_HASH], value))
        elif value is not None:
            together = name == "seed" or name.endswith("of_document")
            found.append(Fact(in_words(name), text_of(value) if together else shown(value)))
    if commit:
        patched = ", with uncommitted changes (code.patch)" if git.get("dirty") else ""
        found.append(Fact("commit", commit[:SHORT_HASH] + patched, commit))
    if versions := manifest.get("versions"):
        found.append(Fact("versions", ", ".join(f"{name} {text_of(value)}" for name, value in versions.items())))
    return found


def duration(seconds: float | None) -> str:
    """Seconds in hours, minutes and seconds."""
    if seconds is None:
        return "not known"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def commands_of(run: PastRun) -> list[tuple[str, str]]:
    """The commands that repeat the run: from its manifest, and as it was typed in its folder."""
    again = shlex.join(["roundround", "rerun", str(run.directory)])
    repeated = [("again, and compare the numbers", again)] if verb_named(run.verb).repeats else []
    folder = run.manifest.get("cwd")
    return [*repeated, ("as it was given" + (f" in {folder}" if folder else ""), run.manifest["command"])]


def given_to(run: PastRun) -> Table:
    """The settings that the command line gave."""
    given = [list(word.partition("=")[::2]) for word in run.manifest["overrides"]]
    return Table("Given on the command line", ["setting", "value"], given)


# -- on a screen


def meant_by(verb: Verb, names: Sequence[str], values: Mapping[str, str]) -> list[Path]:
    """The runs that are named, or the last one. UserError for a key that the verb does not read."""
    for key in values:
        if key not in verb.reads:
            raise UserError(f"no key {key}{nearest(key, verb.reads)}; roundround runs filters")
    outputs, of_verb = values.get("outputs", "outputs"), values.get("verb")
    named = [run for name in names for run in directories_of(name, outputs, of_verb)]
    return list(dict.fromkeys(named if names else [last(0, outputs, of_verb)]))


def show_runs(runs: Sequence[PastRun], *, n_runs: int, all_seen: bool) -> None:
    """Print the list, and how many more runs there are."""
    columns = ("run", "verb", "overridden", "status", "took", "headline")
    table = rich.table.Table(*columns, box=box.SIMPLE_HEAD, pad_edge=False)
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
        print_status(f"these are the newest {len(runs):,} runs that pass, out of {n_runs:,}; limit=all shows all")


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
    """Print the origin of a run, its settings, results, curves and files, in the words of its page.

    changes: the settings that differ from the defaults; None if the defaults are not known.
    """
    print_result(relative(run.directory))
    for fact in facts_of(run):
        print_result(f"{fact.name:<24} {fact.value}")
    for name, command in commands_of(run):
        print_result(f"{name}:")
        print_result(command)  # a line of its own, to be copied
    settings = given_to(run)
    if changes is not None:
        rows = [[change.key, text_of(change.value), text_of(change.default)] for change in changes]
        settings = Table("What differs from the defaults", ["setting", "value", "default"], rows)
    if settings.rows:
        print_table(settings.rich(), on_output=True, first_to_leave=["default"])
    else:
        print_result("Everything is as the defaults have it.")
    for table in tables_of(run.results()):
        table.cut(ROWS_SHOWN)
        found = table.rich()
        found.caption = "\n".join(filter(None, [table.note, f"and {table.more:,} more" * bool(table.more)]))
        print_table(found, on_output=True)
    show_curves(run)
    print_result(f"files: {', '.join(sorted(path.name for path in run.directory.iterdir() if path.name[0] != '.'))}")


def show_curves(run: PastRun) -> None:
    """Print every metric of metrics.jsonl as a line of bars, from its first value to its last."""
    lines, n_damaged = run.metrics()
    for name in dict.fromkeys(name for line in lines for name in line if name != "step"):
        values = [float(v) for line in lines if isinstance(v := line.get(name), int | float) and math.isfinite(v)]
        if len(values) > 1:
            print_result(f"{name:<24} {sparkline(values)}  {shown(values[0])} to {shown(values[-1])}")
    if n_damaged:
        lines_of = "1 line" if n_damaged == 1 else f"{n_damaged} lines"
        print_status(f"damaged: {lines_of} of {run.directory / 'metrics.jsonl'} cannot be read")


def sparkline(values: Sequence[float]) -> str:
    """A line of bars between the lowest and the highest value; a bar of a long curve is a mean over several values."""
    n = min(POINTS, len(values))
    parts = [values[k * len(values) // n : (k + 1) * len(values) // n] for k in range(n)]
    means = [sum(part) / len(part) for part in parts]
    low, height = min(means), max(means) - min(means)
    return "".join(BARS[round((mean - low) / height * (len(BARS) - 1)) if height else 0] for mean in means)


def relative(directory: Path) -> str:
    """The directory as it is typed from the current folder."""
    near = os.path.relpath(directory)
    return str(directory) if near.startswith("..") else near
