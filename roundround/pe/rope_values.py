"""RoPE of values: p-RoPE that also rotates values, and rotates outputs back."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from roundround.kernels.keys import AttentionShape
from roundround.pe.p_rope import kept_pairs
from roundround.pe.rotary import RotaryEncoding, apply_rotation, ladder


@final
class RoPEValues(RotaryEncoding):
    """Queries, keys and values are rotated by their positions, and outputs back, so that values carry the distance.

    y_i = R(-i) sum_j a_ij R(j) v_j = sum_j a_ij R(j - i) v_j, with the frequencies of p-RoPE

    Garcia-Castellanos et al. 2026, arXiv:2606.11275 (RoVE).

    p: the share of the pairs that rotate, in queries and keys and in values, the fastest first; with p = 1, RoPE.
    """

    def __init__(self, shape: AttentionShape, *, p: float, theta: float | None) -> None:
        super().__init__(shape, theta=theta)
        self.p = p
        self.n_kept = kept_pairs(p, shape.head_dim)

    def frequencies(self, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> Tensor:
        head_dim = self.shape.head_dim
        kept = ladder(self.n_kept, head_dim, self.theta, dtype, device)
        return torch.cat([kept, kept.new_zeros(head_dim // 2 - self.n_kept)])

    def rotate_values(self, v_BGTC: Tensor, prepared: tuple[Tensor, Tensor]) -> Tensor:
        return apply_rotation(v_BGTC, *prepared)

    def rotate_outputs(self, out_BHTC: Tensor, prepared: tuple[Tensor, Tensor]) -> Tensor:
        cos_BTR, sin_BTR = prepared
        return apply_rotation(out_BHTC, cos_BTR, -sin_BTR)
