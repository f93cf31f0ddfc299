"""`roundround runs`: the runs there are, newest first.

Tested by tests/analysis/test_runs_and_show.py.
"""

from __future__ import annotations

import json
from itertools import islice

from roundround.analysis.past_run import Filters, directories_of_all, runs_in
from roundround.report import lab_book as report
from roundround.support.console import print_result, print_status
from roundround.support.errors import UserError, nearest
from roundround.verbs.runs import VERB

FORMATS = ("table", "json")


def runs(names: list[str], values: dict[str, str]) -> None:
    """Print the runs that are named, or all under `outputs`, as far as they pass every filter."""
    outputs, text = values.pop("outputs", "outputs"), values.pop("limit", VERB.reads["limit"][0])
    if text != "all" and not (text.isascii() and text.isdecimal() and 0 < int(text) < 10**9):
        raise UserError(f"limit={text}: give a whole number from 1 on, or all")
    limit = None if text == "all" else int(text)
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
        print_result(json.dumps([report.as_record(run) for run in found]))
    else:
        report.show_runs(found, n_runs=len(directories), all_seen=len(found) != limit)
    for _, why in damaged:
        print_status(f"passed over: {why}")
