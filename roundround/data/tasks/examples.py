"""Which examples there are: example i of a split is a pure function of (seed, split, i), and of the length asked for.

No example is of two splits: the hash of its tokens says of which it is, and the others are drawn again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from roundround.data.corpora import fingerprint
from roundround.data.tasks.base import Example, Task

SPLITS = ("train", "validation", "test")
OF_EIGHT = {"train": range(6), "validation": range(6, 7), "test": range(7, 8)}  # shares of all examples there are
MOST_DRAWS = 128  # for one example; a split that has an eighth of them is missed so often once in 3e7
IDENTIFYING = 8  # examples of each split and length that the hash of a task is taken of


class Examples:
    """The examples of a split, by number: of one length, or each of a length in training, drawn for it.

    n: how many there are, where the task has a fixed set of them, after which they begin again; None: no end of them.
    n_shared: how many of those read so far may be of another split too, because the task has too few of their length.
    """

    def __init__(self, task: Task, *, seed: int, split: str, length: int | None = None) -> None:
        self.task, self.length, self.split = task, length, OF_EIGHT[split]
        self.stored = task.stored(seed=seed, split=split, length=length)
        self.n = None if self.stored is None else self.stored.n
        self.n_shared = 0
        key: Any = np.random.SeedSequence([seed, SPLITS.index(split)]).generate_state(2, np.uint64)
        self._bits: Any = np.random.Philox(key=key)
        self._rng = np.random.Generator(self._bits)
        self._state = self._bits.state

    def __getitem__(self, i: int) -> Example:
        if self.stored is not None:
            return self.stored.at(i)
        self._go_to(i)
        length = self.task.train_length(self._rng) if self.length is None else self.length
        for _ in range(MOST_DRAWS):  # of one length, or those with few examples of this split would be rarer
            example = self.task.example(self._rng, length)
            if share_of(example) in self.split:
                return example
        self.n_shared += 1
        return example

    def _go_to(self, i: int) -> None:
        """Put the counter-based generator where the numbers of example i begin, 2^128 further for each example."""
        self._state["state"]["counter"][:] = [0, 0, i, self.length or 0]
        self._state["buffer_pos"], self._state["has_uint32"] = 4, 0  # nothing is left over from another example
        self._bits.state = self._state


def share_of(example: Example) -> int:
    """Which eighth of all examples this one is of, by the hash of its tokens."""
    return hashlib.blake2b(example.tokens.astype(np.int64).tobytes(), digest_size=1).digest()[0] % 8


def distinct(examples: Iterable[Example]) -> list[tuple[Example, int]]:
    """Each different example once, in the order of their first, with how often it is there."""
    found: dict[bytes, tuple[Example, int]] = {}
    for example in examples:
        name = example.tokens.tobytes()
        first, times = found.get(name, (example, 0))
        found[name] = first, times + 1
    return list(found.values())


def identity_of(task: Task) -> str:
    """sha256 (hex) of the task's numbers and of the first examples that it draws."""
    drawn = [
        [np.asarray(x).tolist() for x in Examples(task, seed=0, split=split, length=length)[i] if x is not None]
        for split in SPLITS
        for length in (None, *task.train_lengths)
        for i in range(IDENTIFYING)
    ]
    numbers = {"train_lengths": task.train_lengths, "train_examples": task.train_examples, "symbols": task.symbols}
    return fingerprint(task=type(task).__name__, examples=drawn, **numbers)
