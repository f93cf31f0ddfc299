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
    """Summed loss in nats and number of targets at each position, float64.

    joints: the same of the tokens that join documents, where they are told apart; they are not among the others.
    """

    def __init__(self, n_positions: int) -> None:
        self.sum_T = torch.zeros(n_positions, dtype=torch.float64)
        self.count_T = torch.zeros(n_positions, dtype=torch.float64)
        self.joint_sum, self.n_joints = 0.0, 0

    def add(self, loss_BT: Tensor, target_BT: Tensor | None = None) -> None:
        """Take in the losses of a batch; where `target_BT` is False there is no target."""
        loss_BT, n = loss_BT.cpu().double(), loss_BT.shape[1]
        if target_BT is not None:
            target_BT = target_BT.cpu()
            loss_BT = loss_BT.masked_fill(~target_BT, 0.0)
        self.sum_T[:n] += loss_BT.sum(0)
        self.count_T[:n] += len(loss_BT) if target_BT is None else target_BT.sum(0)

    def add_joints(self, loss_BT: Tensor, joint_BT: Tensor) -> None:
        """Take in the losses of a batch where `joint_BT` is True."""
        self.joint_sum += float(loss_BT[joint_BT].double().sum())
        self.n_joints += int(joint_BT.sum())

    @property
    def n_targets(self) -> int:
        return int(self.count_T.sum())

    def token_loss(self, first: int = 0, last: int | None = None) -> float:
        """Mean loss in nats of the targets at the positions first..last; NaN where there is none."""
        return float(self.sum_T[first:last].sum() / self.count_T[first:last].sum())

    def perplexity(self, first: int = 0, last: int | None = None) -> float:
        """exp of `token_loss`; inf where that is beyond a float's range."""
        return float((self.sum_T[first:last].sum() / self.count_T[first:last].sum()).exp())

    def with_joints(self) -> float:
        """Mean loss in nats of all targets, the joints between documents among them."""
        return (float(self.sum_T.sum()) + self.joint_sum) / (self.n_targets + self.n_joints)

    @property
    def by_position(self) -> list[float]:
        """Mean loss in nats of the targets at each position."""
        means: list[float] = (self.sum_T / self.count_T).tolist()
        return means


@torch.no_grad()
def score(
    model: nn.Module,
    windows: Windows,
    *,
    batch: int,
    device: torch.device,
    first_scored_N: Tensor | None = None,
    joint: int | None = None,
) -> PositionLoss:
    """Score windows [N, T + 1] of token ids (T inputs and, shifted by one, T targets), `batch` windows at a time.

    `model(tokens_BT, targets_BT=...)` gives the loss in nats of each target, as `Decoder` does. first_scored_N: the
    position from which on the targets of each window count (None: all of them). joint: the token that stands between
    documents, whose losses are kept apart (None: it is a token like any other).
    """
    was_training = model.training
    model.eval()
    loss = PositionLoss(windows[:1].shape[1] - 1)
    for start in range(0, len(windows), batch):
        tokens_BT1 = windows[start : start + batch].to(device)
        loss_BT = model(tokens_BT1[:, :-1], targets_BT=tokens_BT1[:, 1:])
        scored_BT = torch.ones_like(loss_BT, dtype=torch.bool)
        if first_scored_N is not None:
            first_B1 = first_scored_N[start : start + batch, None].to(device)
            scored_BT = torch.arange(loss_BT.shape[1], device=device) >= first_B1
        if joint is not None:
            joint_BT = tokens_BT1[:, 1:] == joint
            loss.add_joints(loss_BT, scored_BT & joint_BT)
            scored_BT = scored_BT & ~joint_BT
        loss.add(loss_BT, scored_BT)
    model.train(was_training)
    return loss
