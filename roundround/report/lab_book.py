"""The facts about a past run except its results, for its page and `roundround show`; the list of `roundround runs`.

Tested by tests/analysis/test_runs_and_show.py and tests/report/test_page_command.py.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import rich.table
from rich import box

from roundround.analysis.past_run import PastRun, directories_of, last
from roundround.config.verb import Verb
from roundround.records.directories import time_of
from roundround.report.drawing.tables import Table, in_words, number, shown, tables_of, text_of
from roundround.support.console import print_result, print_status, print_table
from roundround.support.errors import UserError, nearest
from roundround.verbs import verb_named

NUMBERS_SHOWN = 2  # of a headline
ROWS_SHOWN = 20  # of a table of results
TO_LEAVE = ("took", "verb", "headline", "status", "overridden")  # columns to drop if a terminal is narrow
WHY = 60  # characters of the reason why a run failed
SHORT_HASH = 12  # characters


def origin_of(run: PastRun) -> dict[str, Any]:
    """The origin of a run: `facts` (time, device, data, code, versions), `settings` and `commands`.

    settings: the table of the settings given on the command line. commands: `roundround rerun`, which repeats the run
    from its manifest, and the command that was typed, each with a description.
    """
    manifest, git = run.manifest, run.manifest.get("git") or {}
    looked_at, commit = manifest.get("run"), str(git.get("commit") or "")
    patched = ", with uncommitted changes (code.patch)" if git.get("dirty") else ""
    values = [
        ("verb", manifest["verb"]),
        ("status", run.status),
        ("started", time_of(manifest["started"]).isoformat(sep=" ", timespec="seconds")),
        ("duration", duration(run.seconds)),
        ("directory", str(run.directory)),
        ("measures the model of", looked_at if looked_at != str(run.directory) else None),
        ("job of the sweep", manifest["sweep"]),
        ("seed", manifest["seed"]),
        ("device", manifest.get("device")),
        *manifest["facts"].items(),
        *(manifest["data"] or {}).items(),
        ("roundround", manifest["roundround"]),
        ("commit", f"{commit[:SHORT_HASH]}{patched}" if commit else None),
        ("versions", ", ".join(f"{name} {version}" for name, version in manifest.get("versions", {}).items()) or None),
    ]
    found = []
    for name, value in values:  # a seed and a token id have no thousands separators
        if name.endswith("_hash") and isinstance(value, str):
            found.append((in_words(name), value[:SHORT_HASH]))
        elif value is not None:
            together = name == "seed" or name.endswith("of_document")
            found.append((in_words(name), text_of(value) if together else shown(value)))
    again = shlex.join(["roundround", "rerun", str(run.directory)])
    commands = [("again, and compare the numbers", again)] if verb_named(manifest["verb"]).repeats else []
    folder = f" in {manifest['cwd']}" if manifest.get("cwd") else ""
    commands.append((f"as it was given{folder}", manifest["command"]))
    given = [list(word.partition("=")[::2]) for word in manifest["overrides"]]
    return {
        "facts": found,
        "commands": commands,
        "settings": Table("Given on the command line", ["setting", "value"], given),
    }


def duration(seconds: float | None) -> str:
    """Seconds, or hours, minutes and seconds as 1:02:03."""
    if seconds is None:
        return "not known"
    return f"{seconds:.1f} s" if seconds < 60 else str(timedelta(seconds=round(seconds)))


# -- on a screen


def meant_by(verb: Verb, names: Sequence[str], values: Mapping[str, str]) -> list[Path]:
    """The directories of the runs that `names` lists; if it is empty, the directory of the last run.

    Raises UserError for a key that the verb does not read.
    """
    for key in values:
        if key not in verb.reads:
            raise UserError(f"no key {key}{nearest(key, verb.reads)}; to filter runs, use roundround runs")
    outputs, of_verb = values.get("outputs", "outputs"), values.get("verb")
    named = [run for name in names for run in directories_of(name, outputs, of_verb)]
    return list(dict.fromkeys(named if names else [last(0, outputs, of_verb)]))


def show_runs(runs: Sequence[PastRun], *, n_runs: int, all_seen: bool) -> None:
    """Print the list of runs.

    all_seen: whether the list has every run that passes the filters. If not, a line says how many of all `n_runs` runs
    are shown.
    """
    columns = ("run", "verb", "overridden", "status", "took", "headline")
    table = rich.table.Table(*columns, box=box.SIMPLE_HEAD, pad_edge=False)
    for run in runs:
        overridden, numbers = " ".join(run.manifest["overrides"]), list(run.manifest["headline"].items())
        headline = ", ".join(f"{name} {shown(value)}" for name, value in numbers[:NUMBERS_SHOWN])
        table.add_row(relative(run.directory), run.verb, overridden, run.status[:WHY], duration(run.seconds), headline)
    if runs:
        print_table(table, on_output=True, first_to_leave=TO_LEAVE, see="format=json")
    if not all_seen or not runs:
        print_status(f"{len(runs):,} of {n_runs:,} runs are shown; limit=all shows every run that passes the filters")


def as_record(run: PastRun) -> dict[str, Any]:
    """A run as one record of the list of runs."""
    return {
        "run": str(run.directory),
        "verb": run.verb,
        "overrides": run.manifest["overrides"],
        "status": run.status,
        "started": run.manifest["started"],
        "seconds": run.seconds,
        "headline": run.manifest["headline"],
    }


def show_run(run: PastRun) -> None:
    """Print the origin of a run, its settings, results, curves and files, worded as on its page."""
    print_result(relative(run.directory))
    origin = origin_of(run)
    for name, value in origin["facts"]:
        print_result(f"{name:<24} {value}")
    for name, command in origin["commands"]:
        print_result(f"{name}:")
        print_result(command)  # a line of its own, to be copied
    if origin["settings"].rows:
        print_table(origin["settings"].rich(), on_output=True)
    for table in tables_of(run.results()):
        table.cut(ROWS_SHOWN)
        found = table.rich()
        found.caption = "\n".join(filter(None, [table.note, f"and {table.more:,} more" * bool(table.more)]))
        print_table(found, on_output=True)
    lines = run.metrics()
    for name in dict.fromkeys(name for line in lines for name in line if name != "step"):
        values = [value for line in lines if (value := number(line.get(name))) is not None]
        if len(values) > 1:
            print_result(f"{name:<24} {shown(values[0])} to {shown(values[-1])}")
    print_result(f"files: {', '.join(sorted(path.name for path in run.directory.iterdir() if path.name[0] != '.'))}")


def relative(directory: Path) -> str:
    """The path relative to the current folder if the directory is inside it, otherwise the path unchanged."""
    near = os.path.relpath(directory)
    return str(directory) if near.startswith("..") else near
