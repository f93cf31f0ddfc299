"""Rows of jsonl, json, csv, tsv and parquet files, as texts, one row at a time.

json and csv are read with the standard library: the streaming builders of `datasets` infer a type for every column
from the first block and then fail on a later one, even in columns nobody asked for, read "NA" as missing, and cannot
name the line of an error. Parquet is read with pyarrow, which `datasets` would use as well, and log a second line.
"""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from roundround.data.corpora import first_line
from roundround.data.split import decoded, lines
from roundround.support.errors import UserError
from roundround.support.files import parse_json

Row = tuple[str, Mapping[str, object]]  # where it stands in the file, for errors; its values by column
ROWS_AT_ONCE = 256  # of parquet
LONGEST_FIELD = 2**31 - 1  # characters; csv's own limit is 131,072
SHOWN = 40  # characters of a column's name in an error: of a file without a header the "names" are its first row


def read_rows(path: Path, columns: Sequence[str]) -> Iterator[str]:
    """The columns' texts of each row, joined by a newline, missing (null) ones left out. UserError names the line."""
    for where, row in READERS[path.suffix.lower()](path, columns):
        yield join_columns(f"{path}{where}", row, columns)


def join_columns(where: str, row: Mapping[str, object], columns: Sequence[str]) -> str:
    """The columns' texts joined by a newline, missing (null) ones left out."""
    check_columns(where, list(row), columns)
    parts = []
    for name in columns:
        value = row[name]
        if isinstance(value, str):
            parts.append(value)
        elif value is not None:
            raise UserError(f"{where}: column '{name}' holds {type(value).__name__}, not text; choose with data.column")
    return "\n".join(parts)


def check_columns(where: str, present: Sequence[str], columns: Sequence[str]) -> None:
    """UserError that lists the columns there are, where one is missing."""
    for name in columns:
        if name not in present:
            names = ", ".join(column if len(column) <= SHOWN else f"{column[:SHOWN]}..." for column in present)
            numbers = "; where the first line is no header, data.column=0" if where.endswith(("csv", "tsv")) else ""
            raise UserError(f"{where}: no column '{name}'; choose with data.column (there are: {names}{numbers})")


def _json_rows(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    """One object a line, or one array of objects, which has to fit in memory."""
    numbered = ((n, line) for n, line in enumerate(lines(decoded(path)), 1) if not line.isspace())
    first = next(numbered, None)
    if first is None:
        return
    if first[1].lstrip().startswith("["):
        array = _json(path, first[0], first[1] + "".join(line for _, line in numbered))
        items = ((f", item {n}", item) for n, item in enumerate(array, 1))
    else:
        items = ((f", line {n}", _json(path, n, line)) for n, line in itertools.chain([first], numbered))
    for where, item in items:
        if not isinstance(item, dict):
            raise UserError(f"{path}{where}: {type(item).__name__}, where an object with named columns is expected")
        yield where, item


def _json(path: Path, line: int, text: str) -> Any:
    try:
        return parse_json(text.rstrip())
    except ValueError as error:
        further, what = (error.lineno - 1, error.msg) if isinstance(error, json.JSONDecodeError) else (0, error)
        raise UserError(f"{path}, line {line + further}: not valid JSON ({what})") from None


def _csv_rows(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    """Comma-separated values with RFC 4180 quotes; line ends and commas may stand inside quotes."""
    return _table(path, columns, delimiter=",", quoted=True)


def _tsv_rows(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    """Tab-separated values, where a quote is an ordinary character."""
    return _table(path, columns, delimiter="\t", quoted=False)


def _table(path: Path, columns: Sequence[str], *, delimiter: str, quoted: bool) -> Iterator[Row]:
    """Rows by the header's names, or, where all columns asked for are whole numbers, by their place from 0."""
    records = _records(path, delimiter=delimiter, quoted=quoted)
    first = next(records, None)
    if first is None:
        return
    if all(name.isdecimal() for name in columns):
        header = [str(place) for place in range(len(first[1]))]
        records = itertools.chain([first], records)
    else:
        header = first[1]
    check_columns(str(path), header, columns)
    for line, fields in records:
        if len(fields) != len(header):
            raise UserError(f"{path}, line {line}: {len(fields)} fields, where the first row has {len(header)}")
        yield f", line {line}", dict(zip(header, fields, strict=True))


def _records(path: Path, *, delimiter: str, quoted: bool) -> Iterator[tuple[int, list[str]]]:
    """(line it ends on, fields) of each record that is not empty."""
    csv.field_size_limit(LONGEST_FIELD)
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    reader = csv.reader(lines(decoded(path)), delimiter=delimiter, quoting=quoting, strict=True)
    while True:
        try:
            fields = next(reader, None)
        except csv.Error as error:
            raise UserError(f"{path}, line {reader.line_num}: not a valid table ({error})") from None
        if fields is None:
            return
        if fields:
            yield reader.line_num, fields


def _parquet_rows(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    """Some rows at a time, of the columns asked for alone."""
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            check_columns(str(path), file.schema_arrow.names, columns)
            numbers = itertools.count(1)
            for batch in file.iter_batches(batch_size=ROWS_AT_ONCE, columns=list(columns)):
                for row in batch.to_pylist():
                    yield f", row {next(numbers)}", row
    except UserError:
        raise
    except Exception as error:
        raise _not_parquet(path, error) from None


def columns_of_parquet(path: Path) -> list[str]:
    """The names of a parquet file's columns. UserError where it is none."""
    import pyarrow.parquet

    try:
        return list(pyarrow.parquet.read_schema(path).names)
    except Exception as error:
        raise _not_parquet(path, error) from None


def _not_parquet(path: Path, error: Exception) -> UserError:
    """What is said of whatever pyarrow makes of a broken file."""
    return UserError(f"{path}: not a readable parquet file ({first_line(error)})")


READERS: Mapping[str, Callable[[Path, Sequence[str]], Iterator[Row]]] = {
    ".jsonl": _json_rows,
    ".json": _json_rows,
    ".csv": _csv_rows,
    ".tsv": _tsv_rows,
    ".parquet": _parquet_rows,
}
