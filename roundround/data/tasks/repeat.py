"""Repeat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np

from roundround.data.tasks.base import FIRST, Example, Task, asked, numbered


@final
class Repeat(Task):
    """Says one symbol as often as it stood there, which is copying where nothing but the number is to be found.

    <bos> x x .. x <sep> x x .. x <eos>, x drawn evenly of `n_symbols`; length is how often x stands on each side

    Kazemnejad et al. 2023, arXiv:2305.19466 (their copy with a single repeated character).
    """

    def __init__(
        self, *, n_symbols: int, train_lengths: Sequence[int], train_examples: int | None, validation_examples: int
    ) -> None:
        super().__init__(
            symbols=numbered(n_symbols),
            train_lengths=train_lengths,
            train_examples=train_examples,
            validation_examples=validation_examples,
        )

    def example(self, rng: np.random.Generator, length: int) -> Example:
        x = np.full(length, FIRST + rng.integers(len(self.symbols)))
        return asked(x, x)
