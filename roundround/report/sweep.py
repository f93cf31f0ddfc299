"""The outcome of a sweep: a table of its runs by swept settings, a page with all their curves, the next command.

A run that measures the model of another run has the settings of that run too.

Tested by tests/report/test_sweep.py.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from roundround.analysis.past_run import PastRun, direction
from roundround.records.directories import PAGE, jobs_of_sweep
from roundround.report.comparison import AXES, panels_of
from roundround.report.drawing.tables import Table, filled, in_words, number
from roundround.report.eval_panels import OF_A_PART
from roundround.report.lab_book import relative
from roundround.report.page.view import Section, html
from roundround.report.train_panels import logged
from roundround.support.console import print_status, print_table
from roundround.support.files import write_atomically
from roundround.support.panels import Curve, Panel, numbers
from roundround.verbs import verb_named

MOST_ROWS = 40  # of the table in a terminal
REASONS = 3  # why jobs failed
PANELS = 12  # of the page
LOGGED = {  # of a training, by step: what the page overlays
    "held_out_nats_per_token": "held-out loss (nats per token)",
    "loss": "training loss",
    "held_out_exact_match": "exact match, held out",
}


def show_sweep(directory: Path, failures: Mapping[int, str], n_jobs: int) -> None:
    """Print how a sweep ended. failures: why a job failed, by its number."""
    runs = runs_of(directory)
    if runs:
        table = table_of(runs)
        table.cut(MOST_ROWS)
        print_table(table.rich(), first_to_leave=[*table.columns[:0:-1]])
        if table.more:
            print_status(f"and {table.more:,} more runs: roundround runs {shlex.quote(relative(directory))} limit=all")
    if failures:
        print_status(f"{len(failures):,} of {n_jobs:,} jobs failed: {reasons(failures)}")
    if runs and len(failures) < n_jobs:
        write_sweep_page(directory, directory / PAGE)
        print_status(f"page: {relative(directory / PAGE)}")
        for what, command in next_commands(directory, runs):
            print_status(f"{what}: {command}")


def reasons(failures: Mapping[int, str]) -> str:
    """Each reason once, with the numbers of its jobs."""
    jobs: dict[str, list[int]] = {}
    for job, why in sorted(failures.items()):
        jobs.setdefault(why.removeprefix("failed: ").partition(" (traceback")[0], []).append(job)
    listed = [f"{why} (job {', '.join(map(str, some))})" for why, some in jobs.items()]
    more = f"; and {len(listed) - REASONS:,} other reasons" if len(listed) > REASONS else ""
    return "; ".join(listed[:REASONS]) + more


def runs_of(directory: Path) -> list[PastRun]:
    """The runs of a sweep in the order of their jobs."""
    found = [PastRun(path, manifest) for path, manifest in jobs_of_sweep(directory)]
    return sorted(found, key=lambda run: (len(run.directory.name), run.directory.name))


def next_commands(directory: Path, runs: Sequence[PastRun]) -> list[tuple[str, str]]:
    """Commands that often follow such runs: in words, and as they are typed."""
    name = shlex.quote(relative(directory))
    trained = [run.train_lengths[1] for run in runs if run.train_lengths]
    lengths = ",".join(str(times * max(trained)) for times in (1, 2, 4)) if trained else ""
    evaluate = ("evaluate each run", f"roundround eval run={name} length={lengths}")
    compare = ("compare them", f"roundround compare {name}")
    return [evaluate] * bool(trained) + [compare] * verb_named(runs[0].verb).measures


def swept(runs: Sequence[PastRun]) -> list[dict[str, str]]:
    """The settings given to each run that differ between the runs."""
    given = []
    for run in runs:
        words = [*(run.measured.manifest["overrides"] if run.measured else []), *run.manifest["overrides"]]
        given.append({key: value for key, _, value in (word.partition("=") for word in words) if key != "run"})
    keys = dict.fromkeys(key for words in given for key in words)
    varying = [key for key in keys if len({words.get(key) for words in given}) > 1]
    return [{key: words.get(key, "") for key in varying} for words in given]


def styles(runs: Sequence[PastRun]) -> list[dict[str, str]]:
    """The settings that give the curve of each run its colour: without the seed, unless only the seed was swept."""
    settings = swept(runs)
    others = [{key: value for key, value in own.items() if key != "seed"} for own in settings]
    return others if others[0] else settings


def table_of(runs: Sequence[PastRun]) -> Table:
    """A row for each run: its job, what was swept, how it ended unless all are done, its headline numbers."""
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
    panels = [panel for panel in [*curves_by_step(runs), *curves_by_length(runs)] if panel.drawn]
    if len(panels) > PANELS:
        remarks.append(f"{PANELS} of {len(panels):,} panels are drawn")
    pages = {"pages": [run.directory.name for run in runs if (run.directory / PAGE).exists()], "page": PAGE}
    part = "runs.html.j2" if pages["pages"] else None
    results = Section("Runs", tables=[table_of(runs)], part=part, values=pages)
    statuses = {run.directory.name: run.status.partition(":")[0] for run in runs}
    unfinished = [job for job, status in statuses.items() if status != "done"]
    if unfinished:
        remarks.append(f"not done: {len(unfinished):,} of {len(runs):,} runs (job {', '.join(unfinished)})")
    settings = swept(runs)
    varied = {key: ", ".join(dict.fromkeys(own[key] for own in settings)) for key in settings[0]}
    given = [list(word.partition("=")[::2]) for word in runs[0].manifest["overrides"]]
    shared = [[key, value] for key, value in given if key not in (*varied, "run")]
    started = runs[0].started.isoformat(sep=" ", timespec="seconds")
    values = {
        "title": f"Sweep of {verb_named(runs[0].verb).name}",
        "subject": "; ".join(f"{key}: {listed}" for key, listed in varied.items()),
        "status": statuses[unfinished[0]] if unfinished else "done",
        "findings": [],
        "remarks": remarks,
        "headline": [("runs", f"{len(runs):,}")],
        "scope": ["Each run has lines of its own; compare takes means over runs, with intervals and tests."],
        "data": None,
        "facts": [("directory", str(directory)), ("started", started)],
        "commands": next_commands(directory, runs),
        "settings": Table("Given to all runs alike", ["setting", "value"], shared),
        "config": [],
        "common": [],
    }
    write_atomically(to, html(values, [Section("Curves", panels=panels[:PANELS]), results]))


def curves_by_step(runs: Sequence[PastRun]) -> list[Panel]:
    """The numbers that training logs, a curve for each run."""
    lines = [run.metrics() if run.verb == "train" else [] for run in runs]
    found: list[Panel] = []
    for name, label in LOGGED.items():
        curves = [(own, logged(some, name, "")[0]) for own, some in zip(styles(runs), lines, strict=True)]
        drawn: list[tuple[dict[str, Any], Curve]] = [(own, curve) for own, curve in curves if np.size(curve.x)]
        share = "match" in name
        ends = (0.0, 1.0 if share else None)
        found += panels_of(drawn, label.capitalize(), ("step", label), possible=ends, whole=share)
    return found


def curves_by_length(runs: Sequence[PastRun]) -> list[Panel]:
    """The first number that says how good a model is against context length: means over the seeds within a run.

    A curve for each run, and for each of several normalisers on one model. Parts of a task are left out.
    """
    judged = [[r for r in run.results() if direction(r["metric"]) and not OF_A_PART & r.keys()] for run in runs]
    for axis, label in AXES.items():
        found = [[record for record in some if number(record.get(axis)) is not None] for some in judged]
        metric = next((record["metric"] for some in found for record in some), "")
        curves, ticks = [], set[float]()
        for own, some in zip(styles(runs), found, strict=True):
            lines: dict[Any, dict[float, list[float | None]]] = {}
            for record in some:
                if record["metric"] == metric:
                    points = lines.setdefault(record.get("softmax"), {})
                    points.setdefault(record[axis], []).append(number(record["value"]))
            for softmax, points in lines.items():
                ticks |= points.keys()
                curve = Curve("", sorted(points), [float(numbers(points[x]).mean()) for x in sorted(points)])
                curves.append((own | ({"softmax": softmax} if len(lines) > 1 else {}), curve))
        if len(ticks) > 1:
            words, log = in_words(metric), "x" if min(ticks) > 0 else ""
            ends = (0.0, None)
            return panels_of(curves, words.capitalize(), (label, words), log=log, x_ticks=sorted(ticks), possible=ends)
    return []
