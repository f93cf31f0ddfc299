"""Polar coordinates."""

from __future__ import annotations

import math
from typing import ClassVar, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from roundround.kernels.keys import AttentionShape
from roundround.kernels.precision import wide_dtype
from roundround.pe.base import PositionalEncoding
from roundround.pe.rotary import checked_theta


@final
class PoPE(PositionalEncoding):
    """Content sets the length of a channel and position sets its angle, so that neither changes the other.

    e_ij = sum_c softplus(q_ic) softplus(k_jc) cos((j - i) theta^(-c / C) + delta_c), for each of the C channels

    Gopalakrishnan et al. 2025, arXiv:2509.10534 (PoPE).

    delta is learned for each channel of each key head and kept from -2 pi to 0. It starts at 0, or uniform in that
    range if `random_start` is true. Queries and keys have 2 C channels after the rotation, which a cache keeps.
    """

    per_layer: ClassVar[bool] = True

    def __init__(self, shape: AttentionShape, *, random_start: bool, theta: float | None) -> None:
        super().__init__(shape)
        self.theta, self.random_start = checked_theta(theta, shape), random_start
        self.delta = nn.Parameter(torch.empty(shape.n_key_heads, shape.head_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.uniform_(self.delta, -2 * math.pi * self.random_start, 0.0)

    def prepare(self, pos_BT: Tensor, dtype: torch.dtype) -> Tensor:
        """The angle of each channel, [1 or B, 1, T, C], in radians."""
        wide, n = wide_dtype(dtype), self.shape.head_dim
        exponents = torch.arange(n, dtype=torch.int64, device=pos_BT.device).to(wide) / n
        return pos_BT[:, None, :, None].to(wide) / self.theta**exponents

    def rotate_queries(self, q_BHTC: Tensor, prepared: Tensor) -> Tensor:
        return polar(q_BHTC, prepared)

    def rotate_keys(self, k_BGTC: Tensor, prepared: Tensor) -> Tensor:
        return polar(k_BGTC, prepared + self.delta.clamp(-2 * math.pi, 0.0)[:, None].to(prepared.dtype))


def polar(x_BHTC: Tensor, angles: Tensor) -> Tensor:
    """softplus(x) at these angles, [B, H, T, 2 C]: first the cosine parts, then the sine parts."""
    turned = torch.cat([angles.cos(), angles.sin()], -1).to(x_BHTC.dtype)
    return F.softplus(x_BHTC).repeat(1, 1, 1, 2) * turned
