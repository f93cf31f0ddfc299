"""`roundround runs`: a list of the past runs, newest first.

Modules that are slow to import are imported when the verb runs. Tested by tests/analysis/test_runs_and_show.py.
"""

from __future__ import annotations

import json
from itertools import islice

from roundround.config.verb import PAST, Verb
from roundround.support.errors import UserError, nearest

FORMATS = ("table", "json")

VERB = Verb(
    name="runs",
    run="roundround.verbs.runs:runs",
    order=10,
    purpose=PAST,
    help="List past runs, newest first.",
    more="RUN is a folder of runs, or a pattern in quotes; by default, all under outputs. Every other KEY=VALUE "
    "chooses the runs that have this setting, such as pe=p_rope or optim.lr=1e-3.",
    reads={
        "verb": ("", "only runs of this verb: train, eval, ...; by default of any"),
        "status": ("", "one or several, with commas, of done, running, interrupted, failed and died; by default any"),
        "since": ("", "only runs started since then: 90m, 2d, 1w, or a date such as 2026-11-20; by default all"),
        "limit": ("30", "how many to show at most, or all"),
        "format": ("table", "table or json"),
        "outputs": ("outputs", "the root of all run directories"),
    },
)


def runs(names: list[str], values: dict[str, str]) -> None:
    """Print the runs that pass every filter. If no run is named, all runs under `outputs` are considered."""
    from roundround.analysis.past_run import Filters, directories_of_all, runs_in
    from roundround.report.lab_book import as_record, show_runs
    from roundround.support.console import print_result, print_status

    outputs, given = values.pop("outputs", "outputs"), values.pop("limit", VERB.reads["limit"][0])
    if given != "all" and not given.isdecimal():
        raise UserError(f"limit={given}: give a whole number, or all")
    limit = None if given == "all" else int(given)
    form = values.pop("format", "table")
    if form not in FORMATS:
        raise UserError(f"no format={form}{nearest(form, FORMATS)}")
    filters = Filters(values)
    directories = directories_of_all(names, outputs)
    damaged: list[tuple[str, str]] = []
    found = list(islice(runs_in(directories, filters, damaged), limit))
    if len(found) != limit:  # all have been seen
        filters.check()
    if form == "json":
        print_result(json.dumps([as_record(run) for run in found]))
    else:
        show_runs(found, n_runs=len(directories), all_seen=len(found) != limit)
    for _, why in damaged:
        print_status(f"passed over: {why}")
