"""How well a decoder predicts text: nats per target, kept by position in the window.

Shapes: B windows, T targets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn


class Windows(Protocol):
    """Rows of token ids [n, T + 1], in memory or on disk."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: slice, /) -> Tensor: ...


@dataclass(frozen=True)
class PositionLoss:
    """Summed nats of each target position over windows: sum_T (float64) and the number of windows."""

    sum_T: Tensor
    n_windows: int

    @property
    def nats_per_token(self) -> float:
        return float(self.sum_T.sum() / (self.n_windows * self.sum_T.numel()))

    @property
    def by_position(self) -> list[float]:
        """Mean nats of the target at each position of the window."""
        return [float(x) for x in self.sum_T / self.n_windows]


@torch.no_grad()
def score(model: nn.Module, windows: Windows, *, batch: int, device: torch.device) -> PositionLoss:
    """Score windows [n, T + 1] of token ids (T inputs and, shifted by one, T targets), `batch` windows at a time.

    `model(tokens_BT, targets_BT=...)` gives the nats of each target, as `Decoder` does.
    """
    was_training = model.training
    model.eval()
    sum_T = torch.zeros(windows[:1].shape[1] - 1, dtype=torch.float64)
    for start in range(0, len(windows), batch):
        tokens_BT1 = windows[start : start + batch].to(device)
        nats_BT = model(tokens_BT1[:, :-1], targets_BT=tokens_BT1[:, 1:])
        sum_T += nats_BT.cpu().double().sum(0)
    model.train(was_training)
    return PositionLoss(sum_T, len(windows))
