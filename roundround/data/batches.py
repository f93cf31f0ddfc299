"""Batches: for training a pure function of (seed, step), for evaluation the held-out stream in order.

B batch, T tokens. A window holds length + 1 tokens: T inputs and, one further, their T targets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from roundround.errors import UserError

Tokens = NDArray[np.unsignedinteger[Any]]


class WindowSampler:
    """Where the windows of a global batch begin: one permutation of disjoint windows after another.

    In epoch e the stream is cut, from an offset drawn below `length`, into n_windows windows whose inputs are
    disjoint, and these are visited in the order of a permutation; both are drawn from `default_rng([seed, e])`. Item i
    of the training run is window i % n_windows of epoch i // n_windows, so nothing but (seed, i) decides it. The
    permutation of the epoch at hand is kept here.
    """

    def __init__(self, n_tokens: int, *, seed: int, length: int) -> None:
        if length < 1 or seed < 0:
            raise ValueError(f"length is {length} and seed is {seed}: whole numbers from 1 and from 0 are allowed")
        if n_tokens < length + 1:
            raise UserError(
                f"the training documents make {n_tokens:,} tokens, fewer than the {length + 1:,} of one window; give "
                f"more text, or train on shorter windows"
            )
        self.seed, self.length = seed, length
        self.n_windows = max(1, n_tokens // length - 1)  # the same in every epoch, whatever its offset
        self.n_offsets = min(length, n_tokens - self.n_windows * length)
        self._epoch = -1
        self._starts = np.empty(0, dtype=np.int64)

    def starts(self, step: int, batch_size: int) -> NDArray[np.int64]:
        """The first token of each of the batch's windows, [B]."""
        items = np.arange(step * batch_size, (step + 1) * batch_size, dtype=np.int64)
        epochs, places = np.divmod(items, self.n_windows)
        parts = [self._epoch_starts(int(epoch))[places[epochs == epoch]] for epoch in np.unique(epochs)]
        return np.concatenate(parts)

    def _epoch_starts(self, epoch: int) -> NDArray[np.int64]:
        if epoch != self._epoch:
            rng = np.random.default_rng([self.seed, epoch])
            offset = rng.integers(self.n_offsets)
            self._starts = offset + rng.permutation(self.n_windows) * self.length
            self._epoch = epoch
        return self._starts


def global_batch(tokens: Tokens, *, seed: int, step: int, batch_size: int, length: int) -> Tensor:
    """The batch of a step, over all ranks: [batch_size, length + 1], int64. UserError where the corpus is too short."""
    sampler = WindowSampler(len(tokens), seed=seed, length=length)
    return gather(tokens, sampler.starts(step, batch_size), length + 1)


def gather(tokens: Tokens, starts: NDArray[np.int64], n: int) -> Tensor:
    """The n tokens from each start on: [len(starts), n], int64, a copy."""
    return torch.from_numpy(tokens[starts[:, None] + np.arange(n)].astype(np.int64))


