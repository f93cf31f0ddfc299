"""Local files as a corpus, and their formats, read as streams: plain text of any size, rows of tables.

json and csv are read with the standard library: the streaming builders of `datasets` infer a type for every column
from the first block and then fail on a later one, even in columns nobody asked for, read "NA" as missing, and cannot
name the line of an error. Parquet is read with pyarrow, which `datasets` would use as well, and log a second line.

Tested by tests/data/test_text_files.py and test_formats.py.
"""

from __future__ import annotations

import codecs
import csv
import glob
import io
import itertools
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, final

from roundround.data.corpora import Corpus, compiled, fingerprint, first_line, reading
from roundround.support.console import print_status
from roundround.support.errors import UserError
from roundround.support.files import check_is_file, home_expanded, parse_json, sha256

BLOCK_BYTES = 1 << 22
MARGIN = 1 << 16  # characters
UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)  # how such a file begins; one without has a NUL in most characters
Row = tuple[str, Mapping[str, object]]  # where it stands in the file, for errors; its values by column
ROWS_AT_ONCE = 256  # of parquet
LONGEST_FIELD = 2**31 - 1  # characters; csv's own limit is 131,072
SHOWN = 40  # characters of a column's name in an error: of a file without a header the "names" are its first row


def decoded(path: Path) -> Iterator[str]:
    """A UTF-8 file in pieces, line ends made `\\n`, a byte order mark dropped. UserError names file and byte offset."""
    decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8-sig")(), translate=True)
    n_read = 0
    with path.open("rb") as file:
        block = b"start"
        while block:
            block = file.read(BLOCK_BYTES)
            if 3 * block.count(0) > len(block) or (n_read == 0 and block.startswith(UTF_16)):
                raise UserError(f"{path}: UTF-16, or no text; re-encode the file, e.g. iconv -f utf-16 -t utf-8")
            n_read += len(block)
            try:
                text = decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                offset = n_read - len(error.object) + error.start
                raise UserError(
                    f"{path}: byte {offset} (0x{error.object[error.start]:02x}) is not UTF-8; re-encode the file, "
                    f"e.g. iconv -f latin1 -t utf-8"
                ) from None
            yield text


def lines(chunks: Iterable[str]) -> Iterator[str]:
    """Lines with their `\\n`, cut at that character alone (str.splitlines would cut at ten others too)."""
    rest = ""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split("\n")
        for line in whole:
            yield line + "\n"
    if rest:
        yield rest


def split_stream(chunks: Iterable[str], separator: re.Pattern[str], *, margin: int) -> Iterator[str]:
    """What lies between the separators, as `re.split` would cut the joined chunks, groups aside.

    A separator is only accepted when `margin` characters after it have been read, so that text not yet read cannot
    change it: exact as long as no decision (a look-ahead, the length of a run) hangs on more than that, and no
    look-behind reaches further. Memory: the longest document, a chunk and the margin.
    """
    text, begin, scan, used = "", 0, 0, -1  # begin: of the document; scan: settled up to here; used: an empty separator
    for chunk in itertools.chain(chunks, [None]):
        text += chunk or ""
        settled, whole = len(text) - (margin if chunk is not None else 0), []
        while (found := _first(separator, text, scan, used)) and found.end() <= settled:
            whole.append(text[begin : found.start()])
            begin = scan = found.end()
            used = scan if found.start() == scan else -1
        yield from whole
        scan = max(scan, min(settled, found.start() if found else settled))
        cut = max(0, begin - margin)  # what stays in front is for look-behind
        text, begin, scan, used = text[cut:], begin - cut, scan - cut, used - cut
    yield text[begin:]


def _first(separator: re.Pattern[str], text: str, scan: int, used: int) -> re.Match[str] | None:
    """The first match from `scan` on that is not the empty one already used there."""
    return next((found for found in separator.finditer(text, scan) if found.span() != (used, used)), None)


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
        if list(present).count(name) > 1:
            raise UserError(f"{where}: the column '{name}' is there twice; name each column once")
        if name not in present:
            names = ", ".join(column if len(column) <= SHOWN else f"{column[:SHOWN]}..." for column in present)
            numbers = "; where the first line is no header, data.column=0" if where.endswith(("csv", "tsv")) else ""
            raise UserError(f"{where}: no column '{name}'; choose with data.column (there are: {names}{numbers})")


