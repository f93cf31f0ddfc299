"""Tables of comma-separated values: the metrics of `metrics.jsonl` and the records of `results.json`.

Tested by tests/records/test_loggers.py.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

from roundround.records.directories import METRICS
from roundround.records.loggers.base import Logger, columns_of
from roundround.support.files import write_atomically


@final
class CSV(Logger):
    """Tables in the run directory, metrics.csv and results.csv, with a column a name and an empty cell for no value."""

    def __init__(self) -> None:
        self.columns: list[str] = []  # of metrics.csv, once it is known to hold every line of metrics.jsonl

    def start(self, directory: Path, manifest: dict[str, Any]) -> None:
        self.directory = directory

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        row = {"step": step, **metrics}
        if not row.keys() <= set(self.columns):  # the first row, or one with a new column
            self.forget_after(step)
            return
        with open(self.directory / "metrics.csv", "a", encoding="utf-8", newline="") as file:
            csv.DictWriter(file, self.columns, lineterminator="\n").writerow(row)

    def forget_after(self, step: int) -> None:
        """Write metrics.csv anew from metrics.jsonl, which is the truth: nothing is lost, torn or doubled."""
        source, path = self.directory / METRICS, self.directory / "metrics.csv"
        rows = [json.loads(line) for line in source.read_text("utf-8").splitlines()] if source.exists() else []
        self.columns = columns_of(rows)
        if rows:
            write_table(path, rows)
        else:
            path.unlink(missing_ok=True)

    def results(self, records: Sequence[Mapping[str, Any]]) -> None:
        write_table(self.directory / "results.csv", records)


def write_table(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Replace a file by a table with its header. Numbers are written in full: they are read back to the last bit."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns_of(rows), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(path, text.getvalue())
