"""Adaptive-scalable entmax.

Shapes: B batch, T tokens, Q queries, K keys, H heads, S scaled heads, D model width.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from roundround.kernels.bias import Bias
from roundround.kernels.heads import n_scaled_heads, of_all_heads
from roundround.kernels.keys import AttentionShape, Keys
from roundround.kernels.precision import at_least_float32
from roundround.kernels.variants import checked_finite
from roundround.kernels.whole_rows import RowFunction
from roundround.softmax.base import checked_count
from roundround.softmax.projection import Projection, checked_alpha, entmax_function, entmax_of


@final
class ASEntmax(Projection):
    """Entmax of scaled logits: the query's token determines how the scale depends on the logarithm of the row's length.

    alpha = entmax_alpha((delta + beta ln(1 + n)^gamma) e), beta = softplus(w x + w_0), gamma = g tanh(u x + u_0)

    Vasylenko et al. 2025, arXiv:2506.16640; n is the number of visible keys, counted from 2 as in the authors' code.

    `gamma_range` is g: 2 in the authors' code (deep-spin/asentmax, `attn_scale_gamma_range`); with 1, gamma is a plain
    tanh.

    `start`: the scale before training, for every token and length; w, u and u_0 are then 0, and softplus(w_0) is
    `start` - delta. With delta=0 and start=1, training begins with the plain entmax. If `start` is null, w and u are
    drawn at random, as in the authors' code: before training, the scale then differs between tokens, from 1 to several
    units; a typical scale is delta + 0.7.

    `scaled_heads`: the share of the heads that are scaled, rounded up; the last heads are scaled, and the first heads
    use the plain entmax. If `scaled_heads` is null, all heads are scaled; the authors scale the heads that NAPE leaves
    without position. `count`: with `visible`, n counts the visible keys; with `position`, n counts all tokens up to the
    query's own.
    """

    def __init__(
        self,
        shape: AttentionShape,
        *,
        alpha: float,
        delta: float,
        gamma_range: float,
        start: float | None,
        scaled_heads: float | None,
        count: str = "visible",
    ) -> None:
        super().__init__(shape)
        self.count = checked_count(count)
        checked_alpha(alpha)
        checked_finite(delta=delta, gamma_range=gamma_range)
        if start is not None and not delta < start < math.inf:
            raise ValueError(
                f"start={start} must be a finite number above delta={delta}, or null; delta=0 and start=1 give the "
                "plain entmax before training"
            )
        n_scaled = n_scaled_heads(shape.n_heads, scaled_heads)
        self.alpha, self.delta, self.gamma_range, self.start = alpha, delta, gamma_range, start
        self.beta = nn.Linear(shape.d_model, n_scaled)
        self.gamma = nn.Linear(shape.d_model, n_scaled)
        if start is not None:
            self.begin_at(start)

    @torch.no_grad()
    def begin_at(self, start: float) -> None:
        """Set the parameters so that the scale is `start` for every token and length."""
        for parameter in self.parameters():
            parameter.zero_()
        beta = start - self.delta
        self.beta.bias.fill_(beta + math.log(-math.expm1(-beta)))  # its softplus is beta

    def row_parameters(self, x_BTD: Tensor) -> dict[str, Tensor]:
        beta_BTS = F.softplus(at_least_float32(self.beta(x_BTD)))
        gamma_BTS = self.gamma_range * torch.tanh(at_least_float32(self.gamma(x_BTD)))
        return {"beta": beta_BTS.mT[..., None], "gamma": gamma_BTS.mT[..., None]}

    def row_function(self, rows: Mapping[str, Tensor], keys: Keys, bias: Bias | None) -> RowFunction:
        return entmax_function(self.alpha, self.factor(self.n_counted(keys), rows))

    def normalise(self, logits_BHQK: Tensor, visible_B1QK: Tensor, rows: Mapping[str, Tensor]) -> Tensor:
        return super().normalise(logits_BHQK * self.factor(rows["n_visible"], rows), visible_B1QK, rows)

    def factor(self, n_visible: Tensor, rows: Mapping[str, Tensor]) -> Tensor:
        """The factor that multiplies the logits of each row, [B, H, Q, 1]."""
        ln_n = (1 + n_visible.clamp(min=1)).to(rows["beta"].dtype).log()
        return of_all_heads(self.delta + rows["beta"] * ln_n ** rows["gamma"], self.shape.n_heads)

    def project(self, logits_BHQK: Tensor, rows: Mapping[str, Tensor]) -> Tensor:
        return entmax_of(logits_BHQK, self.alpha)
