"""ALiBi."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor

from roundround.kernels.bias import LinearBias
from roundround.kernels.keys import AttentionShape
from roundround.kernels.precision import wide_dtype
from roundround.kernels.variants import checked_positive
from roundround.pe.base import PositionalEncoding


@final
class ALiBi(PositionalEncoding):
    """Lowers each logit in proportion to the distance, with a fixed slope for each head.

    b(i, j) = -slope_h * (i - j), slope_h = 2^(-exponent * h / H), h = 1 .. H

    Press et al. 2021, arXiv:2108.12409, section 3; `exponent` is 8.

    If H is not a power of two, the first slopes are those of the next lower power; the rest are every other slope of
    the next higher power, as in the authors' code. The bias is linear on both sides (a future key would gain), so it is
    meant for causal attention.
    """

    def __init__(self, shape: AttentionShape, *, exponent: float) -> None:
        super().__init__(shape)
        checked_positive(exponent=exponent)
        self.exponent = exponent

    def slopes(self, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> Tensor:
        """Slope of each head, logits per token: [H]. Computed at each use: bfloat16 would round stored slopes."""
        n_heads = self.shape.n_heads
        n_lower = 2 ** (n_heads.bit_length() - 1)
        heads = torch.arange(1, n_lower + 1, dtype=dtype, device=device)
        between = torch.arange(n_heads - n_lower, dtype=dtype, device=device) + 0.5
        return torch.exp2(torch.cat([heads, between]) * (-self.exponent / n_lower))

    def bias(self, q_BHTC: Tensor, k_BGTC: Tensor, prepared: Any) -> LinearBias:
        slopes_H = self.slopes(wide_dtype(q_BHTC.dtype), q_BHTC.device)
        return LinearBias(slopes_H[:, None, None])
