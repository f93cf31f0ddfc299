"""RoPE of values: p-RoPE that also rotates values, and rotates outputs back."""

from __future__ import annotations

from typing import final

from torch import Tensor

from roundround.pe.p_rope import FastestPairs
from roundround.pe.rotary import apply_rotation


@final
class RoPEValues(FastestPairs):
    """Queries, keys and values are rotated by their positions, and outputs back, so that values carry the distance.

    y_i = R(-i) sum_j a_ij R(j) v_j = sum_j a_ij R(j - i) v_j, with the frequencies of p-RoPE

    Garcia-Castellanos et al. 2026, arXiv:2606.11275 (RoVE).

    p: the share of the pairs that rotate, in queries and keys and in values, the fastest first; with p = 1, RoPE.
    """

    def rotate_values(self, v_BGTC: Tensor, prepared: tuple[Tensor, Tensor]) -> Tensor:
        return apply_rotation(v_BGTC, *prepared)

    def rotate_outputs(self, out_BHTC: Tensor, prepared: tuple[Tensor, Tensor]) -> Tensor:
        cos_BTR, sin_BTR = prepared
        return apply_rotation(out_BHTC, cos_BTR, -sin_BTR)
