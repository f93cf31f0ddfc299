"""The outcome of a sweep: a table of its runs with the swept settings, a page, and the commands for the next step.

The page has the curves of the runs and compares the runs. A run that measures the model of another run counts as if it
had the settings of both runs.

Tested by tests/report/test_sweep.py.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from roundround.analysis.comparison import compare, some
from roundround.analysis.past_run import PastRun
from roundround.records.directories import PAGE, jobs_of_sweep
from roundround.report.comparison import panels_of, sections_of, summary
from roundround.report.drawing.tables import Table, filled, in_words
from roundround.report.lab_book import relative
from roundround.report.page.view import Section, html
from roundround.report.train_panels import logged
from roundround.support.console import print_status, print_table
from roundround.support.errors import UserError
from roundround.support.files import write_atomically
from roundround.support.panels import Curve, Panel
from roundround.verbs import verb_named

MOST_ROWS = 40  # of the table in a terminal
PANELS = 12  # of the page
LOGGED = {  # numbers logged in training that the page draws against the step, a curve for each run
    "held_out_nats_per_token": "held-out loss (nats per token)",
    "loss": "training loss",
    "held_out_exact_match": "exact match, held out",
}


def show_sweep(directory: Path, failures: Mapping[int, str], n_jobs: int) -> None:
    """Print how a sweep ended. failures: {number of the job: why it failed}."""
    runs = runs_of(directory)
    if runs:
        table = table_of(runs)
        table.cut(MOST_ROWS)
        print_table(table.rich(), first_to_leave=[*table.columns[:0:-1]])
        if table.more:
            print_status(f"and {table.more:,} more runs: roundround runs {shlex.quote(relative(directory))} limit=all")
    if failures:
        jobs: dict[str, list[str]] = {}  # {reason without the path of the traceback: jobs}
        for job, why in sorted(failures.items()):
            jobs.setdefault(why.removeprefix("failed: ").partition(" (traceback")[0], []).append(str(job))
        reasons = some(f"{why} (job {', '.join(own)})" for why, own in jobs.items())
        print_status(f"{len(failures):,} of {n_jobs:,} jobs failed: {reasons}")
    if runs and len(failures) < n_jobs:
        write_sweep_page(directory, directory / PAGE)
        print_status(f"page: {relative(directory / PAGE)}")
        for what, command in next_commands(directory, runs):
            print_status(f"{what}: {command}")


def runs_of(directory: Path) -> list[PastRun]:
    """The runs of a sweep in the order of their jobs."""
    found = [PastRun(path, manifest) for path, manifest in jobs_of_sweep(directory)]
    return sorted(found, key=lambda run: (len(run.directory.name), run.directory.name))


def next_commands(directory: Path, runs: Sequence[PastRun]) -> list[tuple[str, str]]:
    """(description, command) of the steps that often follow a sweep: to evaluate its runs and to compare them."""
    name = shlex.quote(relative(directory))
    trained = [run.train_lengths[1] for run in runs if run.train_lengths]
    lengths = ",".join(str(times * max(trained)) for times in (1, 2, 4)) if trained else ""
    found = [("evaluate each run", f"roundround eval run={name} length={lengths}")] if trained else []
    return [*found, ("compare them", f"roundround compare {name}")] if verb_named(runs[0].verb).measures else found


def swept(runs: Sequence[PastRun]) -> list[dict[str, str]]:
    """For each run, the settings from the command line that differ between the runs."""
    given = []
    for run in runs:
        words = [*(run.measured.manifest["overrides"] if run.measured else []), *run.manifest["overrides"]]
        given.append({key: value for key, _, value in (word.partition("=") for word in words) if key != "run"})
    keys = dict.fromkeys(key for words in given for key in words)
    varying = [key for key in keys if len({words.get(key) for words in given}) > 1]
    return [{key: words.get(key, "") for key in varying} for words in given]


def table_of(runs: Sequence[PastRun]) -> Table:
    """A row for each run: its job, its swept settings, its status (unless all are done) and its headline numbers."""
    settings = swept(runs)
    headlines = [run.manifest["headline"] for run in runs]
    statuses = [run.status.partition(":")[0] for run in runs]
    names = dict.fromkeys(name for headline in headlines for name in headline)
    columns: list[tuple[str, list[Any]]] = [
        ("job", [run.directory.name for run in runs]),
        *((key, [own[key] for own in settings]) for key in settings[0]),
        ("status", statuses if {*statuses} != {"done"} else [""] * len(runs)),
        *((in_words(name), [headline.get(name) for headline in headlines]) for name in names),
    ]
    verb = verb_named(runs[0].verb)
    return filled(f"{verb.name}, {len(runs):,} run{'s' * (len(runs) > 1)}", columns, names=1 + len(settings[0]))


# -- the page


def write_sweep_page(directory: Path, to: Path) -> None:
    """Write the page of a sweep."""
    runs = runs_of(directory)
    remarks: list[str] = []
    sections = [Section("Curves of each run", panels=curves_by_step(runs)), *compared(directory, remarks)]
    pages = {"pages": [run.directory.name for run in runs if (run.directory / PAGE).exists()], "page": PAGE}
    results = Section("Runs", tables=[table_of(runs)], part="runs.html.j2" if pages["pages"] else None, values=pages)
    statuses = {run.directory.name: run.status.partition(":")[0] for run in runs}
    unfinished = [job for job, status in statuses.items() if status != "done"]
    if unfinished:
        remarks.append(f"not done: {len(unfinished):,} of {len(runs):,} runs (job {', '.join(unfinished)})")
    settings = swept(runs)
    varied = {key: ", ".join(dict.fromkeys(own[key] for own in settings)) for key in settings[0]}
    given = [list(word.partition("=")[::2]) for word in runs[0].manifest["overrides"]]
    shared = [[key, value] for key, value in given if key not in (*varied, "run")]
    values = {
        "title": f"Sweep of {verb_named(runs[0].verb).name}",
        "subject": "; ".join(f"{key}: {listed}" for key, listed in varied.items()),
        "status": statuses[unfinished[0]] if unfinished else "done",
        "findings": [],
        "remarks": remarks,
        "headline": [("runs", f"{len(runs):,}")],
        "scope": ["Curves by step show each run; tables and curves by length show means over seeds."],
        "data": None,
        "facts": [
            ("directory", str(directory)),
            ("started", runs[0].started.isoformat(sep=" ", timespec="seconds")),
        ],
        "commands": next_commands(directory, runs),
        "settings": Table("Given to all runs", ["setting", "value"], shared),
        "config": [],
        "common": [],
    }
    write_atomically(to, html(values, [*sections, results]))


def compared(directory: Path, remarks: list[str]) -> list[Section]:
    """`compare`'s sections for the runs: tables and panels of means over seeds. Empty if `compare` raises UserError."""
    try:
        found = compare(directory)
    except UserError:
        return []
    remarks += found.remarks
    return sections_of([{**record, "value": record["mean"]} for record in found.table], summary(found, []), remarks)


def curves_by_step(runs: Sequence[PastRun]) -> list[Panel]:
    """A panel for each number that is logged in training, with a curve for each run."""
    lines = [run.metrics() if run.verb == "train" else [] for run in runs]
    settings = swept(runs)
    others = [{key: value for key, value in own.items() if key != "seed"} for own in settings]  # all seeds look alike
    styles = others if others[0] else settings
    found: list[Panel] = []
    for name, label in LOGGED.items():
        curves = [(own, logged(line, name, "")[0]) for own, line in zip(styles, lines, strict=True)]
        drawn: list[tuple[dict[str, Any], Curve]] = [(own, curve) for own, curve in curves if np.size(curve.x)]
        share = "match" in name
        ends = (0.0, 1.0 if share else None)
        found += panels_of(drawn, label.capitalize(), ("step", label), possible=ends, whole=share)
    return [panel for panel in found if panel.drawn]
