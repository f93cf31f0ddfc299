"""Any geometric ladder of frequencies, by two numbers."""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor

from roundround.attention.keys import AttentionShape
from roundround.pe.p_rope import kept_pairs
from roundround.pe.rotary import RotaryEncoding


@final
class RoPELadder(RotaryEncoding):
    """Rotates the first pairs at frequencies from 1 radian a token down to a slowest one, and leaves the rest alone.

    g_k = (2 pi / slowest_wavelength)^(k / (m - 1)), k = 0 .. m - 1, m = int(p * head_dim // 2), and 0 beyond

    Frequencies as in Su et al. 2021, arXiv:2104.09864, with two free numbers: RoPE, p-RoPE and partial RoPE are points
    of this plane (docs/rope_plane.md).

    `slowest_wavelength` is in tokens: how long the slowest pair that rotates takes to turn once, at least 2 pi.
    """

    def __init__(self, shape: AttentionShape, *, p: float, slowest_wavelength: float) -> None:
        super().__init__(shape, theta=None)
        if not 2 * math.pi <= slowest_wavelength < math.inf:
            raise ValueError(f"slowest_wavelength={slowest_wavelength} must be a number of tokens, 2 pi or above")
        self.n_kept, self.slowest_wavelength = kept_pairs(p, shape.head_dim), slowest_wavelength

    def frequencies(self, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> Tensor:
        exponents = torch.arange(self.n_kept, device=device).to(dtype) / max(1, self.n_kept - 1)
        kept = (2 * math.pi / self.slowest_wavelength) ** exponents
        return torch.cat([kept, kept.new_zeros(self.shape.head_dim // 2 - self.n_kept)])
