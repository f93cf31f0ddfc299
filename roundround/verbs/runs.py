"""`roundround runs`: the runs there are, newest first."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from roundround.analysis.choosing import directories_of_all
from roundround.analysis.filters import Filters, filters_of
from roundround.analysis.past_run import PastRun, past_run
from roundround.report import lab_book as report
from roundround.support.console import print_result, print_status
from roundround.support.errors import UserError, nearest

FORMATS = ("table", "json")
LIMIT = "30"  # a table of ten thousand is no answer


def runs(names: list[str], values: dict[str, str]) -> None:
    """Print the runs that are named, or all under `outputs`, as far as they pass every filter."""
    outputs, limit = values.pop("outputs", "outputs"), limit_of(values.pop("limit", LIMIT))
    form = values.pop("format", "table")
    if form not in FORMATS:
        raise UserError(f"no format={form}{nearest(form, FORMATS)}")
    filters = filters_of(values)
    directories = directories_of_all(names, outputs)
    damaged: list[str] = []
    passing = taken(directories, filters, damaged)
    found = list(islice(passing, limit))
    if len(found) != limit:  # all have been seen
        filters.check()
    if form == "json":
        print_result(json.dumps([report.as_record(run) for run in found]))
    else:
        report.show_runs(found, n_runs=len(directories), all_seen=len(found) != limit)
    for line in damaged:
        print_status(f"passed over: {line}")


def taken(directories: list[Path], filters: Filters, damaged: list[str]) -> Iterator[PastRun]:
    """The runs that pass the filters, read one at a time; a line for each that is damaged."""
    for directory in directories:
        try:
            run = past_run(directory)
        except UserError as error:
            damaged.append(str(error))
            continue
        if filters.take(run):
            yield run


def limit_of(text: str) -> int | None:
    """How many runs are shown; None for all."""
    if text == "all":
        return None
    if not text.isascii() or not text.isdecimal() or not 0 < int(text) < 10**9:
        raise UserError(f"limit={text}: give a whole number from 1 on, or all")
    return int(text)
