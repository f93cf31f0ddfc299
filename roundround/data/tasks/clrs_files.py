"""CLRS-Text from local files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import final

from roundround.data.corpora import reading
from roundround.data.rows import READERS, check_columns, columns_of_parquet
from roundround.data.tasks.clrs_stored import COLUMNS, LENGTH, Rows, StoredClrsText, table, text_of
from roundround.data.tasks.text_task import Text
from roundround.data.text import TextFiles
from roundround.support.errors import UserError
from roundround.support.files import sha256


@final
class ClrsTextFiles(StoredClrsText):
    """Rows of jsonl, json, csv, tsv and parquet files with the columns of the authors' data sets, held in memory.

    path: files, folders and globs; test_path: those with the test, where `path` has it not.

    Markeeva et al. 2024, arXiv:2406.04229.
    """

    def __init__(
        self,
        *,
        path: list[str],
        test_path: list[str] | None,
        algorithms: list[str] | None,
        lengths: list[int] | None,
        train_examples: int | None,
        validation_examples: int,
    ) -> None:
        super().__init__(
            algorithms=algorithms,
            lengths=lengths,
            train_examples=train_examples,
            validation_examples=validation_examples,
        )
        paths = {"train": path} | ({} if test_path is None else {"test": test_path})
        self.files = {which: files_at(path) for which, path in paths.items()}

    def origin(self) -> dict[str, object]:
        hashes = {}
        for which, files in self.files.items():
            with reading(which):
                hashes[which] = [[path.suffix.lower(), sha256(path)] for path in files.files()]
        return {"files": hashes, "pairs": self.pairs}

    def read(self, which: str) -> Rows | None:
        if which not in self.files:
            return None
        paths, texts = self.files[which].files(), list[Text]()
        where = str(paths[0]) if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"
        return table(where, rows_of(paths, texts), texts.__getitem__)


def files_at(path: list[str]) -> TextFiles:
    """Expands paths, and finds what cannot be read, as data=text does."""
    return TextFiles(path=path, column=list(COLUMNS), split_regex=None, max_chars=None, held_out=1)


def rows_of(paths: list[Path], texts: list[Text]) -> Iterator[Mapping[str, object]]:
    """The rows of files, whose texts are kept in `texts`. UserError where a file has other columns."""
    for path in paths:
        if path.suffix.lower() not in READERS:
            raise UserError(f"{path}: CLRS-Text is read from {', '.join(READERS)}, with columns {', '.join(COLUMNS)}")
        has_length = path.suffix.lower() == ".parquet" and LENGTH in columns_of_parquet(path)
        for where, row in READERS[path.suffix.lower()](path, [*COLUMNS, LENGTH] if has_length else COLUMNS):
            check_columns(f"{path}{where}", list(row), COLUMNS)
            texts.append(text_of(row, f"{path}{where}"))
            yield row
