"""Local files as a corpus: plain text of any size, and tables. All are read as streams.

json and csv are read with the standard library. The streaming builders of `datasets` infer the type of every column
from the first block, and fail if a later block differs, even in a column that is not used. They also read "NA" as
missing, and do not name the line of an error. Parquet is read with pyarrow, as in `datasets`.

Tested by tests/data/test_text_files.py and test_formats.py.
"""

from __future__ import annotations

import csv
import glob
import itertools
import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TextIO, final

from roundround.data.corpora import Corpus, compiled, fingerprint, first_line, reading
from roundround.support.console import print_status
from roundround.support.errors import UserError
from roundround.support.files import check_is_file, home_expanded, sha256

BLOCK = 1 << 22  # characters
MARGIN = 1 << 16  # characters
ROWS_AT_ONCE = 256  # the number of rows of a parquet file in memory at a time
LONGEST_FIELD = 2**31 - 1  # characters; csv's own limit is 131,072
SHOWN = 40  # characters of a column's name in an error; in a file without a header, the first row is taken for names
TABLES = (".jsonl", ".json", ".csv", ".tsv", ".parquet")
ENDINGS = (".txt", ".text", ".md", *TABLES)
Row = tuple[str, Mapping[str, Any]]  # the file and line, for errors; the values by column


