"""Max retrieval over several processes: each trains and asks some of the seeds, and a checkpoint holds all of them.

Seeds never mix, so that nothing passes between processes but what is recorded. Every tensor of the state, weights and
Adam's moments alike, has the seeds as its first axis; scalars, such as Adam's count of steps, are the same for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from roundround.support.errors import UserError


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
