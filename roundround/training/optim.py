"""Optimizers: what a config node becomes before there are parameters.

Tested by tests/training/test_recipe.py.
"""

from __future__ import annotations

import math
from typing import Any, final

import torch
from torch import nn


class OptimizerFactory:
    """Base: holds the settings of Adam and its kind, and makes the torch optimizer when the module exists."""

    def __init__(
        self, *, lr: float, betas: list[float], eps: float, weight_decay: float, decay_biases: bool = False
    ) -> None:
        for name, value in (("lr", lr), ("eps", eps)):
            if not 0 < value < math.inf:
                raise ValueError(f"{name}={value} must be a finite number above 0")
        if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas={betas} must be two numbers from 0 up to, but not including, 1")
        if not 0 <= weight_decay < math.inf:
            raise ValueError(f"weight_decay={weight_decay} must be a finite number, at least 0")
        self.lr, self.betas, self.eps, self.weight_decay = lr, (betas[0], betas[1]), eps, weight_decay
        self.decay_biases = decay_biases

    def check(self, module: nn.Module, *, sharded: bool) -> None:
        """Raises UserError if it cannot train this module, or one whose parameters are shared out; default never.

        The module may be on the meta device.
        """

    def create(self, module: nn.Module) -> torch.optim.Optimizer:
        """The optimizer of the module's parameters."""
        raise NotImplementedError

    def groups(self, module: nn.Module) -> list[dict[str, Any]]:
        """Parameters that decay and those that do not: gains, biases and other vectors, unless `decay_biases`."""
        parameters = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        vectors = {name for name, p in parameters if p.ndim < 2 or name.endswith("bias")}
        if self.decay_biases:
            vectors = set()
        groups = [
            {"params": [p for name, p in parameters if name not in vectors], "weight_decay": self.weight_decay},
            {"params": [p for name, p in parameters if name in vectors], "weight_decay": 0.0},
        ]
        return [group for group in groups if group["params"]]


@final
class AdamW(OptimizerFactory):
    """Adam with decoupled weight decay.

    w <- w - lr (m / (sqrt(v) + eps) + weight_decay w)

    Loshchilov and Hutter 2019, arXiv:1711.05101, algorithm 2.
    """

    def create(self, module: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.groups(module), lr=self.lr, betas=self.betas, eps=self.eps, fused=True)


@final
class Adam(OptimizerFactory):
    """Adam on the loss with an L2 penalty: its gradient is scaled like the loss's, which decoupled decay is not.

    loss + weight_decay / 2 sum w^2

    Kingma and Ba 2015, arXiv:1412.6980, algorithm 1.
    """

    def create(self, module: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.groups(module), lr=self.lr, betas=self.betas, eps=self.eps, fused=True)
