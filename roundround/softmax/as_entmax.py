"""Adaptive-scalable entmax."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from roundround.attention.checks import checked_finite
from roundround.attention.keys import AttentionShape
from roundround.attention.precision import at_least_float32
from roundround.softmax.projection import Projection, entmax_of


@final
class ASEntmax(Projection):
    """Entmax of logits scaled by a power of the logarithm of the row's length, both read off the query's token.

    alpha = entmax_alpha((delta + beta ln(1 + n)^gamma) e), beta = softplus(w x), gamma = gamma_range tanh(u x)

    Vasylenko et al. 2025, arXiv:2506.16640; n is the number of visible keys, counted from 2 as in the authors' code.
    """

    def __init__(self, shape: AttentionShape, *, alpha: float, delta: float, gamma_range: float) -> None:
        super().__init__(shape)
        if not 1 <= alpha < math.inf:
            raise ValueError(f"alpha={alpha} must be a finite number, 1 or above")
        checked_finite(delta=delta, gamma_range=gamma_range)
        self.alpha, self.delta, self.gamma_range = alpha, delta, gamma_range
        self.beta = nn.Linear(shape.d_model, shape.n_heads)
        self.gamma = nn.Linear(shape.d_model, shape.n_heads)

    def row_parameters(self, x_BTD: Tensor) -> dict[str, Tensor]:
        beta_BTH = F.softplus(at_least_float32(self.beta(x_BTD)))
        gamma_BTH = self.gamma_range * torch.tanh(at_least_float32(self.gamma(x_BTD)))
        return {"beta": beta_BTH.mT[..., None], "gamma": gamma_BTH.mT[..., None]}

    def normalise(self, logits_BHQK: Tensor, visible_B1QK: Tensor, rows: Mapping[str, Tensor]) -> Tensor:
        ln_n = (1 + rows["n_visible"].clamp(min=1)).to(logits_BHQK.dtype).log()
        scale_BHQ1 = self.delta + rows["beta"] * ln_n ** rows["gamma"]
        return super().normalise(logits_BHQK * scale_BHQ1, visible_B1QK, rows)

    def project(self, logits_BHQK: Tensor, rows: Mapping[str, Tensor]) -> Tensor:
        return entmax_of(logits_BHQK, self.alpha)
