"""Measurements that somebody else made: a csv or jsonl file of settings, seed, metric, length, value.

A row is one number. `value` is needed; `metric` (else "value"), `seed`, `verb` and the places `length`, `n`, `task` and
`texts` mean what they mean in `results.json`; every other column is a setting.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from roundround.analysis.past_run import SIZES, is_number
from roundround.analysis.trials import PLACES, Cell, Trial
from roundround.config.recorded import flat
from roundround.runs.identity import cell
from roundround.support.errors import UserError, one_line, printable
from roundround.support.files import parse_json, read_text

ENDINGS = (".csv", ".jsonl")
OF_THE_NUMBER = ("metric", "value", "seed", "verb", *PLACES)


def trials_of(path: Path) -> list[Trial]:
    """The trials of a file. UserError for a file that cannot be read, a row without a number, and one that is twice."""
    trials: dict[tuple[Any, ...], Trial] = {}
    lines: dict[tuple[Any, ...], int] = {}
    for line, found in rows_of(path):
        row = {key: item if key == "value" else cell(item) for key, item in found.items()}
        for key in ("value", *SIZES):
            if not is_number(row.get(key)) and (key == "value" or row.get(key) is not None):
                raise UserError(f"{path}, line {line}: {key}={printable(str(row[key]), 40)} must be a finite number")
        value, settings = row["value"], {key: item for key, item in row.items() if key not in OF_THE_NUMBER}
        which = (row.get("verb"), row.get("seed"), *settings.items())
        trial = trials.setdefault(which, Trial(row.get("verb"), settings, row.get("seed"), str(path)))
        place = tuple((key, row[key]) for key in sorted(PLACES) if row.get(key) is not None)
        where: Cell = str(row.get("metric") or "value"), place
        first = lines.setdefault((which, where), line)
        if trial.numbers.setdefault(where, float(value)) != value:
            raise UserError(
                f"{path}, lines {first} and {line}: two values of {where[0]} for the same settings, seed and place; "
                "tell them apart by a column"
            )
    if not trials:
        raise UserError(f"{path} has no row with a value")
    return list(trials.values())


def rows_of(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows of a file by their columns, each with its line. UserError where it cannot be read."""
    try:
        text = read_text(path).removeprefix("\ufeff")
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {one_line(error)}") from error
    yield from rows_of_jsonl(path, text) if path.suffix == ".jsonl" else rows_of_csv(path, text)


def rows_of_jsonl(path: Path, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = parse_json(line, object_pairs_hook=named_once)
        except ValueError as error:
            raise UserError(f"{path}, line {number}: no json: {one_line(error)}") from error
        if not isinstance(row, dict) or "value" not in row:
            raise UserError(
                f"{path}, line {number}: a row names a value: metric, value, seed, length, and its settings"
            )
        settings = row.pop("settings", None)
        own, nested = flat(row), flat(settings) if isinstance(settings, dict) else {}
        if both := own.keys() & nested.keys():
            raise UserError(f"{path}, line {number}: {min(both)} stands in settings and beside it; leave one out")
        yield number, own | nested


def named_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of json. ValueError for a key that it has twice, of which Python keeps the last one."""
    for key, _ in pairs:
        if sum(key == other for other, _ in pairs) > 1:
            raise ValueError(f"it has the key {key} twice")
    return dict(pairs)


def rows_of_csv(path: Path, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        columns = list(reader.fieldnames or [])
        if "value" not in columns:
            raise UserError(f"{path} has no column 'value'; its columns are {', '.join(columns)}")
        for name in columns:
            if not name or columns.count(name) > 1:
                wrong = f"the column {name} twice" if name else "a column without a name"
                raise UserError(f"{path} has {wrong}; leave one out")
        for row in reader:
            if None in row or None in row.values():
                raise UserError(f"{path}, line {reader.line_num}: not as many cells as there are columns")
            yield reader.line_num, {key: read(item) for key, item in row.items()}
    except csv.Error as error:
        raise UserError(f"{path}, line {reader.line_num}: {one_line(error)}") from error


def read(text: str) -> Any:
    """A cell as a number where it is one, as None where it is empty; 1_000, which Python takes, is text."""
    text = text.strip()
    if re.fullmatch(r"[+-]?[0-9]{1,20}", text):
        return int(text)
    if text.isascii() and "_" not in text:
        with suppress(ValueError):
            return float(text)
    return text or None
