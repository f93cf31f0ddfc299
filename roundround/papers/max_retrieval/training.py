"""Training of max retrieval: all seeds by one optimizer, which never mixes them, since Adam works number by number.

Several processes train and ask some of the seeds each, and a checkpoint holds all of them: nothing passes between them
but what is recorded. Every tensor of the state, weights and moments of Adam alike, has the seeds as its first axis;
scalars, such as the count of steps, are the same for all.
Shapes: S seeds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from roundround.papers.max_retrieval.model import MaxRetrieval
from roundround.papers.max_retrieval.sets import TrainingSets
from roundround.softmax.base import AttentionSoftmax
from roundround.support.errors import UserError


def train(
    model: MaxRetrieval,
    softmax: AttentionSoftmax,
    optimizer: torch.optim.Optimizer,
    sets: TrainingSets,
    *,
    first_step: int,
    n_steps: int,
) -> Iterator[tuple[int, Tensor]]:
    """Updates first_step + 1 to n_steps; after each its number and every seed's loss in nats, [S]."""
    for step in range(first_step, n_steps):
        loss_S = model.loss(sets.batch(step).to(model.device), softmax)
        optimizer.zero_grad()
        loss_S.sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        yield step + 1, loss_S.detach()


def seeds_of(rank: int, n_processes: int, n_seeds: int) -> slice:
    """The seeds of one process, by place: as many as the others', or one more. UserError where one would have none."""
    if n_seeds < n_processes:
        raise UserError(f"seeds={n_seeds} are fewer than the {n_processes} processes; start {n_seeds}, or give more")
    places = np.array_split(np.arange(n_seeds), n_processes)[rank]
    return slice(int(places[0]), int(places[-1]) + 1)


def share_of(state: Any, seeds: slice) -> Any:
    """The part of a training state, nested dicts and lists, that belongs to these seeds."""
    if isinstance(state, Tensor):
        return state[seeds].clone() if state.ndim else state
    if isinstance(state, dict):
        return {key: share_of(value, seeds) for key, value in state.items()}
    return state


def joined(states: Sequence[Any]) -> Any:
    """The training state of all seeds, from the shares of the processes in order."""
    first = states[0]
    if isinstance(first, Tensor):
        return torch.cat([state.cpu() for state in states]) if first.ndim else first
    if isinstance(first, dict):
        return {key: joined([state[key] for state in states]) for key in first}
    return first
