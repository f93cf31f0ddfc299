"""LongRoPE."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from roundround.kernels.keys import AttentionShape
from roundround.kernels.variants import checked_positive
from roundround.pe.scaled import FollowsLength


@final
class LongRoPE(FollowsLength):
    """Divides each frequency by a number of its own, with one set of numbers up to the trained length and one beyond.

    g_k = theta^(-2k / d) / lambda_k; cosines and sines times sqrt(1 + ln(factor) / ln(L_0))

    Ding et al. 2024, arXiv:2402.13753.

    `short_factor`: lambda_k of every pair for texts up to the trained length L_0; null is 1 for every pair.
    `long_factor`: lambda_k of every pair for longer texts; null is `factor` for every pair. `attention_factor`: the
    number that multiplies cosines and sines; null is the square root above.
    """

    def __init__(
        self,
        shape: AttentionShape,
        *,
        theta: float | None,
        factor: float | None,
        length: int | None,
        original_length: int | None,
        short_factor: Sequence[float] | None,
        long_factor: Sequence[float] | None,
        attention_factor: float | None,
    ) -> None:
        super().__init__(shape, theta=theta, factor=factor, length=length, original_length=original_length)
        n_pairs = shape.head_dim // 2
        self.short = [1.0] * n_pairs if short_factor is None else list(short_factor)
        self.long = [self.factor] * n_pairs if long_factor is None else list(long_factor)
        for name, values in (("short_factor", self.short), ("long_factor", self.long)):
            if len(values) != n_pairs:
                raise ValueError(f"{name} has {len(values)} numbers, and a head has {n_pairs} pairs")
            checked_positive(**{f"{name}[{i}]": value for i, value in enumerate(values)})
        if attention_factor is None:
            grown = math.log(self.factor) / math.log(max(2, self.original_length))
            attention_factor = 1.0 if self.factor <= 1 else math.sqrt(1 + grown)
        checked_positive(attention_factor=attention_factor)
        self.attention_factor = attention_factor

    def frequencies_at(self, length: int, dtype: torch.dtype, device: torch.device | str) -> Tensor:
        d = self.shape.head_dim
        divisors = torch.tensor(self.long if length > self.original_length else self.short, dtype=dtype, device=device)
        return 1.0 / (divisors * self.theta ** (torch.arange(0, d, 2, dtype=torch.int64, device=device).to(dtype) / d))
