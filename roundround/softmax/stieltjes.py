"""The Stieltjes normaliser.

Shapes: B batch, Q queries, K keys, H heads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, final

import torch
from torch import Tensor

from roundround.kernels.keys import AttentionShape
from roundround.softmax.base import AttentionSoftmax, exp_or_zero


@final
class Stieltjes(AttentionSoftmax):
    """Weights fall with a power of the distance below the largest logit: heavier tails than those of the softmax.

    alpha_j = (lambda - e_j)^(-q), lambda > max_l e_l such that the weights sum to one

    It is alpha-entmax of q e with alpha = 1 - 1 / q, below 1 (Peters et al. 2019, arXiv:1905.05702, equation 10). The
    form with a power is from jtaylor-eng/probability-simplex-mappings, `mappings/stieltjes.py`. That code takes three
    Newton steps from lambda - max = 1.1: at q 1, its rows of 1,024 normal logits sum to 31 to 37. Here lambda is
    computed to the last digit.
    """

    cost_in_blocks: ClassVar[float] = 20

    def __init__(self, shape: AttentionShape, *, q: float) -> None:
        super().__init__(shape)
        if not 1 <= q < math.inf:
            raise ValueError(f"q={q} must be a finite number of at least 1; the softmax of q e is the limit of large q")
        self.q = q

    def normalise(self, logits_BHQK: Tensor, visible_B1QK: Tensor, rows: Mapping[str, Tensor]) -> Tensor:
        seen_BHQK = logits_BHQK.masked_fill(~visible_B1QK, -1e30)  # has no weight, but is finite, for the product below
        alpha_BHQK, slopes_BHQK = inverse_power(seen_BHQK, self.q)
        if not seen_BHQK.requires_grad:
            return alpha_BHQK
        # a term of value 0 carries the gradient: d alpha_j = slope_j (d e_j - d lambda), where d lambda is the mean of
        # all d e_l, weighted by their slopes, because the sum stays one
        moved_BHQK = slopes_BHQK * seen_BHQK
        d_lambda_BHQ1 = moved_BHQK.sum(-1, keepdim=True) / slopes_BHQK.sum(-1, keepdim=True)
        moved_BHQK = moved_BHQK - slopes_BHQK * d_lambda_BHQ1
        return alpha_BHQK + (moved_BHQK - moved_BHQK.detach())


@torch.no_grad()
def inverse_power(logits: Tensor, q: float) -> tuple[Tensor, Tensor]:
    """The weights (lambda - logits)^(-q), which sum to one over the last axis, and their slopes.

    The slopes are q (lambda - logits)^(-q-1). Newton's steps search the root of S(u)^(-1/q) - 1 from u = 0, where S is
    the sum of the weights and u = lambda - max - 1. This function is increasing and concave in u, so the steps rise to
    its root and never pass it. For 2 to 100,000 logits (equal, normal with spreads of 1e-3 to 1e4, Cauchy, linear,
    geometric, one above many equal ones), S is right to the last digit of float64 after 10 steps for q 1, 8 for q 1.5,
    7 for q 2, 5 for q 4 and 4 for q 16.
    """
    below = logits.amax(-1, keepdim=True) - logits
    u = torch.zeros_like(below[..., :1])
    for _ in range(3 + math.ceil(7 / q)):
        alpha, slopes = powers(below + u, q)
        total = alpha.sum(-1, keepdim=True)
        u = u + torch.expm1(total.log() / q) * total / slopes.sum(-1, keepdim=True)
    alpha, slopes = powers(below + u, q)
    return alpha / alpha.sum(-1, keepdim=True), q * slopes  # the rounding of u is that of all keys


def powers(x: Tensor, q: float) -> tuple[Tensor, Tensor]:
    """(1 + x)^(-q), and the same to the power -q - 1; precise for x near 0."""
    alpha = exp_or_zero(-q * torch.log1p(x))
    return alpha, alpha / (1 + x)
