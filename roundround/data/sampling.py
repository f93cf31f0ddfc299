"""Which windows a training run reads: a pure function of the seed and the number of the window in the run.

Tested by tests/data/test_batches.py and tests/data/test_shards.py.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from roundround.support.errors import UserError

Items = NDArray[np.int64]
GROUP = 16  # shards whose windows are shuffled together: up to 700 MiB of text, and a GiB where there are more


@dataclass(frozen=True)
class Group:
    """Shards that are shuffled together. first: the item of the training run that is its first window."""

    epoch: int
    number: int
    shards: tuple[int, ...]
    first: int
    n_windows: int
    n_offsets: int


class WindowSampler:
    """Where the windows of a global batch begin: one permutation of disjoint windows after another.

    In epoch e the stream is cut, from an offset drawn below `length`, into n_windows windows whose inputs are
    disjoint, and these are visited in the order of a permutation; both are drawn from `default_rng([seed, e])`. Item i
    of the training run is window i % n_windows of epoch i // n_windows, so nothing but (seed, i) decides it.

    A corpus of more than `GROUP` shards is visited in groups: the shards in an order drawn for the epoch, and those of
    group g one after another as a stream of its own, drawn from `default_rng([seed, e, g])`, which for g = 0 is the
    generator above. So memory and the files at hand are those of a group, however large the corpus. The permutations
    used last are kept here.
    """

    def __init__(self, n_tokens: int | Sequence[int], *, seed: int, length: int) -> None:
        if length < 1 or seed < 0:
            raise ValueError(f"length is {length} and seed is {seed}: whole numbers from 1 and from 0 are allowed")
        self.sizes = [n_tokens] if isinstance(n_tokens, int) else list(n_tokens)
        self.seed, self.length = seed, length
        self.n_groups = max(1, -(-len(self.sizes) // GROUP))
        self._groups: list[Group] = []  # of the epochs so far, one after another
        if self.group_of(0).n_windows == 0:
            raise UserError(
                f"the training documents make {sum(self.sizes):,} tokens, fewer than the {length + 1:,} of one window; "
                f"give more text, or train on shorter windows"
            )
        self._permutations: dict[tuple[int, int], tuple[int, NDArray[np.uint32]]] = {}

    def locate(self, items: Items) -> Iterator[tuple[NDArray[np.int64], Group, NDArray[np.int64]]]:
        """Where items of the training run lie: for each group, which of them, and their first tokens in its stream."""
        groups = [self.group_of(int(item)) for item in items]
        for group in dict.fromkeys(groups):
            rows = np.asarray([row for row, other in enumerate(groups) if other == group])
            offset, order = self._permutation(group)
            yield rows, group, offset + order[items[rows] - group.first].astype(np.int64) * self.length

    def group_of(self, item: int) -> Group:
        """The group in which an item of the training run lies."""
        if self.n_groups == 1:  # all epochs are alike
            group = self._group(0, 0, tuple(range(len(self.sizes))), 0)
            epoch = item // max(1, group.n_windows)
            return self._group(epoch, 0, group.shards, epoch * group.n_windows)
        while not self._groups or item >= self._groups[-1].first + self._groups[-1].n_windows > 0:
            self._add_epoch()
        return self._groups[bisect_right(self._groups, item, key=lambda group: group.first) - 1]

    def n_windows(self) -> int:
        """Windows of the first epoch; others have as many but for a few."""
        first = self.group_of(0)
        return sum(group.n_windows for group in self._groups[: self.n_groups] or [first])

    def after(self, group: Group) -> Group:
        """The group that comes next."""
        return self.group_of(group.first + group.n_windows)

    def _add_epoch(self) -> None:
        epoch = len(self._groups) // self.n_groups
        order = np.random.default_rng([self.seed, epoch, 0, 1]).permutation(len(self.sizes))
        first = self._groups[-1].first + self._groups[-1].n_windows if self._groups else 0
        for number, shards in enumerate(np.array_split(order, self.n_groups)):
            self._groups.append(self._group(epoch, number, tuple(shards.tolist()), first))
            first += self._groups[-1].n_windows

    def _group(self, epoch: int, number: int, shards: tuple[int, ...], first: int) -> Group:
        n_tokens, length = sum(self.sizes[shard] for shard in shards), self.length
        n_windows = max(min(1, n_tokens // (length + 1)), n_tokens // length - 1)
        return Group(epoch, number, shards, first, n_windows, min(length, n_tokens - n_windows * length))

    def _permutation(self, group: Group) -> tuple[int, NDArray[np.uint32]]:
        key = (group.epoch, group.number)
        if key not in self._permutations:
            rng = np.random.default_rng([self.seed, group.epoch, group.number])
            offset = int(rng.integers(group.n_offsets))
            self._permutations[key] = offset, rng.permutation(np.arange(group.n_windows, dtype=np.uint32))
            for old in list(self._permutations)[:-2]:
                del self._permutations[old]
        return self._permutations[key]


class Mixer:
    """Which source an item of the training run comes from, and which of its items it is.

    In every aligned 1,000 items a source has its share, rounded down or up. Down or up is decided by systematic
    sampling (Madow 1949): the fractional parts of the shares of 1,000, laid end to end, are met by the points
    u, u + 1, ... where u of the thousands is a sequence spread evenly over [0, 1) (Weyl's, of the golden ratio), so
    that the mean over many is the share itself. The order within a thousand is drawn from (seed, thousand).
    """

    BLOCK = 1000
    GOLDEN = 0.6180339887498949
    AT_ONCE = 1 << 16  # blocks that are counted together

    def __init__(self, shares: Sequence[float], *, seed: int) -> None:
        wanted = np.asarray(shares) * self.BLOCK
        self.seed, self.whole = seed, np.floor(wanted + 1e-9).astype(np.int64)
        ends = np.cumsum(np.maximum(0, wanted - self.whole))
        ends[-1] = self.BLOCK - self.whole.sum()  # a whole number, whatever the rounding of the sum
        self._ends = np.concatenate([[0], ends])
        self._before = 0, np.zeros(len(wanted), np.int64)  # a block, and the items of each source before it

    def items(self, items: Items) -> tuple[NDArray[np.int64], Items]:
        """(the source, the number among its own items) of each item."""
        sources, numbers = np.empty_like(items), np.empty_like(items)
        for block in np.unique(items // self.BLOCK):
            rows = np.flatnonzero(items // self.BLOCK == block)
            order, before = self._order(int(block)), self._counts_before(int(block))
            offsets = items[rows] % self.BLOCK
            sources[rows] = order[offsets]
            for source in np.unique(order[offsets]):
                rank = np.cumsum(order == source) - 1
                mine = rows[order[offsets] == source]
                numbers[mine] = before[source] + rank[items[mine] % self.BLOCK]
        return sources, numbers

    def _counts(self, first: int, end: int) -> NDArray[np.int64]:
        """Items of each source in these blocks together."""
        u = (self.GOLDEN * np.arange(first, end)) % 1.0
        met = np.floor(self._ends[:, None] + u).sum(1).astype(np.int64)
        total: NDArray[np.int64] = self.whole * (end - first) + np.diff(met)
        return total

    def _order(self, block: int) -> NDArray[np.int64]:
        sources = np.repeat(np.arange(len(self.whole)), self._counts(block, block + 1))
        return np.random.default_rng([self.seed, block, 0, 2]).permutation(sources)

    def _counts_before(self, block: int) -> NDArray[np.int64]:
        known, counts = self._before if self._before[0] <= block else (0, np.zeros_like(self.whole))
        for first in range(known, block, self.AT_ONCE):
            counts = counts + self._counts(first, min(first + self.AT_ONCE, block))
        self._before = block, counts
        return counts
