"""Training of max retrieval: all seeds by one optimizer, which never mixes them, since Adam works number by number.

Shapes: S seeds.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from roundround.papers.max_retrieval.model import MaxRetrieval
from roundround.papers.max_retrieval.sets import TrainingSets
from roundround.softmax.base import AttentionSoftmax


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