@dataclass(frozen=True, kw_only=True)
class Shares:
    """Which rows of each global batch one process reads: those of its micro-batches, for some steps on end.

    The global batch is rank 0's micro-batches in order, then rank 1's, and so on, so results do not depend on how a
    batch is spread over ranks and micro-batches. Raises UserError where it cannot be spread evenly, ValueError for a
    rank that there is not.
    """

    batch_size: int
    n_steps: int
    first_step: int = 0
    n_micro_batches: int = 1
    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        if self.batch_size < 1 or self.batch_size % self.n_parts:
            below = self.batch_size - self.batch_size % self.n_parts
            nearest = [str(n) for n in (below, below + self.n_parts) if n > 0]
            raise UserError(
                f"batch_size={self.batch_size} must be a multiple of {self.n_parts} = {self.world_size} ranks x "
                f"{self.n_micro_batches} micro-batches; the nearest: {' and '.join(nearest)}"
            )
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank is {self.rank}: 0 to {self.world_size - 1} is allowed with {self.world_size} ranks")

    @property
    def n_parts(self) -> int:
        return self.world_size * self.n_micro_batches

    def __len__(self) -> int:
        return self.n_steps * self.n_micro_batches

    def __getitem__(self, index: int) -> tuple[int, slice]:
        """The step of a micro-batch by number, and its rows in the global batch of that step."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        step, micro_batch = divmod(index, self.n_micro_batches)
        n_rows = self.batch_size // self.n_parts
        row = (self.rank * self.n_micro_batches + micro_batch) * n_rows
        return self.first_step + step, slice(row, row + n_rows)


class TrainingWindows(Dataset[Tensor]):
    """One rank's micro-batches of windows, in order: each its share of a `global_batch`, [rows, length + 1].

    Use a DataLoader with batch_size=None, which keeps the order with any number of workers.
    """

    def __init__(self, tokens: Tokens, shares: Shares, *, seed: int, length: int) -> None:
        super().__init__()
        self.sampler = WindowSampler(len(tokens), seed=seed, length=length)
        self.tokens, self.shares, self.length = tokens, shares, length

    def __len__(self) -> int:
        return len(self.shares)

    def __getitem__(self, index: int) -> Tensor:
        step, rows = self.shares[index]
        starts = self.sampler.starts(step, self.shares.batch_size)[rows]
        return gather(self.tokens, starts, self.length + 1)


class EvaluationWindows(Dataset[Tensor]):
    """Windows [length + 1] over a stream in which every token after the first is a target once.

    Each window begins `stride` tokens after the one before it, and its targets count from position `first_scored` on:
    those before it have been counted, and are there as context. With stride = length the windows meet: each begins with
    the token that was the last target before it. The last window is moved back so that it ends with the stream. A slice
    gives [n, length + 1], int64; nothing is copied until it is asked for.

    A stride below the length is the sliding window of the Hugging Face documentation on perplexity: every target but
    the first `length` has at least length - stride + 1 tokens of context, and the text is read length / stride times.
    """

    def __init__(self, tokens: Tokens, *, length: int, stride: int) -> None:
        if not 1 <= stride <= length < len(tokens):
            raise ValueError(
                f"length is {length} and stride {stride}: 1 <= stride <= length < {len(tokens)}, the tokens, is allowed"
            )
        self.tokens, self.length, self.stride = tokens, length, stride
        self.last_start = len(tokens) - 1 - length

    def __len__(self) -> int:
        return 1 - (-self.last_start // self.stride)

    def __getitem__(self, index: int | slice) -> Tensor:
        windows_N = range(len(self))[index] if isinstance(index, slice) else [range(len(self))[index]]
        rows = gather(self.tokens, self.starts(np.asarray(windows_N)), self.length + 1)
        return rows if isinstance(index, slice) else rows[0]

    def starts(self, windows_N: NDArray[np.int64]) -> NDArray[np.int64]:
        """The first token of windows by number."""
        return np.minimum(windows_N * self.stride, self.last_start)

    def first_scored(self, windows: slice) -> Tensor:
        """The first position whose target counts, of each of these windows: [n], int64."""
        windows_N = np.asarray(range(len(self))[windows])
        counted_N = np.where(windows_N == 0, 0, self.starts(windows_N - 1) + self.length - self.starts(windows_N))
        return torch.from_numpy(counted_N)


def evaluation_windows(
    tokens: Tokens, *, length: int, longest: int, stride: int | None = None, max_tokens: int | None = None
) -> EvaluationWindows:
    """The held-out stream in windows of `length` inputs, `stride` tokens apart (None: length, so that they meet).

    All its targets are scored, or the first `max_tokens`: the same ones at every length up to `longest`. UserError
    where there are fewer than one window of `longest`: these numbers come from the command line.
    """
    check_one_window(tokens, longest, max_tokens)
    n_targets = len(tokens) - 1 if max_tokens is None else min(max_tokens, len(tokens) - 1)
    return EvaluationWindows(tokens[: n_targets + 1], length=length, stride=stride or length)


def validation_windows(tokens: Tokens, *, length: int, max_tokens: int) -> Tensor:
    """The held-out stream in whole windows that meet, [n, length + 1], at most max_tokens targets: training's own.

    The tokens after the last whole window are left out. UserError as `evaluation_windows`.
    """
    check_one_window(tokens, length, max_tokens)
    n_targets = min(max_tokens, len(tokens) - 1) // length * length
    return EvaluationWindows(tokens[: n_targets + 1], length=length, stride=length)[:]


def check_one_window(tokens: Tokens, length: int, max_tokens: int | None) -> None:
    """Raises UserError where there is not one window of `length` to score."""
    if max_tokens is not None and max_tokens < length:
        raise UserError(
            f"{max_tokens} tokens to score are fewer than one window of {length}; raise max_tokens (validation_tokens "
            f"in training)"
        )
    if len(tokens) < length + 1:
        raise UserError(
            f"the held-out documents make {len(tokens):,} tokens, fewer than the {length + 1:,} of one longest "
            f"window; raise data.held_out, give more text, or evaluate at shorter lengths"
        )
