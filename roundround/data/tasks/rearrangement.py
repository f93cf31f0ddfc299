"""Tasks of symbols that differ in nothing but their number, and those that say a sequence of them again."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import final

import numpy as np

from roundround.data.tasks.base import FIRST, Example, Ids, Task, asked, nats_of_order, numbered


class OfSymbols(Task):
    """Base of tasks whose `n_symbols` symbols are all alike."""

    def __init__(
        self, *, n_symbols: int, train_lengths: Sequence[int], train_examples: int | None, validation_examples: int
    ) -> None:
        super().__init__(
            symbols=numbered(n_symbols),
            train_lengths=train_lengths,
            train_examples=train_examples,
            validation_examples=validation_examples,
        )


class Rearrangement(OfSymbols):
    """<bos> x_1 .. x_n <sep> answer(x_1 .. x_n) <eos>, every x drawn evenly; length is n."""

    @abstractmethod
    def answer(self, x: Ids) -> Ids:
        """The symbols again, [n], as token ids."""

    @final
    def example(self, rng: np.random.Generator, length: int) -> Example:
        x = FIRST + rng.integers(len(self.symbols), size=length)
        return asked(x, self.answer(x))

    @final
    def guessing_nats(self, example: Example) -> float:
        """One of the symbols that have not been said again, and the end after the last."""
        return nats_of_order(example.tokens[example.scored][:-1])