def _json_rows(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    """One object a line; or one object or array of objects over several lines, which has to fit in memory."""
    numbered = ((n, line) for n, line in enumerate(lines(decoded(path)), 1) if not line.isspace())
    first = next(numbered, None)
    if first is None:
        return
    if first[1].lstrip().startswith("[") or not first[1].rstrip().endswith("}"):
        whole = _json(path, first[0], first[1] + "".join(line for _, line in numbered))
        items = ((f", item {n}", item) for n, item in enumerate(whole if isinstance(whole, list) else [whole], 1))
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
    try:
        for fields in reader:
            if fields:
                yield reader.line_num, fields
    except csv.Error as error:
        raise UserError(f"{path}, line {reader.line_num}: not a valid table ({error})") from None


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
    """The error for a file that pyarrow cannot read."""
    return UserError(f"{path}: not a readable parquet file ({first_line(error)})")


READERS: Mapping[str, Callable[[Path, Sequence[str]], Iterator[Row]]] = {
    ".jsonl": _json_rows,
    ".json": _json_rows,
    ".csv": partial(_table, delimiter=",", quoted=True),  # as RFC 4180: quotes may hold line ends and commas
    ".tsv": partial(_table, delimiter="\t", quoted=False),  # where a quote is an ordinary character
    ".parquet": _parquet_rows,
}


PLAIN = (".txt", ".text", ".md")
ENDINGS = (*PLAIN, *READERS)


@final
class TextFiles(Corpus):
    """Files, folders (with all below them) and globs, in the order given, each one's files by path.

    Nothing is left out silently: a line counts the files whose ending is not read, and a link to nothing, a file or
    folder that cannot be read, and a pipe or device with a supported ending are errors. Links are followed, each linked
    folder once.

    Plain text (txt, text, md) is cut into documents at `split_regex` (null: one document a file, which has to fit in
    memory). A row of jsonl, json, csv, tsv or parquet is a document: the texts of its columns, joined by a newline;
    `split_regex` leaves rows whole. Columns that are whole numbers count, from 0, those of a csv or tsv file without
    a header line. `keep_chars` keeps documents of [fewest, most] characters and leaves the others out (null: all);
    `max_chars` then keeps the first characters of each (null: all). The identity hashes the files' contents, not their
    names.
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
        if not path or not all(entry.strip() for entry in path):
            raise ValueError("path is empty, or an entry of it; give files, folders or globs: data.path=a.txt,folder")
        if not column:
            raise ValueError("column is []: at least one column's name is needed")
        if max_chars is not None and max_chars < 1:
            raise ValueError(f"max_chars is {max_chars}: a whole number from 1, or null for all, is allowed")
        if keep_chars is not None and not (len(keep_chars) == 2 and 0 <= keep_chars[0] <= keep_chars[1]):
            raise ValueError(f"keep_chars is {keep_chars}: [fewest, most] characters, such as [300,1500], is allowed")
        self.path, self.column, self.split_regex, self.max_chars = path, column, split_regex, max_chars
        self.keep_chars = keep_chars
        self._separator = compiled("split_regex", split_regex)

    def identity(self) -> str:
        with reading("the corpus"):
            contents = [[path.suffix.lower(), sha256(path)] for path in self.files(tell=True)]
        options = [self.column, self.split_regex, self.max_chars, *([self.keep_chars] if self.keep_chars else [])]
        return fingerprint(corpus="text", held_out=self.held_out, options=options, contents=contents)

    def texts(self) -> Iterator[str]:
        for path in self.files():
            texts: Iterable[str]
            if path.suffix.lower() in READERS:
                rows = READERS[path.suffix.lower()](path, self.column)
                texts = (join_columns(f"{path}{where}", row, self.column) for where, row in rows)
            elif self._separator is None:
                texts = ["".join(decoded(path))]
            else:
                texts = split_stream(decoded(path), self._separator, margin=MARGIN)
            for text in texts:
                if self.keep_chars is not None and not self.keep_chars[0] <= len(text) <= self.keep_chars[1]:
                    continue
                yield text if self.max_chars is None else text[: self.max_chars]

    def files(self, *, tell: bool = False) -> list[Path]:
        """Every file, once. UserError where there is nothing to read, or where something cannot be read.

        tell: print which endings are left out.
        """
        found = []
        for entry in self.path:
            with reading(entry):
                found += _expand(entry, tell=tell)
        return list(dict.fromkeys(found))


def _expand(entry: str, *, tell: bool) -> list[Path]:
    """The files that one entry of `path` stands for; one that is named itself has to have a text. OSError."""
    path = home_expanded(entry, "data.path")
    if not path.is_dir() and os.path.lexists(path):
        if path.suffix.lower() not in ENDINGS:
            raise UserError(f"{path}: ending '{path.suffix}' is not supported (supported: {', '.join(ENDINGS)})")
        if check_is_file(path).st_size == 0:
            raise UserError(f"{path} is empty; name a file with text in data.path")
        return [path]
    matches = [path] if path.is_dir() else [Path(match) for match in sorted(glob.glob(str(path), recursive=True))]
    if not matches:
        raise UserError(f"data.path: no file, folder or glob match at '{entry}'")
    files = [file for match in matches for file in (_below(match) if match.is_dir() else [match])]
    usable = [file for file in files if file.suffix.lower() in ENDINGS and check_is_file(file).st_size > 0]
    if not usable:
        raise UserError(f"data.path: nothing to read in '{entry}' (supported, where not empty: {', '.join(ENDINGS)})")
    left_out = Counter(file.suffix or file.name for file in files if file.suffix.lower() not in ENDINGS)
    if tell and left_out:
        endings = ", ".join(f"{ending} ({n:,})" for ending, n in left_out.most_common())
        print_status(f"{entry}: left out, because of the ending: {endings}; read are {', '.join(ENDINGS)}")
    return usable


def _below(folder: Path) -> list[Path]:
    """The files below a folder by path, hidden ones and those in hidden folders aside. OSError.

    A folder that links lead to again is entered under the first of its names alone.
    """
    found, entered = [], set()
    for parent, below, names in os.walk(folder, onerror=_raise, followlinks=True):
        real = os.path.realpath(parent)
        below[:] = [] if real in entered else sorted(name for name in below if not name.startswith("."))
        if real not in entered:
            found += [Path(parent, name) for name in names if not name.startswith(".")]
        entered.add(real)
    for path in found:
        if path.is_symlink():
            path.stat()  # a link to nothing may have stood for a folder of texts
    return sorted(found)


def _raise(error: OSError) -> None:
    raise error
