"""Clipped RoPE."""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor

from roundround.kernels.keys import AttentionShape
from roundround.pe.rotary import RotaryEncoding, ladder


@final
class ClippedRoPE(RotaryEncoding):
    """RoPE whose slowest frequencies taper off to zero.

    g_k = w_k theta^(-2k / head_dim), w = (1 + cos(pi j / (n - 1))) / 2 over the n slowest pairs j = 0 .. n - 1, else 1

    Li et al. 2026, arXiv:2602.05258, who name it CoPE; it is not Contextual Position Encoding, also named CoPE.

    `n_clipped` is n; null is the number of pairs that do not turn once within the training context. `hard` sets the
    frequencies of the n pairs to zero, which is p-RoPE.
    """

    def __init__(self, shape: AttentionShape, *, theta: float | None, n_clipped: int | None, hard: bool) -> None:
        super().__init__(shape, theta=theta)
        n_pairs = shape.head_dim // 2
        if n_clipped is None:
            wavelengths = 2 * math.pi / ladder(n_pairs, shape.head_dim, self.theta, torch.float64, "cpu")
            n_clipped = int((wavelengths > shape.train_length).sum())
        if not 0 <= n_clipped <= n_pairs:
            raise ValueError(f"n_clipped={n_clipped} must be from 0 to the {n_pairs} pairs of a head")
        self.n_clipped, self.hard = n_clipped, hard

    def frequencies(self, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> Tensor:
        head_dim, n = self.shape.head_dim, self.n_clipped
        own = ladder(head_dim // 2, head_dim, self.theta, dtype, device)
        first = 0.0 if n > 1 else math.pi  # a single clipped pair does not rotate
        taper = 0.5 * (1 + torch.linspace(first, math.pi, n, dtype=dtype, device=device).cos())
        return torch.cat([own[: len(own) - n], own[len(own) - n :] * (taper * (not self.hard))])
