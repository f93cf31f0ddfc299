"""Batches of windows. In training they are a pure function of (seed, step); evaluation reads held-out text in order.

A window has length + 1 tokens: `length` inputs, and as many targets, which are the inputs shifted by one token.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from roundround.data.shards import GROUP, Mix, TokenStream
from roundround.support.errors import UserError

Items = NDArray[np.int64]


@dataclass(frozen=True)
class Group:
    """Shards whose windows are shuffled together.

    number: the index of the group in the epoch. first: the number of windows of the training run before this group.
    n_offsets: the number of positions, from 0 on, at which the first window of these shards can begin.
    """

    epoch: int
    number: int
    shards: tuple[int, ...]
    first: int
    n_windows: int
    n_offsets: int


class WindowSampler:
    """Determines where each window of a training run begins: in each epoch, disjoint windows in a random order.

    For epoch e, `default_rng([seed, e])` draws an offset below `length`, and then a permutation. From the offset on,
    the stream is cut into n_windows windows with disjoint inputs, which are visited in the order of the permutation.
    Item i of the training run is the window at position i % n_windows of epoch i // n_windows; so (seed, i) determines
    the window.

    A corpus of more than `GROUP` shards is divided into groups of shards. One group after another is visited, so that a
    run needs the memory and the files of only one group. The order of the shards is drawn for each epoch. The shards of
    group g are one stream, cut and permuted by `default_rng([seed, e, g])`; for g = 0 this equals
    `default_rng([seed, e])`.
    """

    def __init__(self, n_tokens: int | Sequence[int], *, seed: int, length: int) -> None:
        self.sizes = [n_tokens] if isinstance(n_tokens, int) else list(n_tokens)
        self.seed, self.length = seed, length
        self.n_groups = max(1, -(-len(self.sizes) // GROUP))
        self._groups: list[Group] = []  # of all epochs so far, in order
        if self.group_of(0).n_windows == 0:
            raise UserError(
                f"the training documents have {sum(self.sizes):,} tokens in all, fewer than the {length + 1:,} of one "
                "window; give more text, or train on shorter windows"
            )
        self._permutations: dict[tuple[int, int], tuple[int, NDArray[np.uint32]]] = {}

    def locate(self, items: Items) -> Iterator[tuple[NDArray[np.int64], Group, NDArray[np.int64]]]:
        """(rows, group, starts) for each group that contains some of the items.

        rows: the indices in `items` of the items of this group. starts: the positions in the group's stream at which
        the windows of these items begin.
        """
        groups = [self.group_of(int(item)) for item in items]
        for group in dict.fromkeys(groups):
            rows = np.asarray([row for row, other in enumerate(groups) if other == group])
            if (key := (group.epoch, group.number)) not in self._permutations:
                rng = np.random.default_rng([self.seed, *key])
                offset = int(rng.integers(group.n_offsets))
                self._permutations[key] = offset, rng.permutation(np.arange(group.n_windows, dtype=np.uint32))
                for old in list(self._permutations)[:-2]:
                    del self._permutations[old]
            offset, order = self._permutations[key]
            yield rows, group, offset + order[items[rows] - group.first].astype(np.int64) * self.length

    def group_of(self, item: int) -> Group:
        """The group in which an item of the training run lies."""
        if self.n_groups == 1:  # all epochs have the same number of windows
            group = self._group(0, 0, tuple(range(len(self.sizes))), 0)
            epoch = item // max(1, group.n_windows)
            return self._group(epoch, 0, group.shards, epoch * group.n_windows)
        while not self._groups or item >= self._groups[-1].first + self._groups[-1].n_windows > 0:
            epoch = len(self._groups) // self.n_groups
            order = np.random.default_rng([self.seed, epoch, 0, 1]).permutation(len(self.sizes))
            first = self._groups[-1].first + self._groups[-1].n_windows if self._groups else 0
            for number, shards in enumerate(np.array_split(order, self.n_groups)):
                self._groups.append(self._group(epoch, number, tuple(shards.tolist()), first))
                first += self._groups[-1].n_windows
        return self._groups[bisect_right(self._groups, item, key=lambda group: group.first) - 1]

    def n_windows(self) -> int:
        """The number of windows in the first epoch; other epochs have about as many."""
        first = self.group_of(0)
        return sum(group.n_windows for group in self._groups[: self.n_groups] or [first])

    def _group(self, epoch: int, number: int, shards: tuple[int, ...], first: int) -> Group:
        n_tokens, length = sum(self.sizes[shard] for shard in shards), self.length
        n_windows = max(min(1, n_tokens // (length + 1)), n_tokens // length - 1)
        return Group(epoch, number, shards, first, n_windows, min(length, n_tokens - n_windows * length))


class Mixer:
    """Assigns each item of the training run to a source, and numbers the items of each source.

    Items are assigned in blocks of 1,000. In a block each source gets 1,000 times its share, rounded down or up by
    systematic sampling (Madow 1949): each source has an interval as long as the fractional part of this product, the
    intervals are laid end to end, and the product is rounded up if one of the points u, u + 1, ... is in the interval.
    From block to block, u follows Weyl's sequence of the golden ratio, which covers [0, 1) evenly; so a source's mean
    over many blocks is its share. The order within a block is drawn from (seed, number of the block).
    """

    BLOCK = 1000
    GOLDEN = 0.6180339887498949

    def __init__(self, shares: Sequence[float], *, seed: int) -> None:
        wanted = np.asarray(shares) * self.BLOCK
        self.seed, self.whole = seed, np.floor(wanted + 1e-9).astype(np.int64)
        ends = np.cumsum(np.maximum(0, wanted - self.whole))
        ends[-1] = self.BLOCK - self.whole.sum()  # a whole number, whatever the rounding of the sum
        self._ends = np.concatenate([[0], ends])

    def items(self, items: Items) -> tuple[NDArray[np.int64], Items]:
        """(sources, numbers): the source of each item, and the number of the item among all items of that source."""
        sources, numbers = np.empty_like(items), np.empty_like(items)
        for block in np.unique(items // self.BLOCK).tolist():
            rows = np.flatnonzero(items // self.BLOCK == block)
            before = self._counts(0, block)
            drawn_from = np.repeat(np.arange(len(self.whole)), self._counts(block, block + 1))
            order = np.random.default_rng([self.seed, block, 0, 2]).permutation(drawn_from)
            offsets = items[rows] % self.BLOCK
            sources[rows] = order[offsets]
            for source in np.unique(order[offsets]):
                rank = np.cumsum(order == source) - 1
                mine = rows[order[offsets] == source]
                numbers[mine] = before[source] + rank[items[mine] % self.BLOCK]
        return sources, numbers

    def _counts(self, first: int, end: int) -> NDArray[np.int64]:
        """The number of items of each source in all blocks from `first` to `end` - 1."""
        u = (self.GOLDEN * np.arange(first, end)) % 1.0
        met = np.floor(self._ends[:, None] + u).sum(1).astype(np.int64)
        total: NDArray[np.int64] = self.whole * (end - first) + np.diff(met)
        return total


Tokens = NDArray[np.unsignedinteger[Any]] | TokenStream


class Windows:
    """The windows of a corpus or a mixture; each is a pure function of the seed and the number of the item."""

    def __init__(self, tokens: Tokens | Mix, *, seed: int, length: int) -> None:
        self.length = length
        self.tokens = tokens.streams if isinstance(tokens, Mix) else (tokens,)
        self.mixer = Mixer(tokens.shares, seed=seed) if isinstance(tokens, Mix) else None
        self.samplers = [
            WindowSampler(found.sizes() if isinstance(found, TokenStream) else len(found), seed=seed, length=length)
            for found in self.tokens
        ]

    def read(self, items: Items) -> Tensor:
        """The windows of these items: [len(items), length + 1], int64."""
        windows = torch.empty(len(items), self.length + 1, dtype=torch.int64)
        sources, numbers = (np.zeros_like(items), items) if self.mixer is None else self.mixer.items(items)
        for source in np.unique(sources).tolist():
            rows = np.flatnonzero(sources == source)
            for chosen, group, starts in self.samplers[source].locate(numbers[rows]):
                stream = self.tokens[source]
                if isinstance(stream, TokenStream):
                    stream = stream.only(group.shards)
                windows[torch.from_numpy(rows[chosen])] = gather(stream, starts, self.length + 1)
        return windows


def gather(tokens: Tokens, starts: NDArray[np.int64], n: int) -> Tensor:
    """Copies n tokens from each start: [len(starts), n], int64."""
    if isinstance(tokens, TokenStream):
        rows = [tokens.read(int(start), int(start) + n).astype(np.int64) for start in starts]
        return torch.from_numpy(np.stack(rows) if rows else np.empty((0, n), np.int64))
    return torch.from_numpy(tokens[starts[:, None] + np.arange(n)].astype(np.int64))


@dataclass(frozen=True, kw_only=True)
class Shares:
    """The rows that one process reads of each global batch, for `n_steps` steps from `first_step` on.

    The global batch holds the micro-batches of rank 0 in order, then those of rank 1, and so on. So results do not
    depend on how a batch is divided. Raises UserError if the batch cannot be divided evenly.
    """

    batch_size: int
    n_steps: int
    first_step: int = 0
    n_micro_batches: int = 1
    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        if self.batch_size < 1 or self.batch_size % self.n_parts:
            raise UserError(
                f"batch_size={self.batch_size} must be a multiple of {self.n_parts} = {self.world_size} ranks x "
                f"{self.n_micro_batches} micro-batches"
            )

    @property
    def n_parts(self) -> int:
        return self.world_size * self.n_micro_batches

    def __len__(self) -> int:
        return self.n_steps * self.n_micro_batches

    def __getitem__(self, index: int) -> tuple[int, slice]:
        """The step of a micro-batch, and its rows in the global batch of that step."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        step, micro_batch = divmod(index, self.n_micro_batches)
        n_rows = self.batch_size // self.n_parts
        row = (self.rank * self.n_micro_batches + micro_batch) * n_rows
        return self.first_step + step, slice(row, row + n_rows)