@contextmanager
def text_file(path: Path) -> Iterator[TextIO]:
    """An open UTF-8 file. Line ends are read as `\\n`, a byte order mark is skipped. Raises UserError if not UTF-8."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            yield file
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}: not UTF-8 (0x{error.object[error.start]:02x}); re-encode the file, e.g. iconv -f latin1 -t utf-8"
        ) from None


def split_stream(chunks: Iterable[str], separator: re.Pattern[str], *, margin: int) -> Iterator[str]:
    """The texts between separators, as `re.split` would cut the joined chunks, but without captured groups.

    A separator is accepted only when `margin` characters after it have been read, so that unread text cannot change it.
    The result is exact if no look-ahead, look-behind or repetition of the pattern reaches further than `margin`. At
    most one document, one chunk and the margin are in memory at a time.
    """
    text, begin = "", 0  # begin: of the document
    for chunk in itertools.chain(chunks, [None]):
        text += chunk or ""
        certain = len(text) - (margin if chunk is not None else 0)
        for match in separator.finditer(text, begin):
            if match.end() > certain:
                break
            yield text[begin : match.start()]
            begin = match.end()
        cut = max(0, begin - margin)  # the text kept before the document is for look-behind
        text, begin = text[cut:], begin - cut
    yield text[begin:]


def join_columns(where: str, row: Mapping[str, Any], columns: Sequence[str]) -> str:
    """The texts of a row's columns, joined by newlines; null values are skipped. where: the row's name in errors."""
    for name in columns:
        if not isinstance(row[name], str | None):
            raise UserError(
                f"{where}: column '{name}' holds {type(row[name]).__name__}, not text; choose a column of text with "
                "data.column"
            )
    return "\n".join(row[name] for name in columns if row[name] is not None)


def check_columns(where: str, present: Sequence[str], columns: Sequence[str]) -> None:
    """Raises UserError, which lists the names in `present`, if one of `columns` is missing or occurs twice."""
    for name in columns:
        if present.count(name) != 1:
            raise UserError(
                f"{where}: there is no column '{name}', or there are two; choose one with data.column (columns: "
                f"{', '.join(column[:SHOWN] for column in present)})"
            )


def rows_of(path: Path, columns: Sequence[str], *, optional: Sequence[str] = ()) -> Iterator[Row]:
    """The rows of a table. Each row has at least `columns`, and the columns of `optional` that the table has."""
    if path.suffix.lower() == ".parquet":
        return _parquet_rows(path, columns, optional)
    return _json_rows(path, columns) if path.suffix.lower() in (".json", ".jsonl") else _table(path, columns)


def _json_rows(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    """The rows of a JSON file: one object on each line, or a single object or array, which is read as a whole."""
    with text_file(path) as file:
        numbered = ((f"{path}, line {n}", line) for n, line in enumerate(file, 1) if not line.isspace())
        where, first = next(numbered, ("", "[]"))
        if first.lstrip().startswith("[") or not first.rstrip().endswith("}"):
            whole = _json(where, first + "".join(line for _, line in numbered))
            items = enumerate(whole if isinstance(whole, list) else [whole], 1)
            rows = ((f"{path}, item {n}", item) for n, item in items)
        else:
            rows = ((where, _json(where, line)) for where, line in itertools.chain([(where, first)], numbered))
        for where, row in rows:
            check_columns(where, list(row) if isinstance(row, dict) else [], columns)
            yield where, row


def _json(where: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: not valid JSON ({error})") from None


def _table(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    """The rows of a csv or tsv file, with the header's names as the keys of a row.

    If all names in `columns` are whole numbers, the file is read as one without a header, and its columns are called
    0, 1, 2, ... A csv file is read as in RFC 4180: quoted fields can contain line ends and commas. In a tsv file a
    quote is an ordinary character.
    """
    is_csv = path.suffix.lower() == ".csv"
    csv.field_size_limit(LONGEST_FIELD)
    with text_file(path) as file:
        quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if is_csv else csv.QUOTE_NONE
        reader = csv.reader(file, delimiter="," if is_csv else "\t", quoting=quoting, strict=True)
        rows: Iterator[list[str]] = filter(None, reader)
        try:
            header = next(rows, [])
            if all(name.isdecimal() for name in columns):
                rows, header = itertools.chain([header], rows), [str(place) for place in range(len(header))]
            check_columns(str(path), header, columns)
            for fields in rows:
                if len(fields) != len(header):
                    raise csv.Error(f"this line has {len(fields)} fields, and the first row has {len(header)}")
                yield f"{path}, line {reader.line_num}", dict(zip(header, fields, strict=True))
        except csv.Error as error:
            raise UserError(f"{path}, line {reader.line_num}: not a valid table ({error})") from None


def _parquet_rows(path: Path, columns: Sequence[str], optional: Sequence[str]) -> Iterator[Row]:
    """The rows, with only the requested columns; at most `ROWS_AT_ONCE` rows are in memory at a time."""
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            check_columns(str(path), names, columns)
            wanted = [*columns, *(name for name in optional if name in names)]
            numbers = itertools.count(1)
            for batch in file.iter_batches(batch_size=ROWS_AT_ONCE, columns=wanted):
                yield from ((f"{path}, row {next(numbers)}", row) for row in batch.to_pylist())
    except pyarrow.ArrowException as error:
        raise UserError(f"{path}: not a readable parquet file ({first_line(error)})") from None


@final
class TextFiles(Corpus):
    """The documents in local files: plain text (txt, text, md) and tables (jsonl, json, csv, tsv, parquet).

    path: files, folders (with everything below them) and globs. They are read in this order; the files of a folder or
    glob are sorted by path. A printed line counts the files with unsupported endings. A file or folder that cannot
    be read is an error, and so is a pipe or device with a supported ending. Links are followed; a folder that several
    links reach is read once.

    split_regex: the separator of documents in plain text (null: each file is a document and must fit in memory). It
    does not apply to tables, where each row is a document. column: the columns of a table whose texts, joined by
    newlines, make up the document of a row; in a csv or tsv file without a header, columns are called 0, 1, 2, ...
    keep_chars: the [smallest, largest] length of documents to keep, in characters (null: all documents). max_chars: the
    number of characters to keep of each document, from its beginning (null: all). The identity is a hash of the files'
    contents, not of their names.
    """

    def __init__(
        self,
        *,
        path: list[str],
        column: list[str],
        split_regex: str | None,
        max_chars: int | None,
        held_out: float,
        keep_chars: list[int] | None = None,
        separate_documents: bool = False,
    ) -> None:
        super().__init__(held_out=held_out, separate_documents=separate_documents)
        if not all(path) or not path:
            raise ValueError("path, or an entry of it, is empty; give files, folders or globs: data.path=a.txt,folder")
        self.path, self.column, self.split_regex, self.max_chars = path, column, split_regex, max_chars
        self.keep_chars = keep_chars
        self._separator = compiled("split_regex", split_regex)

    def identity(self) -> str:
        with reading("the corpus"):
            contents = [[path.suffix.lower(), sha256(path)] for path in self.files(says=True)]
        options = [self.column, self.split_regex, self.max_chars, *([self.keep_chars] if self.keep_chars else [])]
        return fingerprint(corpus="text", held_out=self.held_out, options=options, contents=contents)

    def texts(self) -> Iterator[str]:
        fewest, most = self.keep_chars or (0, math.inf)
        for text in (text for path in self.files() for text in self._texts_of(path)):
            if fewest <= len(text) <= most:
                yield text[: self.max_chars]

    def _texts_of(self, path: Path) -> Iterator[str]:
        if path.suffix.lower() in TABLES:
            yield from (join_columns(where, row, self.column) for where, row in rows_of(path, self.column))
            return
        with text_file(path) as file:
            if self._separator is None:
                yield file.read()
            else:
                yield from split_stream(iter(lambda: file.read(BLOCK), ""), self._separator, margin=MARGIN)

    def files(self, *, says: bool = False) -> list[Path]:
        """All files, each once. Raises UserError if there is nothing to read, or if something cannot be read.

        says: whether to print which endings are left out.
        """
        found = []
        for entry in self.path:
            with reading(entry):
                found += _expand(entry, says=says)
        return list(dict.fromkeys(found))


def _expand(entry: str, *, says: bool) -> list[Path]:
    """The files of one entry of `TextFiles.path`.

    Raises UserError if there are no files to read, and OSError if a file or folder cannot be read.
    """
    path = home_expanded(entry, "data.path")
    matches = [path] if os.path.lexists(path) else list(map(Path, sorted(glob.glob(str(path), recursive=True))))
    files = [file for match in matches for file in (_below(match) if match.is_dir() else [match])]
    usable = [file for file in files if file.suffix.lower() in ENDINGS and check_is_file(file).st_size > 0]
    if not usable:
        what = "nothing to read in" if files else "there is no file, no folder and no match of a glob at"
        raise UserError(
            f"data.path: {what} '{entry}'; give files that are not empty and end in one of {', '.join(ENDINGS)}"
        )
    left_out = Counter(file.suffix or file.name for file in files if file.suffix.lower() not in ENDINGS)
    if says and left_out:
        endings = ", ".join(f"{ending} ({n:,})" for ending, n in left_out.most_common())
        print_status(
            f"{entry}: files left out because of their endings: {endings}; the endings that are read: "
            f"{', '.join(ENDINGS)}"
        )
    return usable


def _below(folder: Path) -> list[Path]:
    """The files below a folder, sorted by path, without hidden files and folders.

    A folder that several links reach is read once, under its first name. Raises OSError if a folder cannot be read.
    """
    found, entered = list[Path](), set()
    for parent, below, names in os.walk(folder, onerror=_raise, followlinks=True):
        real = os.path.realpath(parent)
        below[:] = [] if real in entered else sorted(name for name in below if not name.startswith("."))
        if real not in entered:
            found += [Path(parent, name) for name in names if not name.startswith(".")]
        entered.add(real)
    return sorted(found)


def _raise(error: OSError) -> None:
    raise error
