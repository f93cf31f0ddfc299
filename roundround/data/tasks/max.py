"""Max retrieval."""

from __future__ import annotations

import math
from typing import final

import numpy as np

from roundround.data.tasks.base import FIRST, Example, Lengths, Task, asked, numbered


@final
class Max(Task):
    """Names the class of the item with the largest priority.

    <bos> p_1 c_1 .. p_n c_n <sep> c_m, m = argmax p, every c drawn evenly; length is n

    Velickovic et al. 2024, arXiv:2410.01104, whose items are vectors with priorities drawn from [0, 1] (the verb
    max-retrieval has them). Tokens would tie, and more often in longer sequences. So p_m is drawn evenly from 1 on, m
    evenly, and every other priority evenly below p_m. The gap to the next priority is at least one step, while theirs
    shrinks as 1 / n: confusing close priorities, one of that paper's errors, is not tested here.
    """

    def __init__(
        self,
        *,
        n_priorities: int,
        n_classes: int,
        train_lengths: Lengths,
        train_examples: int | None,
        validation_examples: int,
    ) -> None:
        priorities = numbered(n_priorities, name="n_priorities", before="p")
        super().__init__(
            symbols=[*priorities, *numbered(n_classes, name="n_classes", before="c")],
            train_lengths=train_lengths,
            train_examples=train_examples,
            validation_examples=validation_examples,
        )
        self.n_priorities, self.n_classes = n_priorities, n_classes

    def example(self, rng: np.random.Generator, length: int) -> Example:
        largest, place = rng.integers(1, self.n_priorities), rng.integers(length)
        items = np.empty((length, 2), dtype=np.int64)
        items[:, 0] = rng.integers(largest, size=length)
        items[place, 0] = largest
        items[:, 1] = self.n_priorities + rng.integers(self.n_classes, size=length)
        return asked(FIRST + items.ravel(), FIRST + items[place, 1:], end=False)

    def guessing_nats(self, example: Example) -> float:
        """One of the classes in the sequence."""
        return -math.log((example.tokens[2:-2:2] == example.tokens[-1]).mean())
