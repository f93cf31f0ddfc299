"""Position interpolation."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from roundround.kernels.keys import AttentionShape
from roundround.pe.scaled import ScaledRoPE


@final
class LinearRoPE(ScaledRoPE):
    """RoPE with every frequency divided by one factor, as if positions were closer together.

    g_k = theta^(-2k / head_dim) / factor

    Chen et al. 2023, arXiv:2306.15595.
    """

    def __init__(
        self,
        shape: AttentionShape,
        *,
        theta: float | None,
        factor: float | None,
        length: int | None,
        original_length: int | None,
    ) -> None:
        super().__init__(shape, theta=theta, factor=factor, length=length, original_length=original_length)

    def frequencies(self, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> Tensor:
        return self.ladder(dtype, device) / self.factor
