"""Parity."""

from __future__ import annotations

from typing import final

import numpy as np

from roundround.data.tasks.base import FIRST, Example, Lengths, Task, asked

SYMBOLS = ["0", "1", "even", "odd"]
EVEN = FIRST + SYMBOLS.index("even")


@final
class Parity(Task):
    """Says whether the number of ones among the bits is even.

    <bos> b_1 .. b_n <sep> even|odd, every b drawn evenly; length is n

    Kazemnejad et al. 2023, arXiv:2305.19466, whose words around the bits are left out. There are 2^n examples: for 1 to
    4 bits a split may have no example of its own and then uses another split's, which is counted and reported.
    """

    def __init__(self, *, train_lengths: Lengths, train_examples: int | None, validation_examples: int) -> None:
        super().__init__(
            symbols=SYMBOLS,
            train_lengths=train_lengths,
            train_examples=train_examples,
            validation_examples=validation_examples,
        )

    def example(self, rng: np.random.Generator, length: int) -> Example:
        bits = rng.integers(2, size=length)
        return asked(FIRST + bits, EVEN + bits.sum(keepdims=True) % 2, end=False)
