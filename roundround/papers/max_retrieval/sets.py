"""The sets of max retrieval, drawn fresh: each a pure function of a seed, and of the step or of the set's number.

An item is a priority from U(0, 1) and a class; the answer to a set is the class of the item of the largest priority.
The query is a number from U(0, 1) without information.
Velickovic et al. 2024, arXiv:2410.01104, appendix A.

Shapes: S seeds, B sets, N items.

Tested by tests/papers/test_retrieval_sets.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

TRAINING, SIZES, TEST, FITTING, SIZES_OF_SETS = range(5)  # streams of random numbers
STEPS_AT_ONCE = 64  # whose random numbers are drawn together, which is cheaper
ITEMS_AT_ONCE = 2**14  # of evaluation: with 128 channels 8 MiB of float32


@dataclass(frozen=True)
class Sets:
    """Sets of up to N items for each of S seeds."""

    priorities_SBN: Tensor  # float32
    classes_SBN: Tensor  # int64
    queries_SB: Tensor  # float32
    present_SBN: Tensor | None = None  # bool; None where all sets have N items

    @property
    def largest_SB(self) -> Tensor:
        """The place of the item of the largest priority."""
        priorities = self.priorities_SBN
        if self.present_SBN is not None:
            priorities = priorities.masked_fill(~self.present_SBN, -1.0)
        return priorities.argmax(-1)

    @property
    def answers_SB(self) -> Tensor:
        """The class of the item of the largest priority."""
        return self.classes_SBN.gather(-1, self.largest_SB[..., None])[..., 0]

    def to(self, device: torch.device) -> Sets:
        moved = (self.priorities_SBN, self.classes_SBN, self.queries_SB, self.present_SBN)
        return Sets(*(None if x is None else x.to(device) for x in moved))  # type: ignore[arg-type]


class TrainingSets:
    """The batch of each step, the same for a seed whether it trains alone or among others.

    A step's sets have one size, uniform in n_min..n_max and the same for all seeds, which therefore share the order of
    sizes and nothing else; or with `size_of_each_set` each set draws its own.
    """

    def __init__(
        self,
        seeds: Sequence[int],
        *,
        batch_size: int,
        n_min: int,
        n_max: int,
        n_classes: int,
        size_of_each_set: bool = False,
    ) -> None:
        self.seeds, self.batch_size, self.n_min, self.n_max = list(seeds), batch_size, n_min, n_max
        self.n_classes, self.size_of_each_set = n_classes, size_of_each_set
        self._block = -1

    def batch(self, step: int) -> Sets:
        """The sets of the step-th update, counted from 0."""
        block, place = divmod(step, STEPS_AT_ONCE)
        if block != self._block:
            self._draw(block)
            self._block = block
        if self.size_of_each_set:
            n_SB1 = self._sizes_of_sets[:, place, :, None]
            present = torch.arange(self.n_max) < n_SB1
            return Sets(self._priorities[:, place], self._classes[:, place], self._queries[:, place], present)
        n = self._sizes[place]
        return Sets(
            self._priorities[:, place, :, :n].contiguous(),
            self._classes[:, place, :, :n].contiguous(),
            self._queries[:, place],
        )

    def _draw(self, block: int) -> None:
        shape = (STEPS_AT_ONCE, self.batch_size, self.n_max)
        drawn = [draw(np.random.default_rng([TRAINING, seed, block]), shape, self.n_classes) for seed in self.seeds]
        priorities, classes, queries = zip(*drawn, strict=True)
        self._priorities, self._classes = stacked(priorities), stacked(classes).long()
        self._queries = stacked(queries)
        among = (self.n_min, self.n_max + 1)
        self._sizes = np.random.default_rng([SIZES, block]).integers(*among, STEPS_AT_ONCE).tolist()
        if self.size_of_each_set:
            rngs = [np.random.default_rng([SIZES_OF_SETS, seed, block]) for seed in self.seeds]
            self._sizes_of_sets = stacked([rng.integers(*among, shape[:2]) for rng in rngs])


def sets_of_size(seed: int, *, n: int, n_sets: int, n_classes: int, stream: int) -> Iterator[Sets]:
    """Sets of n items for one seed, a block at a time; S is 1. Each set depends on seed, n, stream and its number."""
    at_once = max(1, ITEMS_AT_ONCE // n)
    for block, first in enumerate(range(0, n_sets, at_once)):
        rng = np.random.default_rng([stream, seed, n, block])
        drawn = draw(rng, (at_once, n), n_classes)
        priorities, classes, queries = (torch.from_numpy(x[: n_sets - first])[None] for x in drawn)
        yield Sets(priorities, classes.long(), queries)


def draw(
    rng: np.random.Generator, shape: tuple[int, ...], n_classes: int
) -> tuple[NDArray[np.float32], NDArray[np.uint8], NDArray[np.float32]]:
    """Priorities and classes of this shape, and queries without its last axis."""
    return (
        rng.random(shape, dtype=np.float32),
        rng.integers(n_classes, size=shape, dtype=np.uint8),
        rng.random(shape[:-1], dtype=np.float32),
    )


def stacked(arrays: Sequence[NDArray[np.generic]]) -> Tensor:
    return torch.from_numpy(np.stack(arrays))
