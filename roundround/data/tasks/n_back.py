"""N-back."""

from __future__ import annotations

from typing import final

import numpy as np

from roundround.data.tasks.base import BOS, FIRST, Example, Lengths, Task, check_range, numbered


@final
class NBack(Task):
    """At every symbol, names the symbol a fixed number of places before it.

    <bos> x_1 y_1 .. x_n y_n, y_t = x_(t - steps) and . up to t = steps; length is n, every x drawn evenly

    Vasylenko et al. 2025, arXiv:2506.16640 (2Back), where y_t is predicted at x_t and is not in the sequence.
    """

    def __init__(
        self,
        *,
        n_symbols: int,
        steps: int,
        train_lengths: Lengths,
        train_examples: int | None,
        validation_examples: int,
    ) -> None:
        check_range("steps", steps, 1)
        self.shortest = steps + 1
        super().__init__(
            symbols=[".", *numbered(n_symbols)],
            train_lengths=train_lengths,
            train_examples=train_examples,
            validation_examples=validation_examples,
        )
        self.steps = steps

    def example(self, rng: np.random.Generator, length: int) -> Example:
        tokens = np.full(2 * length + 1, FIRST)
        tokens[0] = BOS
        tokens[1::2] = FIRST + rng.integers(1, len(self.symbols), size=length)
        tokens[2 * self.steps + 2 :: 2] = tokens[1 : -2 * self.steps : 2]
        scored = np.zeros(len(tokens), dtype=np.bool_)
        scored[2::2] = True
        return Example(tokens, scored)

    def guessing_nats(self, example: Example) -> float:
        """One of the symbols that have not been named yet, which are the last steps + 1."""
        recent = np.lib.stride_tricks.sliding_window_view(example.tokens[1::2], self.steps + 1)
        alike = (recent == recent[:, :1]).sum(1)  # the first of them is the answer
        return float(-np.log(alike / (self.steps + 1)).sum())
