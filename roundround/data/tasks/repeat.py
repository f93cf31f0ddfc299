"""Repeat."""

from __future__ import annotations

import math
from typing import final

import numpy as np

from roundround.data.tasks.base import FIRST, Example, OfSymbols, asked


@final
class Repeat(OfSymbols):
    """Repeats one symbol as often as the prompt has it: copying where only the count matters.

    <bos> x x .. x <sep> x x .. x <eos>, x drawn evenly; length is how often x stands on each side

    Kazemnejad et al. 2023, arXiv:2305.19466 (their copy with a single repeated character).
    """

    def example(self, rng: np.random.Generator, length: int) -> Example:
        x = np.full(length, FIRST + rng.integers(len(self.symbols)))
        return asked(x, x)

    def guessing_nats(self, example: Example) -> float:
        """The symbol, and after each one the end with its probability among the lengths in training."""
        shortest, longest = self.train_lengths
        return math.log(longest - shortest + 1)
