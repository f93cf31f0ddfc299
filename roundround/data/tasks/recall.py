"""Recall at a distance."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Self, final

import numpy as np

from roundround.data.tasks.base import BOS, FIRST, LONGEST, Example, Task, check_range, numbered
from roundround.support.errors import UserError

FILLER = FIRST
MOST_KINDS = 512  # of keys, and of values: their product is the number of items


@final
class Recall(Task):
    """Recalls the value of a key whose item stands among filler, a chosen distance before the query.

    <bos> _ kv _ _ kv .. k_1 k_2 .. k_q _, v_i is the target at k_i, q is n_queries; length is all tokens

    Associative recall as in Arora et al. 2023, arXiv:2312.04927, reduced to the search by meaning: an item is a single
    token with a key and a value, so that one head finds it by its key, without a head that attends to the previous
    token, and a model without positions can do it too. Keys differ, values may repeat, the positions of items are drawn
    evenly, and no answer stands in the sequence. The test divides its examples among `distances`, the tokens from the
    first query back to its item; there only the first query is scored.
    """

    def __init__(
        self,
        *,
        n_keys: int,
        n_values: int,
        n_items: int,
        n_queries: int,
        distances: Sequence[int],
        train_lengths: Sequence[int],
        train_examples: int | None,
        validation_examples: int,
    ) -> None:
        check_range("n_keys", n_keys, 1, MOST_KINDS)
        check_range("n_values", n_values, 2, MOST_KINDS)
        check_range("n_items", n_items, 1, n_keys, because=f"n_keys={n_keys}")
        check_range("n_queries", n_queries, 1, n_items, because=f"n_items={n_items}")
        for distance in distances:
            check_range("distances", distance, 1, LONGEST)
        self.n_keys, self.n_values, self.n_items, self.n_queries = n_keys, n_values, n_items, n_queries
        self.distances = sorted(set(distances))
        self._distance: int | None = None
        self.shortest = n_items + n_queries + 2
        items = [f"k{key}v{value}" for key in range(n_keys) for value in range(n_values)]
        super().__init__(
            symbols=["_", *numbered(n_keys, fewest=1, before="k"), *numbered(n_values, before="v"), *items],
            train_lengths=train_lengths,
            train_examples=train_examples,
            validation_examples=validation_examples,
        )

    def groups(self) -> dict[str, Task]:
        """A task for each distance."""
        return {str(distance): self.at(distance) for distance in self.distances}

    def part(self) -> str:
        return "distance"

    def at(self, distance: int) -> Self:
        """This task with the first query's item that many tokens before the query; only that query is scored."""
        one = copy.copy(self)
        one._distance = distance
        return one

    def test_lengths(self) -> Sequence[int] | None:
        """For a task at one distance: the lengths that have room for it."""
        if self._distance is None:
            return None
        return range(max(self.shortest, self._distance + self.n_queries + 2), LONGEST + 1)

    def check_length(self, length: int, what: str) -> None:
        super().check_length(length, what)
        if self.distances and not any(length in (part.test_lengths() or ()) for part in self.groups().values()):
            raise UserError(f"{what}={length} has no room for any of data.distances={self.distances}")

    def example(self, rng: np.random.Generator, length: int) -> Example:
        first = length - self.n_queries - 1  # position of the first query; positions 1 to first - 1 are for items
        keys = rng.choice(self.n_keys, self.n_items, replace=False)
        values = rng.integers(self.n_values, size=self.n_items)
        places = 1 + rng.choice(first - 1, self.n_items, replace=False)
        asked_at = first + np.arange(self.n_queries)
        if self._distance is not None:  # the first item is swapped with what stood there
            places[places == first - self._distance] = places[0]
            places[0] = first - self._distance
            asked_at = asked_at[:1]
        tokens = np.full(length, FILLER)
        tokens[0] = BOS
        tokens[places] = FIRST + 1 + self.n_keys + self.n_values + keys * self.n_values + values
        tokens[first : first + self.n_queries] = FIRST + 1 + keys[: self.n_queries]
        answers, scored = tokens.copy(), np.zeros(length, dtype=np.bool_)
        answers[asked_at + 1] = FIRST + 1 + self.n_keys + values[: len(asked_at)]
        scored[asked_at + 1] = True
        return Example(tokens, scored, answers)

    def guessing_nats(self, example: Example) -> float:
        """The value of one of the items, at each query."""
        item = FIRST + 1 + self.n_keys + self.n_values
        there = (example.tokens[example.tokens >= item] - item) % self.n_values
        asked = example.targets[example.scored] - (FIRST + 1 + self.n_keys)
        return -sum(math.log((there == value).mean()) for value in asked)
