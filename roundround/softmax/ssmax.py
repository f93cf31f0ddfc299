"""Scalable-Softmax."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import final

import torch
from torch import Tensor, nn

from roundround.kernels.heads import n_scaled_heads, of_all_heads
from roundround.kernels.keys import AttentionShape
from roundround.kernels.precision import at_least_float32
from roundround.kernels.variants import checked_finite
from roundround.softmax.base import checked_count
from roundround.softmax.row_scale import RowScale


@final
class SSMax(RowScale):
    """Multiplies the logits by the logarithm of the row's length and a strength that each head learns.

    alpha_j = exp(beta e_j) / sum_l exp(beta e_l), beta = s_h ln n + b_h, n the visible keys

    Nakanishi 2025, arXiv:2501.19399, equations 2 and 5.

    `s`: the initial s_h; null is 1 / ln(training context length). A row of that length then gets the plain softmax.
    `bias`: whether b_h is added, which starts at `b`; the paper finds that b_h hurts longer contexts. `count`: with
    `visible`, n counts the visible keys; with `position`, n counts all tokens up to the query's own.

    `scaled_heads`: the share of the heads that are scaled, rounded up; the last heads are scaled, and the first heads
    use the plain softmax. If `scaled_heads` is null, all heads are scaled. Vasylenko et al. 2025, arXiv:2506.16640,
    scale the heads that NAPE leaves without position.
    """

    reads_entropy = False

    def __init__(
        self,
        shape: AttentionShape,
        *,
        s: float | None,
        bias: bool,
        scaled_heads: float | None,
        b: float = 0.0,
        count: str = "visible",
    ) -> None:
        super().__init__(shape)
        self.count = checked_count(count)
        n_scaled = n_scaled_heads(shape.n_heads, scaled_heads)
        start = 1 / math.log(max(shape.train_length, 2)) if s is None else s
        checked_finite(s=start, b=b)
        if start < 0:
            raise ValueError(f"s={start} must not be negative: a negative scale reverses the order of the weights")
        self.s = nn.Parameter(torch.full((n_scaled,), start))
        self.b = nn.Parameter(torch.full((n_scaled,), b)) if bias else None

    def beta(self, n_visible: Tensor, entropy: Callable[[], Tensor]) -> Tensor:
        beta = at_least_float32(self.s)[:, None, None] * n_visible.clamp(min=1).log()
        if self.b is not None:
            beta = beta + at_least_float32(self.b)[:, None, None]
        return of_all_heads(beta, self.shape.n_heads)
