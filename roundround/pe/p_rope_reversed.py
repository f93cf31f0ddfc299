"""p-RoPE with the fastest frequencies removed instead of the slowest."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from roundround.kernels.keys import AttentionShape
from roundround.pe.p_rope import kept_pairs
from roundround.pe.rotary import RotaryEncoding, ladder


@final
class PRoPEReversed(RotaryEncoding):
    """RoPE without its fastest frequencies: the control for p-RoPE, which lacks the slowest.

    g_k = 0 for k < head_dim / 2 - int(p * head_dim // 2), and theta^(-2k / head_dim) for the remaining pairs

    Barbero et al. 2024, arXiv:2410.06205, table 2 (`0.75-RoPE_reversed`).

    The paper says that it removes the highest frequencies, but prints no code. We assume that the others keep their
    values. p = 1 is RoPE, p = 0 is NoPE.
    """

    def __init__(self, shape: AttentionShape, *, p: float, theta: float | None) -> None:
        super().__init__(shape, theta=theta)
        self.n_kept = kept_pairs(p, shape.head_dim)

    def frequencies(self, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> Tensor:
        n_pairs = self.shape.head_dim // 2
        full = ladder(n_pairs, self.shape.head_dim, self.theta, dtype, device)
        n_dropped = n_pairs - self.n_kept
        return torch.cat([full.new_zeros(n_dropped), full[n_dropped:]])