class TrainingWindows(Dataset[Tensor]):
    """The micro-batches of one rank, in order: [rows, length + 1] each. `shares` says which rows this rank reads.

    Use a DataLoader with batch_size=None, which keeps the order with any number of workers.
    """

    def __init__(self, tokens: Tokens | Mix, shares: Shares, *, seed: int, length: int) -> None:
        super().__init__()
        self.windows, self.shares = Windows(tokens, seed=seed, length=length), shares

    def __len__(self) -> int:
        return len(self.shares)

    def __getitem__(self, index: int) -> Tensor:
        step, rows = self.shares[index]
        size = self.shares.batch_size
        return self.windows.read(np.arange(step * size, (step + 1) * size)[rows])


class EvaluationWindows(Dataset[Tensor]):
    """Windows [length + 1] of a stream, in which every token after the first counts once as a target.

    Each window begins `stride` tokens after the start of the previous window; if stride = length, the first token of a
    window is the last target of the previous window. The last window is moved back so that it ends with the stream. The
    targets of a window count from position `first_scored` on; targets before this position counted in previous windows,
    and are only context here. A slice gives [n, length + 1], int64; tokens are copied only when a slice is taken.

    A stride below the length is the sliding window of the Hugging Face documentation on perplexity: every target but
    the first `length` has at least length - stride + 1 tokens of context, and the text is read length / stride times.
    """

    def __init__(self, tokens: Tokens, *, length: int, stride: int) -> None:
        self.tokens, self.length, self.stride = tokens, length, stride
        self.last_start = len(tokens) - 1 - length

    def __len__(self) -> int:
        return 1 - (-self.last_start // self.stride)

    def __getitem__(self, index: int | slice) -> Tensor:
        windows_N = range(len(self))[index] if isinstance(index, slice) else [range(len(self))[index]]
        rows = gather(self.tokens, self.starts(np.asarray(windows_N)), self.length + 1)
        return rows if isinstance(index, slice) else rows[0]

    def starts(self, windows_N: NDArray[np.int64]) -> NDArray[np.int64]:
        """The positions in the stream at which these windows begin."""
        return np.minimum(windows_N * self.stride, self.last_start)

    def first_scored(self, windows: slice) -> Tensor:
        """For each window, the position of the first target that counts: [n], int64."""
        windows_N = np.asarray(range(len(self))[windows])
        counted_N = np.where(windows_N == 0, 0, self.starts(windows_N - 1) + self.length - self.starts(windows_N))
        return torch.from_numpy(counted_N)

    def scored(self, windows: slice) -> Tensor:
        """True at the targets of these windows that count: [n, length], bool."""
        return torch.arange(self.length) >= self.first_scored(windows)[:, None]


class DocumentWindows:
    """Windows that each hold tokens of one document only, the longest window first.

    is_joint: [len(tokens)], bool, True at the tokens between documents; no window contains them. first: the token that
    begins each window, or None. In the first window of a document, `first` stands before the document's first token; in
    a later window, `first` replaces the window's own first token, which is a target of the previous window. If `first`
    is None, no token is added, and the first token of a document is no target.

    A document of more than `length` targets is cut as `EvaluationWindows` cuts a stream. A slice gives [n, tokens of
    its longest window], int64; shorter windows are padded with their last token.
    """

    def __init__(
        self, tokens: Tokens, is_joint: NDArray[np.bool_], *, first: int | None, length: int, stride: int
    ) -> None:
        self.tokens, self.first = tokens, first
        ends = [*np.flatnonzero(is_joint).tolist(), len(tokens)]
        before = 0 if first is None else 1  # tokens in front of a document
        rows: list[tuple[int, int, int]] = []  # begin and end in the stream, and the first position that counts
        for begin, end in zip([0, *(at + 1 for at in ends)], ends, strict=False):
            n_targets = end - begin + before - 1
            last = max(0, n_targets - length)
            starts = [*range(0, last, stride), last]
            for start, counted in zip(starts, [0, *(start + length for start in starts)], strict=False):
                if n_targets > 0:
                    a = begin - before + start
                    rows.append((a, min(a + length, end - 1) + 1, counted - start if start else 0))
        rows.sort(key=lambda row: row[0] - row[1])
        self.rows = np.asarray(rows, np.int64).reshape(-1, 3)
        self.length = int(self.rows[0, 1] - self.rows[0, 0] - 1) if rows else 0

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, windows: slice) -> Tensor:
        found = [self.window(number) for number in range(len(self))[windows]]
        longest = max(map(len, found), default=1)
        return torch.tensor([[*row, *row[-1:] * (longest - len(row))] for row in found]).view(len(found), longest)

    def window(self, number: int) -> list[int]:
        """The tokens of one window, without padding."""
        a, b, _ = self.rows[number].tolist()
        head = [] if self.first is None else [self.first]
        text: list[int] = np.asarray(self.tokens[a + len(head) : b]).tolist()
        return head + text

    def scored(self, windows: slice) -> Tensor:
        """True at the targets of these windows that count: [n, targets of the longest], bool; False at padding."""
        rows = torch.from_numpy(self.rows[windows])
        n_targets = rows[:, 1] - rows[:, 0] - 1
        position_T = torch.arange(int(n_targets.max()) if len(rows) else 0)
        return (position_T >= rows[:, 2, None]) & (position_T < n_targets[:, None])


