"""Local count."""

from __future__ import annotations

from typing import final

import numpy as np

from roundround.data.tasks.base import BOS, FIRST, SEP, Example, Lengths, Task, check_range, numbered
from roundround.data.tokenizers import LARGEST_VOCABULARY


@final
class LocalCount(Task):
    """Counts the repetitions of the current symbol.

    <bos> x_1 .. x_1 <sep> r_1 x_2 .. x_2 <sep> r_2 .., r_i times x_i, x_i not x_(i-1); length is the sum of all r_i

    Vasylenko et al. 2025, arXiv:2506.16640, whose model names the count so far at every symbol, beside the sequence.
    Inside the sequence each count would reveal the next, so a count is asked for once, at the end of a run. r_i is
    drawn evenly from 2 to `longest_run`, x_i from `n_symbols`; the last run ends where the length is reached.
    """

    shortest = 2

    def __init__(
        self,
        *,
        n_symbols: int,
        longest_run: int,
        train_lengths: Lengths,
        train_examples: int | None,
        validation_examples: int,
    ) -> None:
        check_range("longest_run", longest_run, 2, LARGEST_VOCABULARY)
        super().__init__(
            symbols=[*map(str, range(1, longest_run + 1)), *numbered(n_symbols, before="x")],
            train_lengths=train_lengths,
            train_examples=train_examples,
            validation_examples=validation_examples,
        )
        self.n_symbols, self.longest_run = n_symbols, longest_run

    def example(self, rng: np.random.Generator, length: int) -> Example:
        ends = rng.integers(2, self.longest_run + 1, size=length // 2 + 1).cumsum()
        ends = ends[: np.searchsorted(ends, length) + 1]
        ends[-1] = length
        runs = ends.copy()
        runs[1:] -= ends[:-1]
        steps = rng.integers(1, self.n_symbols, size=len(runs))  # never 0: no two neighbours are the same
        steps[0] += rng.integers(self.n_symbols)
        x = FIRST + self.longest_run + steps.cumsum() % self.n_symbols
        answers = ends + 2 * np.arange(1, len(runs) + 1)
        tokens = np.full(answers[-1] + 1, BOS)
        tokens[1:] = x.repeat(runs + 2)
        tokens[answers - 1], tokens[answers] = SEP, FIRST - 1 + runs
        scored = np.zeros(len(tokens), dtype=np.bool_)
        scored[answers] = True
        return Example(tokens, scored)

    def context(self, length: int) -> int:
        return 1 + length + 2 * -(-length // 2)  # where every run is a pair
