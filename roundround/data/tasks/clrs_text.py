"""CLRS-Text: the thirty algorithms of a textbook, of which a model writes the steps and the result."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Self

import numpy as np

from roundround.data.tasks.base import LONGEST, Task
from roundround.data.tasks.clrs_sizes import SIZES, lengths_in_test, lengths_in_training
from roundround.data.tasks.text_task import TextTask
from roundround.support.errors import UserError, nearest


class ClrsText(TextTask):
    """Runs an algorithm step by step: the name and the input, then the trace and the output, as text.

    insertion_sort: key: [.2 .1], initial_trace: [.2 .1] trace | pred: -> [.2 .1] | [.1 .2]; length is the input's items

    Markeeva et al. 2024, arXiv:2406.04229; Velickovic et al. 2025, arXiv:2410.01104, section 5.

    algorithms: some of the thirty; None, all. lengths: those in training, of every algorithm; None, the paper's, which
    each algorithm has its own of. In training every algorithm with each of its lengths is as likely. All of the answer
    is scored, the trace too; `output_match` counts what follows the last " | " alone, given the right trace.
    """

    def __init__(
        self,
        *,
        algorithms: Sequence[str] | None,
        lengths: Sequence[int] | None,
        train_examples: int | None,
        validation_examples: int,
    ) -> None:
        self.algorithms, self.lengths = known(algorithms), None if lengths is None else sorted(set(lengths))
        self._set_pairs()
        every = [length for _, length in self.pairs]
        super().__init__(
            train_lengths=[min(every), max(every)],
            train_examples=train_examples,
            validation_examples=validation_examples,
        )

    def output_at(self, answer: str) -> int:
        return answer.rfind(" | ") + 3 if " | " in answer else 0  # segments_intersect has no trace

    def groups(self) -> dict[str, Task]:
        """One task for each algorithm."""
        return {name: self.only(name) for name in self.algorithms}

    def only(self, algorithm: str) -> Self:
        """This task with one of its algorithms."""
        one = copy.copy(self)
        one.algorithms = [algorithm]
        one._set_pairs()
        one._train_lengths = one.pairs[0][1], one.pairs[-1][1]
        return one

    def train_length(self, rng: np.random.Generator) -> int:
        """A length as often as algorithms are trained on it."""
        return self.pairs[rng.integers(len(self.pairs))][1]

    def check_length(self, length: int, what: str) -> None:
        for name in self.algorithms:
            shortest = SIZES[name].shortest
            if length < shortest:
                raise UserError(f"{what}={length} is shorter than the smallest length of {name}, {shortest}")
        super().check_length(length, what)

    def test_lengths(self) -> Sequence[int]:
        return sorted({length for name in self.algorithms for length in lengths_in_test(name)})

    def _set_pairs(self) -> None:
        """The pairs of an algorithm and a length in training, the algorithms' lengths ascending."""
        self.shortest = min(SIZES[name].shortest for name in self.algorithms)
        self.pairs = [(name, length) for name in self.algorithms for length in self.lengths_of(name)]

    def lengths_of(self, algorithm: str) -> Sequence[int]:
        """The algorithm's lengths in training. ValueError where it has none so short."""
        if self.lengths is None:
            return lengths_in_training(algorithm)
        shortest = SIZES[algorithm].shortest
        if not self.lengths or not shortest <= self.lengths[0] <= self.lengths[-1] <= LONGEST:
            raise ValueError(
                f"lengths is {self.lengths}: some from {shortest} ({algorithm}) to {LONGEST:,}, or null, are allowed"
            )
        return self.lengths

    def algorithm(self, rng: np.random.Generator, length: int) -> str:
        """One of the algorithms that are trained on a length, or of all where none is."""
        trained = [name for name, of_pair in self.pairs if of_pair == length] or self.algorithms
        return trained[rng.integers(len(trained))]


def known(algorithms: Sequence[str] | None) -> list[str]:
    """The names in alphabetical order, once each; all thirty for None. ValueError where one is unknown."""
    if algorithms is None:
        return list(SIZES)
    if not algorithms:
        raise ValueError("algorithms is []: at least one name, or null for all thirty, is needed")
    for name in algorithms:
        if name not in SIZES:
            raise ValueError(f"algorithms has '{name}'{nearest(name, SIZES)}")
    return sorted(set(algorithms))
