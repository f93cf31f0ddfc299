"""Partial rotary encoding, which is not p-RoPE."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from roundround.kernels.keys import AttentionShape
from roundround.pe.p_rope import kept_pairs
from roundround.pe.rotary import RotaryEncoding, ladder


@final
class PartialRoPE(RotaryEncoding):
    """Rotates the first p * head_dim channels at RoPE's full range of frequencies and leaves the other channels alone.

    g_k = theta^(-2k / rotary_dim), k = 0 .. rotary_dim / 2 - 1, with rotary_dim = 2 * int(p * head_dim // 2)

    Black et al. 2022, arXiv:2204.06745, section 2.1.1 (GPT-NeoX).

    Unlike p-RoPE, it keeps the slowest frequencies, down to about 1 / theta: its frequencies are further apart. Barbero
    et al. 2024 (arXiv:2410.06205, table 2) compare the two as `0.75-RoPE_partial` and `0.75-RoPE`. p = 1 is RoPE,
    p = 0 is NoPE.
    """

    def __init__(self, shape: AttentionShape, *, p: float, theta: float | None) -> None:
        super().__init__(shape, theta=theta)
        self.n_kept = kept_pairs(p, shape.head_dim)

    def frequencies(self, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> Tensor:
        return ladder(self.n_kept, 2 * self.n_kept, self.theta, dtype, device)
