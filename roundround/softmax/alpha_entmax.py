"""Entmax with any alpha, fixed or learned."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, final

import torch
from torch import Tensor, nn

from roundround.kernels.bias import Bias
from roundround.kernels.keys import AttentionShape, Keys
from roundround.kernels.precision import at_least_float32
from roundround.kernels.whole_rows import RowFunction
from roundround.softmax.projection import Projection, checked_alpha, entmax_function, entmax_of


@final
class AlphaEntmax(Projection):
    """Gives small logits a weight of zero, and more zeros at a larger alpha: alpha 1 is softmax, alpha 2 is sparsemax.

    alpha_j = max((alpha - 1) e_j - tau, 0)^(1 / (alpha - 1)), tau such that the weights sum to one

    Peters et al. 2019, arXiv:1905.05702, equation 10; learned alpha: Correia et al. 2019, arXiv:1909.00015.

    With `learned`, each head learns its own alpha between 1 and 2, as 1 + sigmoid(parameter), which starts at `alpha`.
    The learned alpha never falls below 1.01, because the gradient with respect to alpha is undefined at 1.
    """

    cost_in_blocks: ClassVar[float] = 60  # by bisection

    def __init__(self, shape: AttentionShape, *, alpha: float, learned: bool) -> None:
        super().__init__(shape)
        checked_alpha(alpha)
        if learned and not 1 < alpha < 2:
            raise ValueError(f"alpha={alpha} must lie between 1 and 2 if it is learned")
        self.fixed_alpha = None if learned or alpha == 1 else alpha
        self.start = alpha
        start = math.log((alpha - 1) / (2 - alpha)) if learned else 0.0
        self.raw_alpha = nn.Parameter(torch.full((shape.n_heads,), start)) if learned else None

    def alpha(self) -> float | Tensor:
        """The fixed alpha, or the learned alpha of each head [H]."""
        return self.start if self.raw_alpha is None else 1 + at_least_float32(self.raw_alpha).sigmoid().clamp(min=0.01)

    def row_function(self, rows: Mapping[str, Tensor], keys: Keys, bias: Bias | None) -> RowFunction | None:
        return entmax_function(self.alpha())

    def project(self, logits_BHQK: Tensor, rows: Mapping[str, Tensor]) -> Tensor:
        return entmax_of(logits_BHQK, self.alpha())
