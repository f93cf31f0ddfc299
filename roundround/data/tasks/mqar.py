"""Multi-query associative recall."""

from __future__ import annotations

import math
from typing import final

import numpy as np

from roundround.data.tasks.base import FIRST, Example, Ids, Lengths, Task, check_range, numbered
from roundround.data.tokenizers import LARGEST_VOCABULARY


@final
class MQAR(Task):
    """Recalls the values of several keys from pairs at the beginning (multi-query associative recall).

    k_1 v_1 .. k_p v_p _ _ k_i _ .., v_i is the target at k_i, at place j by j^(power_a - 1); length is all tokens

    Arora et al. 2023, arXiv:2312.04927, as in the authors' code: the first half of the symbols is for keys, the second
    for values, both without repetition. Each key is asked for once; its value is the target and is not in the sequence.
    answers_in_sequence: each value follows its key, instead of the filler. A guesser that ignores the keys can then
    name a value not given yet: it is right for 52 % of 4. random_filler: any symbol instead of _; the paper's Figure 2
    has no such filler.
    """

    def __init__(
        self,
        *,
        n_symbols: int,
        n_pairs: int,
        power_a: float,
        answers_in_sequence: bool,
        random_filler: bool,
        train_lengths: Lengths,
        train_examples: int | None,
        validation_examples: int,
    ) -> None:
        check_range("n_symbols", n_symbols, 4, LARGEST_VOCABULARY)
        self.n_keys, self.n_values = n_symbols // 2 - 1, n_symbols - n_symbols // 2
        check_range("n_pairs", n_pairs, 1, self.n_keys, because=f"n_symbols={n_symbols} makes {self.n_keys:,} keys")
        check_range("power_a", power_a, 0, 1)
        self.shortest = 4 * n_pairs
        super().__init__(
            symbols=["_", *numbered(self.n_keys, fewest=1, before="k"), *numbered(self.n_values, before="v")],
            train_lengths=train_lengths,
            train_examples=train_examples,
            validation_examples=validation_examples,
        )
        self.n_pairs, self.power_a = n_pairs, power_a
        self.answers_in_sequence, self.random_filler = answers_in_sequence, random_filler

    def example(self, rng: np.random.Generator, length: int) -> Example:
        n = self.n_pairs
        keys = FIRST + 1 + rng.choice(self.n_keys, n, replace=False)
        values = FIRST + 1 + self.n_keys + rng.choice(self.n_values, n, replace=False)
        tokens = np.full(length, FIRST)
        if self.random_filler:
            tokens += rng.integers(len(self.symbols), size=length)
        asked_at = 2 * (n + self.query_positions(rng, length // 2 - n))
        tokens[: 2 * n : 2], tokens[1 : 2 * n : 2] = keys, values
        tokens[asked_at] = keys
        answers = tokens.copy()
        answers[asked_at + 1] = values
        scored = np.zeros(length, dtype=np.bool_)
        scored[asked_at + 1] = True
        return Example(answers, scored) if self.answers_in_sequence else Example(tokens, scored, answers)

    def guessing_nats(self, example: Example) -> float:
        """One of the values; where they stand in the sequence, one of the values not given yet."""
        p = self.n_pairs
        return math.lgamma(p + 1) if self.answers_in_sequence else p * math.log(p)

    def query_positions(self, rng: np.random.Generator, n_positions: int) -> Ids:
        """The positions of the queries, from 0, as if drawn one by one with their weights (an exponential race)."""
        slowness = np.arange(1, n_positions + 1) ** (1 - self.power_a)
        return np.argsort(rng.standard_exponential(n_positions) * slowness)[: self.n_pairs]
