"""Local files as a corpus.

Tested by tests/data/test_text_files.py.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from pathlib import Path
from typing import final

from roundround.data.corpora import Corpus, compiled, fingerprint, reading
from roundround.data.formats import MARGIN, READERS, decoded, read_rows, split_stream
from roundround.support.errors import UserError
from roundround.support.files import check_is_file, home_expanded, sha256

PLAIN = (".txt", ".text", ".md")
ENDINGS = (*PLAIN, *READERS)


@final
class TextFiles(Corpus):
    """Files, folders (with all below them) and globs, in the order given, each one's files by path.

    Nothing that looks like text is left out silently: a link to nothing, a file or folder that cannot be read, and a
    pipe or device with a supported ending are errors. Links are followed, each linked folder once.

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
            contents = [[path.suffix.lower(), sha256(path)] for path in self.files()]
        options = [self.column, self.split_regex, self.max_chars, *([self.keep_chars] if self.keep_chars else [])]
        return fingerprint(corpus="text", held_out=self.held_out, options=options, contents=contents)

    def texts(self) -> Iterator[str]:
        for path in self.files():
            for text in self._texts_of(path):
                if self.keep_chars is not None and not self.keep_chars[0] <= len(text) <= self.keep_chars[1]:
                    continue
                yield text if self.max_chars is None else text[: self.max_chars]

    def files(self) -> list[Path]:
        """Every file, once. UserError where there is nothing to read, or where something cannot be read."""
        found = []
        for entry in self.path:
            with reading(entry):
                found += _expand(entry)
        return list(dict.fromkeys(found))

    def _texts_of(self, path: Path) -> Iterator[str]:
        if path.suffix.lower() in READERS:
            return read_rows(path, self.column)
        if self._separator is None:
            return iter(["".join(decoded(path))])
        return split_stream(decoded(path), self._separator, margin=MARGIN)


def _expand(entry: str) -> list[Path]:
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
