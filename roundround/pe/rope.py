"""RoPE."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from roundround.attention.keys import AttentionShape
from roundround.pe.rotary import RotaryEncoding, ladder


@final
class RoPE(RotaryEncoding):
    """Rotates every channel pair of queries and keys by its own frequency, so logits depend on distance alone.

    g_k = theta^(-2k / head_dim), k = 0 .. head_dim / 2 - 1

    Su et al. 2021, arXiv:2104.09864, equation 15.
    """

    def __init__(self, shape: AttentionShape, *, theta: float | None) -> None:
        super().__init__(shape, theta=theta)

    def frequencies(self, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> Tensor:
        head_dim = self.shape.head_dim
        return ladder(head_dim // 2, head_dim, self.theta, dtype, device)
