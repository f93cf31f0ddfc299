"""YaRN."""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor

from roundround.kernels.keys import AttentionShape
from roundround.kernels.variants import checked_positive
from roundround.pe.scaled import ScaledRoPE


@final
class YaRN(ScaledRoPE):
    """Slows the pairs that hardly turn within the trained length, keeps the fast pairs, and sharpens all logits.

    g_k = (1 - r_k + r_k / factor) theta^(-2k / head_dim), cosines and sines times a = 0.1 ln(factor) + 1

    Peng et al. 2023, arXiv:2309.00071, sections 3.2 and 3.4.

    r is a ramp from 0 to 1 between the pairs that turn `beta_fast` and `beta_slow` times within the original length.
    `truncate` rounds the ends of the ramp to whole pairs. `attention_factor`: the number that multiplies cosines and
    sines; null is the number a of the formula. If `mscale` and `mscale_all_dim` are given, null is
    (0.1 mscale ln(factor) + 1) / (0.1 mscale_all_dim ln(factor) + 1) instead, as in DeepSeek.
    """

    def __init__(
        self,
        shape: AttentionShape,
        *,
        theta: float | None,
        factor: float | None,
        length: int | None,
        original_length: int | None,
        beta_fast: float,
        beta_slow: float,
        truncate: bool,
        attention_factor: float | None,
        mscale: float | None,
        mscale_all_dim: float | None,
    ) -> None:
        super().__init__(shape, theta=theta, factor=factor, length=length, original_length=original_length)
        checked_positive(beta_fast=beta_fast, beta_slow=beta_slow)
        self.beta_fast, self.beta_slow, self.truncate = beta_fast, beta_slow, truncate
        if attention_factor is None and mscale and mscale_all_dim:
            attention_factor = self.sharpening(mscale) / self.sharpening(mscale_all_dim)
        self.attention_factor = self.sharpening(1.0) if attention_factor is None else attention_factor
        checked_positive(attention_factor=self.attention_factor)

    def sharpening(self, scale: float) -> float:
        return 1.0 if self.factor <= 1 else 0.1 * scale * math.log(self.factor) + 1.0

    def pair_that_turns(self, times: float) -> float:
        """The index of the pair that turns `times` times within the original length, as a real number."""
        d = self.shape.head_dim
        return (d * math.log(self.original_length / (times * 2 * math.pi))) / (2 * math.log(self.theta))

    def frequencies(self, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> Tensor:
        d = self.shape.head_dim
        low, high = self.pair_that_turns(self.beta_fast), self.pair_that_turns(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, d - 1)
        pairs = torch.arange(d // 2, dtype=dtype, device=device)
        kept = 1 - ((pairs - low) / (high + 0.001 * (low == high) - low)).clamp(0, 1)
        periods = self.theta ** (torch.arange(0, d, 2, device=device).to(dtype) / d)
        return 1.0 / (self.factor * periods) * (1 - kept) + 1.0 / periods * kept
