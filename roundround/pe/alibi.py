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
    """Lowers each logit in proportion to the distance, at a fixed slope a head: steep heads look near, flat ones far.

    b(i, j) = -slope_h * (i - j), slope_h = 2^(-exponent * h / H), h = 1 .. H

    Press et al. 2021, arXiv:2108.12409, section 3; `exponent` is 8.

    Where H is no power of two the slopes are those for the next lower power, then every other one of those for the
    next higher, as in the authors' code. The bias is linear on both sides (a key of the future would gain), so it is
    meant for causal attention.
    """

    def __init__(self, shape: AttentionShape, *, exponent: float) -> None:
        super().__init__(shape)
        checked_positive(exponent=exponent)
        self.exponent = exponent

    def slopes(self, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> Tensor:
        """Slope of each head, logits per token: [H]. Computed where used, because bfloat16 would round them."""
        n_heads = self.shape.n_heads
        n_lower = 2 ** (n_heads.bit_length() - 1)
        heads = torch.arange(1, n_lower + 1, dtype=dtype, device=device)
        between = torch.arange(n_heads - n_lower, dtype=dtype, device=device) + 0.5
        return torch.exp2(torch.cat([heads, between]) * (-self.exponent / n_lower))

    def bias(self, q_BHTC: Tensor, k_BGTC: Tensor, prepared: Any) -> LinearBias:
        slopes_H = self.slopes(wide_dtype(q_BHTC.dtype), q_BHTC.device)
        return LinearBias(slopes_H[:, None, None])
