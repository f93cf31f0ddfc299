"""Data sets of the Hugging Face hub as a corpus."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, final

from roundround.data.corpora import Corpus, compiled, fingerprint, first_line
from roundround.data.network import cached_commit, hub_is_reachable, offline
from roundround.data.rows import check_columns, join_columns
from roundround.errors import UserError

ROWS_AT_ONCE = 256
COMMIT = re.compile(r"[0-9a-f]{40}")


@final
class Hub(Corpus):
    """Any data set of the hub: the texts of `column`, joined by a newline, row by row.

    `revision` (null: the newest) is resolved to a commit, which is part of the identity; a full commit id needs no
    network for that. `streaming` reads without keeping a copy. `document_start` (null: a row is a document) is a
    regular expression: a row in which it is found begins a document and the rows up to the next one belong to it.
    `shuffle_seed` (null: as stored) shuffles rows, or, when streaming, files and then rows within a small buffer.
    `max_documents` (null: all) stops early.
    """

    def __init__(
        self,
        *,
        name: str,
        config: str | None,
        split: str,
        column: list[str],
        revision: str | None,
        streaming: bool,
        document_start: str | None,
        shuffle_seed: int | None,
        max_documents: int | None,
        held_out: float,
    ) -> None:
        super().__init__(held_out=held_out)
        if not column:
            raise ValueError("column is []: at least one column's name is needed")
        if max_documents is not None and max_documents < 2:
            raise ValueError(f"max_documents is {max_documents}: a whole number from 2, or null for all, is allowed")
        if document_start is not None and shuffle_seed is not None:
            raise ValueError(f"shuffle_seed is {shuffle_seed}: null is needed where document_start joins rows in order")
        self.name, self.config, self.split, self.column, self.revision = name, config, split, column, revision
        self.streaming, self.shuffle_seed, self.max_documents = streaming, shuffle_seed, max_documents
        self.document_start = document_start
        self._start = compiled("document_start", document_start)
        self._commit: str | None = None

    def identity(self) -> str:
        order = None if self.shuffle_seed is None else [self.shuffle_seed, self.streaming]
        options = [self.config, self.split, self.column, self.document_start, self.max_documents, order]
        return fingerprint(corpus="hub", held_out=self.held_out, name=self.name, commit=self.commit(), options=options)

    def texts(self) -> Iterator[str]:
        rows = self._rows()
        documents = rows if self._start is None else join_rows(rows, self._start)
        return itertools.islice((text for text in documents if text and not text.isspace()), self.max_documents)

    def commit(self) -> str:
        """The commit that `revision` stands for: asked of the hub, or else of the local cache. UserError."""
        if self._commit is None:
            fixed = self.revision is not None and COMMIT.fullmatch(self.revision)
            self._commit = self.revision if fixed else self._resolve()
        assert self._commit is not None
        return self._commit

    def _resolve(self) -> str:
        from huggingface_hub import HfApi, errors

        if not hub_is_reachable():
            cached = cached_commit(self.name, self.revision)
            if cached is None:
                raise self._unreachable()
            return cached
        try:
            return str(HfApi().dataset_info(self.name, revision=self.revision).sha)
        except errors.RevisionNotFoundError:
            raise UserError(f"data set '{self.name}' has no revision '{self.revision}'; set data.revision") from None
        except (errors.RepositoryNotFoundError, errors.HFValidationError):
            raise UserError(
                f"no data set '{self.name}' on the Hugging Face hub, or it is private: check data.name, or log in"
            ) from None
        except errors.HfHubHTTPError as error:
            raise UserError(f"data set '{self.name}': the hub refuses ({first_line(error)})") from None

    def _unreachable(self) -> UserError:
        return UserError(
            f"data set '{self.name}': the Hugging Face hub cannot be reached and no copy is cached here; without a "
            f"network use data=pydoc, or data=text data.path=FILE for local files, or a copy cached by an earlier run"
        )

    def _rows(self) -> Iterator[str]:
        rows = self._open()
        if self.shuffle_seed is not None:
            rows = rows.shuffle(seed=self.shuffle_seed)
        for batch in rows.select_columns(self.column).iter(batch_size=ROWS_AT_ONCE):
            for values in zip(*(batch[name] for name in self.column), strict=True):
                yield join_columns(self.name, dict(zip(self.column, values, strict=True)), self.column)

    def _open(self) -> Any:
        """The `Dataset`, or `IterableDataset` when streaming. UserError where config, split or column is wrong."""
        import datasets

        commit = self.commit()
        if not sys.stderr.isatty():
            datasets.disable_progress_bars()
        try:
            rows = self._load(commit, streaming=self.streaming) if hub_is_reachable() else self._load_cached(commit)
        except UserError:
            raise
        except Exception as error:  # the libraries' errors differ between versions; each has one telling line
            raise UserError(f"data set '{self.name}': {first_line(error)}") from None
        check_columns(f"data set '{self.name}'", rows.column_names or list(next(iter(rows))), self.column)
        return rows

    def _load(self, commit: str, *, streaming: bool) -> Any:
        import datasets

        return datasets.load_dataset(self.name, self.config, split=self.split, revision=commit, streaming=streaming)

    def _load_cached(self, commit: str) -> Any:
        """What an earlier run without streaming left; its folder is named by the commit."""
        if self.streaming and self.shuffle_seed is not None:
            raise self._unreachable()  # the copy would be shuffled otherwise
        try:
            with offline():
                rows = self._load(commit, streaming=False)
        except (OSError, ValueError):
            raise self._unreachable() from None
        cached = {Path(file["filename"]).parent.name for file in rows.cache_files}
        if cached != {commit}:
            raise UserError(
                f"data set '{self.name}': the cached copy is of another commit; set data.revision={cached.pop()}"
            )
        return rows


def join_rows(rows: Iterable[str], start: re.Pattern[str]) -> Iterator[str]:
    """Documents made of the rows from one in which `start` is found up to the next, a line end between them."""
    document: list[str] = []
    for row in rows:
        if document and start.search(row):
            yield "\n".join(document)
            document = []
        document.append(row.removesuffix("\n"))
    if document:
        yield "\n".join(document)