def evaluation_windows(
    tokens: Tokens, *, length: int, longest: int, stride: int | None = None, max_tokens: int | None = None
) -> EvaluationWindows:
    """The held-out stream in windows of `length` inputs that begin `stride` tokens apart (None: `length`).

    The first `max_tokens` targets are scored (None: all), whatever the length. longest: the longest length that will be
    evaluated. Raises UserError if the targets do not fill one window of that length.
    """
    check_one_window(tokens, longest, max_tokens)
    n_targets = len(tokens) - 1 if max_tokens is None else min(max_tokens, len(tokens) - 1)
    return EvaluationWindows(tokens[: n_targets + 1], length=length, stride=stride or length)


def validation_windows(tokens: Tokens, *, length: int, max_tokens: int) -> Tensor:
    """The held-out stream in whole windows that begin `length` tokens apart: [n, length + 1].

    They have at most `max_tokens` targets. Tokens after the last whole window are left out. Raises UserError if there
    is no whole window.
    """
    check_one_window(tokens, length, max_tokens)
    n_targets = min(max_tokens, len(tokens) - 1) // length * length
    return EvaluationWindows(tokens[: n_targets + 1], length=length, stride=length)[:]


def check_one_window(tokens: Tokens, length: int, max_tokens: int | None) -> None:
    """Raises UserError if the tokens to score do not fill one window of `length`."""
    n_targets = len(tokens) - 1 if max_tokens is None else min(max_tokens, len(tokens) - 1)
    if n_targets < length:
        raise UserError(
            f"the held-out text gives {n_targets:,} tokens to score, fewer than one window of {length:,}: raise "
            "max_tokens (validation_tokens in training) or data.held_out, give more text, or choose a shorter length"
        )
