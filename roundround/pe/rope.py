"""RoPE."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from roundround.kernels.keys import AttentionShape
from roundround.pe.rotary import RotaryEncoding, ladder


@final
class RoPE(RotaryEncoding):
    """Rotates every channel pair of queries and keys by its own frequency, so logits depend only on distance.

    g_k = theta^(-2k / head_dim), k = 0 .. head_dim / 2 - 1

    Su et al. 2021, arXiv:2104.09864, equation 15.

    `learned_frequencies` learns the frequencies g_k exp(a_k), shared by all layers; a_k starts at 0 (Mistral Large 4).
    """

    def __init__(self, shape: AttentionShape, *, theta: float | None, learned_frequencies: bool = False) -> None:
        super().__init__(shape, theta=theta)
        self.log_factor_P = nn.Parameter(torch.zeros(shape.head_dim // 2)) if learned_frequencies else None

    def frequencies(self, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> Tensor:
        head_dim = self.shape.head_dim
        own = ladder(head_dim // 2, head_dim, self.theta, dtype, device)
        return own if self.log_factor_P is None else own * self.log_factor_P.to(own).exp()
