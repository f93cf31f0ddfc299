"""Batches: for training a pure function of (seed, step), for evaluation the held-out stream in order.

B batch, T tokens. A window holds length + 1 tokens: T inputs and, one further, their T targets.
"""

from __future__ import annotations

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


class TrainingWindows(Dataset[Tensor]):
    """One rank's micro-batches, in order: for each step n_micro_batches tensors of the rank's share of `global_batch`.

    Each is [batch_size / (world_size * n_micro_batches), length + 1]. The global batch is rank 0's micro-batches in
    order, then rank 1's, and so on, so results do not depend on how a batch is spread over ranks and micro-batches.
    Steps first_step to first_step + n_steps - 1 are given. Use a DataLoader with batch_size=None, which keeps the
    order with any number of workers.
    """

    def __init__(
        self,
        tokens: Tokens,
        *,
        seed: int,
        length: int,
        batch_size: int,
        n_micro_batches: int,
        rank: int,
        world_size: int,
        first_step: int,
        n_steps: int,
    ) -> None:
        super().__init__()
        if batch_size < 1 or batch_size % (world_size * n_micro_batches):
            n = world_size * n_micro_batches
            raise UserError(
                f"batch_size={batch_size} must be a multiple of {n} = {world_size} ranks x {n_micro_batches} "
                f"micro-batches"
            )
        if not 0 <= rank < world_size:
            raise ValueError(f"rank is {rank}: 0 to {world_size - 1} is allowed with {world_size} ranks")
        self.sampler = WindowSampler(len(tokens), seed=seed, length=length)
        self.tokens, self.length, self.batch_size = tokens, length, batch_size
        self.n_micro_batches, self.rank, self.world_size = n_micro_batches, rank, world_size
        self.first_step, self.n_steps = first_step, n_steps

    def __len__(self) -> int:
        return self.n_steps * self.n_micro_batches

    def __getitem__(self, index: int) -> Tensor:
        if not 0 <= index < len(self):
            raise IndexError(index)
        step, micro_batch = divmod(index, self.n_micro_batches)
        n_rows = self.batch_size // (self.world_size * self.n_micro_batches)
        row = (self.rank * self.n_micro_batches + micro_batch) * n_rows
        starts = self.sampler.starts(self.first_step + step, self.batch_size)[row : row + n_rows]
        return gather(self.tokens, starts, self.length + 1)


class EvaluationWindows(Dataset[Tensor]):
    """Windows [length + 1] overlapping by one token, so that each target is scored once; a slice gives [n, length + 1].

    Nothing is copied until it is asked for; what is given is int64.
    """

    def __init__(self, tokens: Tokens, *, length: int) -> None:
        self.windows = np.lib.stride_tricks.sliding_window_view(tokens, length + 1)[::length]

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, index: int | slice) -> Tensor:
        return torch.from_numpy(self.windows[index].astype(np.int64))


def evaluation_windows(
    tokens: Tokens, *, length: int, longest: int, max_tokens: int | None = None
) -> EvaluationWindows:
    """The held-out stream in windows of `length` inputs; the same targets are scored at every length.

    The stream is cut to a multiple of `longest` (the longest length to be compared, a multiple of each of them), at
    most max_tokens, and the one token more that is the last target. UserError where it is shorter than that, or where
    these numbers, which come from the command line, do not go together.
    """
    if length < 1 or longest % length:
        raise UserError(f"length={length} does not divide the longest length, {longest}; choose lengths that do")
    if max_tokens is not None and max_tokens < longest:
        raise UserError(
            f"{max_tokens} tokens to score are fewer than one window of {longest}; raise max_tokens (validation_tokens "
            f"in training)"
        )
    if len(tokens) < longest + 1:
        raise UserError(
            f"the held-out documents make {len(tokens):,} tokens, fewer than the {longest + 1:,} of one longest "
            f"window; raise data.held_out, give more text, or evaluate at shorter lengths"
        )
    n_targets = len(tokens) - 1 if max_tokens is None else min(max_tokens, len(tokens) - 1)
    return EvaluationWindows(tokens[: n_targets // longest * longest + 1], length=length)
