"""Llama 3.1's scaling."""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor

from roundround.kernels.keys import AttentionShape
from roundround.kernels.variants import checked_positive
from roundround.pe.scaled import ScaledRoPE


@final
class Llama3RoPE(ScaledRoPE):
    """RoPE whose slow pairs are slowed by a factor and the pairs in the middle by less, while fast pairs stay the same.

    g = (1 - m) f / factor + m f, m = (L_0 f / 2 pi - low) / (high - low) within 0 and 1, f = theta^(-2k / head_dim)

    Grattafiori et al. 2024, arXiv:2407.21783 (Llama 3.1).

    L_0 is the original length; `low_freq_factor` and `high_freq_factor` are low and high, in turns within this length.
    """

    def __init__(
        self,
        shape: AttentionShape,
        *,
        theta: float | None,
        factor: float | None,
        length: int | None,
        original_length: int | None,
        low_freq_factor: float,
        high_freq_factor: float,
    ) -> None:
        super().__init__(shape, theta=theta, factor=factor, length=length, original_length=original_length)
        checked_positive(low_freq_factor=low_freq_factor)
        if not low_freq_factor < high_freq_factor < math.inf:
            raise ValueError(f"high_freq_factor={high_freq_factor} must be above low_freq_factor={low_freq_factor}")
        self.low, self.high = low_freq_factor, high_freq_factor

    def frequencies(self, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> Tensor:
        own = self.ladder(dtype, device)
        wavelengths = 2 * math.pi / own
        long, short = self.original_length / self.low, self.original_length / self.high
        slowed = torch.where(wavelengths > long, own / self.factor, own)
        share = (self.original_length / wavelengths - self.low) / (self.high - self.low)
        between = (1 - share) * slowed / self.factor + share * slowed
        return torch.where((wavelengths < short) | (wavelengths > long), slowed, between)
