"""How well a model predicts text: the loss of each target in nats, kept by position.

Shapes: B windows or texts, T targets.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn


class Windows(Protocol):
    """Rows of token ids [n, T + 1], in memory or on disk."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: slice, /) -> Tensor: ...


class PositionLoss:
    """Summed loss in nats and number of targets at each position, float64."""

    def __init__(self, n_positions: int) -> None:
        self.sum_T = torch.zeros(n_positions, dtype=torch.float64)
        self.count_T = torch.zeros(n_positions, dtype=torch.float64)

    def add(self, loss_BT: Tensor, target_BT: Tensor | None = None) -> None:
        """Take in the losses of a batch; where `target_BT` is False there is no target."""
        loss_BT, n = loss_BT.cpu().double(), loss_BT.shape[1]
        if target_BT is not None:
            loss_BT = loss_BT.masked_fill(~target_BT, 0.0)
        self.sum_T[:n] += loss_BT.sum(0)
        self.count_T[:n] += len(loss_BT) if target_BT is None else target_BT.sum(0)

    @property
    def n_targets(self) -> int:
        return int(self.count_T.sum())

    def token_loss(self, first: int = 0, last: int | None = None) -> float:
        """Mean loss in nats of the targets at the positions first..last; NaN where there is none."""
        return float(self.sum_T[first:last].sum() / self.count_T[first:last].sum())

    def perplexity(self, first: int = 0, last: int | None = None) -> float:
        """exp of `token_loss`; inf where that is beyond a float's range."""
        return float((self.sum_T[first:last].sum() / self.count_T[first:last].sum()).exp())

    @property
    def by_position(self) -> list[float]:
        """Mean loss in nats of the targets at each position."""
        means: list[float] = (self.sum_T / self.count_T).tolist()
        return means


@torch.no_grad()
def score(model: nn.Module, windows: Windows, *, batch: int, device: torch.device) -> PositionLoss:
    """Score windows [n, T + 1] of token ids (T inputs and, shifted by one, T targets), `batch` windows at a time.

    `model(tokens_BT, targets_BT=...)` gives the loss in nats of each target, as `Decoder` does.
    """
    was_training = model.training
    model.eval()
    loss = PositionLoss(windows[:1].shape[1] - 1)
    for start in range(0, len(windows), batch):
        tokens_BT1 = windows[start : start + batch].to(device)
        loss.add(model(tokens_BT1[:, :-1], targets_BT=tokens_BT1[:, 1:]))
    model.train(was_training)
    return loss
