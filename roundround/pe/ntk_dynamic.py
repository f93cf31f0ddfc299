"""Dynamic NTK scaling."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from roundround.kernels.keys import AttentionShape
from roundround.pe.rotary import ladder
from roundround.pe.scaled import FollowsLength


@final
class DynamicNTK(FollowsLength):
    """RoPE whose base grows with the text's length beyond the length of training, so that fast pairs hardly change.

    g_k = b^(-2k / d), b = theta (factor L / L_0 - (factor - 1))^(d / (d - 2)), L the text's length, at least L_0

    emozilla 2023, after bloc97 2023 (NTK-aware scaling); Peng et al. 2023, arXiv:2309.00071, section 3.3.
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
        if shape.head_dim < 4:
            raise ValueError(f"head_dim={shape.head_dim} must be at least 4: the exponent in the base is d / (d - 2)")

    def frequencies_at(self, length: int, dtype: torch.dtype, device: torch.device | str) -> Tensor:
        d, longest = self.shape.head_dim, max(length, self.original_length)
        base = self.theta * ((self.factor * longest / self.original_length) - (self.factor - 1)) ** (d / (d - 2))
        return ladder(d // 2, d, base, dtype, device)
