"""Optimisers: what a config node becomes before there are parameters."""

from __future__ import annotations

from typing import final

import torch
from torch import nn


class Optimiser:
    """Base: holds the numbers, makes the torch optimiser once the module exists."""

    def create(self, module: nn.Module) -> torch.optim.Optimizer:
        """The optimiser of the module's parameters."""
        raise NotImplementedError


@final
class AdamW(Optimiser):
    """Adam with decoupled weight decay on matrices; gains, biases and other vectors do not decay.

    w <- w - lr (m / (sqrt(v) + eps) + weight_decay w)

    Loshchilov and Hutter 2019, arXiv:1711.05101, algorithm 2.
    """

    def __init__(self, *, lr: float, betas: list[float], eps: float, weight_decay: float) -> None:
        if not lr > 0:
            raise ValueError(f"lr={lr} must be above 0")
        if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas={betas} must be two numbers from 0 up to, but not including, 1")
        if not eps > 0:
            raise ValueError(f"eps={eps} must be above 0")
        if not weight_decay >= 0:
            raise ValueError(f"weight_decay={weight_decay} must be at least 0")
        self.lr, self.betas, self.eps, self.weight_decay = lr, (betas[0], betas[1]), eps, weight_decay

    def create(self, module: nn.Module) -> torch.optim.Optimizer:
        parameters = [p for p in module.parameters() if p.requires_grad]
        groups = [
            {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": self.weight_decay},
            {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
        ]
        groups = [group for group in groups if group["params"]]
        return torch.optim.AdamW(groups, lr=self.lr, betas=self.betas, eps=self.eps, fused=True)
