"""Tasks whose answers consist of the symbols of the prompt.

Tested by tests/data/tasks/test_copying.py.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import final

import numpy as np

from roundround.data.tasks.base import FIRST, Example, Ids, Lengths, Task, asked, nats_of_order, numbered


class OfSymbols(Task):
    """Base of tasks with `n_symbols` symbols that all have the same role."""

    def __init__(
        self, *, n_symbols: int, train_lengths: Lengths, train_examples: int | None, validation_examples: int
    ) -> None:
        super().__init__(
            symbols=numbered(n_symbols),
            train_lengths=train_lengths,
            train_examples=train_examples,
            validation_examples=validation_examples,
        )


class Rearrangement(OfSymbols):
    """Base of tasks <bos> x_1 .. x_n <sep> answer(x_1 .. x_n) <eos>, every x drawn evenly; length is n."""

    @abstractmethod
    def answer(self, x: Ids) -> Ids:
        """The rearranged symbols, [n], as token ids."""

    @final
    def example(self, rng: np.random.Generator, length: int) -> Example:
        x = FIRST + rng.integers(len(self.symbols), size=length)
        return asked(x, self.answer(x))

    @final
    def guessing_nats(self, example: Example) -> float:
        """The guesser names the symbols of the prompt in a random order. The guesser knows where the answer ends."""
        return nats_of_order(example.tokens[example.scored][:-1])


@final
class Copy(Rearrangement):
    """Copies a sequence of symbols.

    <bos> x_1 .. x_n <sep> x_1 .. x_n <eos>, every x drawn evenly; length is n

    Kazemnejad et al. 2023, arXiv:2305.19466; Vasylenko et al. 2025, arXiv:2506.16640.
    """

    def answer(self, x: Ids) -> Ids:
        return x


@final
class Reverse(Rearrangement):
    """Writes a sequence of symbols in reverse order.

    <bos> x_1 .. x_n <sep> x_n .. x_1 <eos>, every x drawn evenly; length is n

    Vasylenko et al. 2025, arXiv:2506.16640; Kazemnejad et al. 2023, arXiv:2305.19466.
    """

    def answer(self, x: Ids) -> Ids:
        return x[::-1]


@final
class Sort(Rearrangement):
    """Sorts a sequence of symbols, repeated ones included.

    <bos> x_1 .. x_n <sep> sorted(x_1 .. x_n) <eos>, every x drawn evenly; length is n

    Vasylenko et al. 2025, arXiv:2506.16640; Kazemnejad et al. 2023, arXiv:2305.19466.
    """

    def answer(self, x: Ids) -> Ids:
        return np.sort(x)


@final
class Repeat(OfSymbols):
    """Repeats one symbol as often as the prompt has it, so that only the count matters.

    <bos> x x .. x <sep> x x .. x <eos>, x drawn evenly; length is the number of x on each side

    Kazemnejad et al. 2023, arXiv:2305.19466 (their copy with a single repeated character).
    """

    def example(self, rng: np.random.Generator, length: int) -> Example:
        x = np.full(length, FIRST + rng.integers(len(self.symbols)))
        return asked(x, x)

    def guessing_nats(self, example: Example) -> float:
        """The guesser knows the symbol, and draws the length of the answer from the lengths in training."""
        shortest, longest = self.train_lengths
        return math.log(longest - shortest + 1)
