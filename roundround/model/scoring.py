"""How well a model predicts text: the loss of each target in nats, kept by position.

Shapes: B windows or texts, T targets, N some of them, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from roundround.kernels.precision import at_least_float32


class Windows(Protocol):
    """Rows of token ids [n, T + 1], in memory or on disk."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: slice, /) -> Tensor: ...


class Share:
    """Every n-th window from the first-th on, which is one process's part of them."""

    def __init__(self, windows: Windows, *, first: int, n: int) -> None:
        self.windows, self.first, self.n = windows, first, n

    def __len__(self) -> int:
        return len(range(self.first, len(self.windows), self.n))

    def __getitem__(self, rows: slice, /) -> Tensor:
        return self.windows[self.among_all(rows)]

    def among_all(self, rows: slice) -> slice:
        """These rows of the share, as rows of all windows."""
        start, stop, _ = rows.indices(len(self))
        return slice(self.first + start * self.n, self.first + stop * self.n, self.n)


def nats_of(logits_BNV: Tensor, targets_BN: Tensor) -> Tensor:
    """The loss of each target, [B, N], in float32, or in float64 where the logits are."""
    # classes last: with classes in the middle they are added one by one, too low by 4e-4 nats at 262,144
    logits_RV = at_least_float32(logits_BNV).flatten(0, 1)
    return F.cross_entropy(logits_RV, targets_BN.flatten(), reduction="none").view_as(targets_BN)


def perplexity(token_loss: float) -> float:
    """exp of a loss in nats per token; inf where that is beyond a float's range, above 709 nats."""
    return float(torch.tensor(token_loss, dtype=torch.float64).exp())


class PositionLoss:
    """Summed loss in nats and number of targets at each position, float64.

    joints: the same for tokens that join documents, where they are counted apart from the others.
    """

    def __init__(self, n_positions: int) -> None:
        self.sum_T = torch.zeros(n_positions, dtype=torch.float64)
        self.count_T = torch.zeros(n_positions, dtype=torch.float64)
        self.joint_sum, self.n_joints = 0.0, 0

    def add(self, loss_BT: Tensor, target_BT: Tensor | None = None, joint_BT: Tensor | None = None) -> None:
        """Take in the losses of a batch: where `target_BT` is False there is no target, where `joint_BT` is True, one
        of the joints.
        """
        loss_BT, n = loss_BT.cpu().double(), loss_BT.shape[1]
        target_BT = torch.ones_like(loss_BT, dtype=torch.bool) if target_BT is None else target_BT.cpu()
        if joint_BT is not None:
            joint_BT = joint_BT.cpu() & target_BT
            self.joint_sum += float(loss_BT[joint_BT].sum())
            self.n_joints += int(joint_BT.sum())
            target_BT = target_BT & ~joint_BT
        self.sum_T[:n] += loss_BT.masked_fill(~target_BT, 0.0).sum(0)
        self.count_T[:n] += target_BT.sum(0)

    def add_all(self, others: Iterable[PositionLoss]) -> None:
        """Take in what others have summed."""
        for other in others:
            self.sum_T[: len(other.sum_T)] += other.sum_T
            self.count_T[: len(other.sum_T)] += other.count_T
            self.joint_sum += other.joint_sum
            self.n_joints += other.n_joints

    @property
    def n_targets(self) -> int:
        return int(self.count_T.sum())

    @property
    def n_scored(self) -> int:
        """Targets and joints."""
        return self.n_targets + self.n_joints

    def token_loss(self, first: int = 0, last: int | None = None) -> float:
        """Mean loss in nats of the targets at the positions first..last; NaN where there is none."""
        return float(self.sum_T[first:last].sum() / self.count_T[first:last].sum())

    def perplexity(self, first: int = 0, last: int | None = None) -> float:
        """exp of `token_loss`; inf where that is beyond a float's range."""
        return perplexity(self.token_loss(first, last))

    def perplexity_with_joints(self) -> float:
        """The perplexity of targets and joints alike; inf where that is beyond a float's range."""
        return perplexity(float((self.sum_T.sum() + self.joint_sum) / self.n_scored))

    def share_at_joints(self) -> float:
        """The joints' share of the whole loss."""
        return self.joint_sum / (float(self.sum_T.sum()) + self.joint_sum)

    @property
    def by_position(self) -> list[float | None]:
        """Mean loss in nats of the targets at each position; None where there is none."""
        pairs = zip(self.sum_T.tolist(), self.count_T.tolist(), strict=True)
        return [total / count if count else None for total, count in pairs]


@torch.no_grad()
def score(
    model: nn.Module,
    windows: Windows,
    *,
    batch: int,
    device: torch.device,
    scored: Callable[[slice], Tensor] | None = None,
    joints: Callable[[slice], Tensor] | None = None,
    separator: int | None = None,
) -> PositionLoss:
    """Score windows [N, T + 1] of token ids (T inputs and, shifted by one, T targets), `batch` windows at a time.

    `model(tokens_BT, targets_BT=...)` gives the loss in nats of each target, as `Decoder` does. scored: which targets
    of some windows count, [n, T] (None: all of them). joints: which of them join documents, [n, T], whose losses are
    kept apart (None: a joint is a token like any other). separator: the token that ends a document where documents do
    not see each other, for a `Decoder` (None: they do).
    """
    was_training = model.training
    model.eval()
    loss = PositionLoss(windows[:1].shape[1] - 1)
    for start in range(0, len(windows), batch):
        rows = slice(start, start + batch)
        on_device_BT1 = windows[rows].to(device)
        inputs_BT = on_device_BT1[:, :-1]
        ends = {} if separator is None else {"ends_BT": inputs_BT == separator}
        loss_BT = model(inputs_BT, targets_BT=on_device_BT1[:, 1:], **ends)
        loss.add(loss_BT, scored and scored(rows), joints and joints(rows))
    model.train(was_training)
    return loss
