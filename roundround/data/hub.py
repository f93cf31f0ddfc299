"""Data sets of the Hugging Face hub as a corpus."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from typing import final

from roundround.data.corpora import Corpus, compiled, fingerprint, in_time
from roundround.data.hub_rows import HubRows
from roundround.data.rows import join_columns

ROWS_AT_ONCE = 256


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
        separate_documents: bool = False,
    ) -> None:
        super().__init__(held_out=held_out, separate_documents=separate_documents)
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
        self._hub = HubRows(
            name=name,
            config=config,
            split=split,
            revision=revision,
            streaming=streaming,
            without_network="data=pydoc, or data=text data.path=FILE for local files",
        )

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
        return self._hub.commit()

    def _rows(self) -> Iterator[str]:
        shuffled_stream = self.streaming and self.shuffle_seed is not None  # whose order a copy would not have
        rows = self._hub.open(self.column, copy_serves=not shuffled_stream)
        if self.shuffle_seed is not None:
            rows = rows.shuffle(seed=self.shuffle_seed)
        for batch in rows.select_columns(self.column).iter(batch_size=ROWS_AT_ONCE):
            for values in zip(*(batch[name] for name in self.column), strict=True):
                yield join_columns(self.name, dict(zip(self.column, values, strict=True)), self.column)


def join_rows(rows: Iterable[str], start: re.Pattern[str]) -> Iterator[str]:
    """Documents made of the rows from one in which `start` is found up to the next, a line end between them."""
    document: list[str] = []
    for row in rows:
        with in_time(start):
            found = start.search(row)
        if document and found:
            yield "\n".join(document)
            document = []
        document.append(row.removesuffix("\n"))
    if document:
        yield "\n".join(document)
