"""RoPE at any geometric sequence of frequencies, given by two numbers."""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor

from roundround.kernels.keys import AttentionShape
from roundround.pe.p_rope import kept_pairs
from roundround.pe.rotary import RotaryEncoding


@final
class RoPELadder(RotaryEncoding):
    """Rotates the first pairs at frequencies from 1 radian per token down to a slowest one, and leaves the rest alone.

    g_k = (2 pi / slowest_wavelength)^(k / (m - 1)), k = 0 .. m - 1, m = int(p * head_dim // 2), and 0 beyond

    Frequencies as in Su et al. 2021, arXiv:2104.09864, with two free numbers, p and the slowest wavelength: RoPE,
    p-RoPE and partial RoPE are special cases.

    `slowest_wavelength`: the number of tokens in which the slowest rotating pair turns once, at least 2 pi.
    `of_length`: the trained length for which this number was chosen; null for the model's own. If the model's
    trained length differs from `of_length`, the number is adjusted: on a logarithmic scale, its relative position
    between 2 pi and the trained length stays the same. Then the share of rotating pairs that do not turn once within
    the trained length stays the same too.
    """

    def __init__(self, shape: AttentionShape, *, p: float, slowest_wavelength: float, of_length: int | None) -> None:
        super().__init__(shape, theta=None)
        fastest = 2 * math.pi
        if not fastest <= slowest_wavelength < math.inf:
            raise ValueError(f"slowest_wavelength={slowest_wavelength} must be a number of tokens, 2 pi or above")
        if of_length is not None:
            if min(of_length, shape.train_length) <= fastest:
                raise ValueError(f"of_length={of_length} and the trained length {shape.train_length} must exceed 2 pi")
            place = math.log(slowest_wavelength / fastest) / math.log(of_length / fastest)
            slowest_wavelength = fastest * (shape.train_length / fastest) ** place
        self.n_kept, self.slowest_wavelength = kept_pairs(p, shape.head_dim), slowest_wavelength

    def frequencies(self, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> Tensor:
        exponents = torch.arange(self.n_kept, device=device).to(dtype) / max(1, self.n_kept - 1)
        kept = (2 * math.pi / self.slowest_wavelength) ** exponents
        return torch.cat([kept, kept.new_zeros(self.shape.head_dim // 2 - self.n_kept)])
