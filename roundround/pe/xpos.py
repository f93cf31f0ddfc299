"""xPos."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from roundround.kernels.keys import AttentionShape
from roundround.kernels.precision import wide_dtype
from roundround.kernels.variants import checked_positive
from roundround.pe.base import PositionalEncoding
from roundround.pe.rotary import apply_rotation, check_head_dim, checked_theta, ladder, rotation

Rotation = tuple[Tensor, Tensor]


@final
class XPos(PositionalEncoding):
    """RoPE whose logits also decay with the distance, each pair at its own rate: the fast pairs decay fastest.

    q_k <- zeta_k^(i / s) R(g_k i) q_k, k_k <- zeta_k^(-j / s) R(g_k j) k_k, zeta_k = (k / P + gamma) / (1 + gamma)

    Sun et al. 2022, arXiv:2212.10554, algorithm 1.

    P is head_dim / 2 and k = 0 .. P - 1; the paper's gamma is 0.4 and its scale_base s is 512. Exponents count from the
    middle of the positions, so that neither queries nor keys grow large: at 32k positions the factors reach 1e17, which
    float32 and bfloat16 hold and float16 does not.
    """

    def __init__(self, shape: AttentionShape, *, theta: float | None, gamma: float, scale_base: float) -> None:
        super().__init__(shape)
        check_head_dim(shape)
        checked_positive(gamma=gamma, scale_base=scale_base)
        self.theta, self.gamma, self.scale_base = checked_theta(theta, shape), gamma, scale_base

    def prepare(self, pos_BT: Tensor, dtype: torch.dtype) -> tuple[Rotation, Rotation]:
        """Cosines and signed sines [1 or B, T, C] for the queries and for the keys, with the decay multiplied in."""
        middle_B1 = (pos_BT.amin(-1, keepdim=True) + pos_BT.amax(-1, keepdim=True)) // 2
        return self.decayed(pos_BT, dtype, middle_B1)

    def prepare_part(self, pos_BT: Tensor, dtype: torch.dtype, length: int | None) -> tuple[Rotation, Rotation]:
        """`decayed` from the middle of a text of `length` tokens, or of a training text if `length` is None."""
        return self.decayed(pos_BT, dtype, ((length or self.shape.train_length) - 1) // 2)

    def decayed(self, pos_BT: Tensor, dtype: torch.dtype, middle: Tensor | int) -> tuple[Rotation, Rotation]:
        """`prepare` with exponents that count from the position `middle`: one number for all texts, or [B, 1]."""
        wide, n_pairs = wide_dtype(dtype), self.shape.head_dim // 2
        cos, sin = rotation(pos_BT, ladder(n_pairs, 2 * n_pairs, self.theta, wide, pos_BT.device))
        k = torch.arange(n_pairs, dtype=wide, device=pos_BT.device)
        log_zeta_C = (((k / n_pairs + self.gamma) / (1 + self.gamma)).log()).repeat(2)
        steps_BT1 = ((pos_BT - middle).to(wide) / self.scale_base)[..., None]
        decay_BTC = (steps_BT1 * log_zeta_C).exp()
        return (cos * decay_BTC, sin * decay_BTC), (cos / decay_BTC, sin / decay_BTC)

    def rotate_queries(self, q_BHTC: Tensor, prepared: tuple[Rotation, Rotation]) -> Tensor:
        return apply_rotation(q_BHTC, *prepared[0])

    def rotate_keys(self, k_BGTC: Tensor, prepared: tuple[Rotation, Rotation]) -> Tensor:
        return apply_rotation(k_BGTC, *prepared[1])
