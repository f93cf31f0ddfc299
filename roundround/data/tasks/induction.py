"""Induction."""

from __future__ import annotations

import math
from typing import final

import numpy as np

from roundround.data.tasks.base import BOS, FIRST, Example, Lengths, Task, numbered

TRIGGER = FIRST


@final
class Induction(Task):
    """Completes a pattern: the token that followed the trigger the first time follows it again.

    <bos> x_1 .. x_n => x_j, where x_(j-1) is => at a place drawn evenly, and every other x drawn evenly; length is n

    Olsson et al. 2022, arXiv:2209.11895 (induction heads); the task with one trigger is that of Fu et al. 2022,
    arXiv:2212.14052, and of Gu and Dao 2023, arXiv:2312.00752. At least one token lies between x_j and the second =>.
    """

    shortest = 3

    def __init__(
        self, *, n_symbols: int, train_lengths: Lengths, train_examples: int | None, validation_examples: int
    ) -> None:
        super().__init__(
            symbols=["=>", *numbered(n_symbols)],
            train_lengths=train_lengths,
            train_examples=train_examples,
            validation_examples=validation_examples,
        )

    def example(self, rng: np.random.Generator, length: int) -> Example:
        x = FIRST + rng.integers(1, len(self.symbols), size=length)
        place = rng.integers(length - 2)
        x[place] = TRIGGER
        tokens = np.concatenate([[BOS], x, [TRIGGER, x[place + 1]]])
        return Example(tokens, np.arange(len(tokens)) == length + 2)

    def guessing_nats(self, example: Example) -> float:
        """One of the symbols in the sequence."""
        x = example.tokens[1:-2]
        return -math.log((x == example.tokens[-1]).sum() / (x != TRIGGER).sum())
