"""A corpus of given texts; the batch of a step over all ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

import numpy as np
from torch import Tensor

from roundround.data.batches import Tokens, Windows
from roundround.data.corpora import Corpus, fingerprint
from roundround.data.shards import Mix, TokenStream


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


def global_batch(tokens: Tokens | Mix, *, seed: int, step: int, batch_size: int, length: int) -> Tensor:
    """[batch_size, length + 1], int64."""
    return Windows(tokens, seed=seed, length=length).read(np.arange(step * batch_size, (step + 1) * batch_size))


def listed(tokens: TokenStream) -> list[int]:
    return [int(value) for value in np.asarray(tokens)]
