"""A corpus of given texts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

from roundround.data.corpora import Corpus, fingerprint


@final
class Listed(Corpus):
    """Given texts; counts how often it was read and may fail at the end."""

    def __init__(self, texts: list[str], *, held_out: float = 0.1, error: Exception | None = None) -> None:
        super().__init__(held_out=held_out)
        self.listed, self.error, self.n_reads = texts, error, 0

    def identity(self) -> str:
        return fingerprint(texts=self.listed, held_out=self.held_out)

    def texts(self) -> Iterator[str]:
        self.n_reads += 1
        yield from self.listed
        if self.error is not None:
            raise self.error
