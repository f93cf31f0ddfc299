"""Differential attention: the difference of two attention maps, around any normaliser, in both published forms.

Shapes: B batch, T tokens, K keys, H heads, G key heads, C head channels, D model width.

Tested by tests/model/test_differential_attention.py.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, final

import torch
from torch import Tensor, nn

from roundround.kernels.keys import AttentionShape
from roundround.kernels.precision import at_least_float32
from roundround.kernels.variants import checked_positive
from roundround.model.block import MultiHeadAttention

if TYPE_CHECKING:
    from roundround.model.block import LayerKind


@final
class DifferentialAttention(MultiHeadAttention):
    """Subtracts a second attention map from the first, with a share that the token chooses; twice as many queries.

    y_h = A_(2h) v - sigmoid(w_h . x) A_(2h + 1) v

    Microsoft 2026, github.com/microsoft/unilm, Diff-Transformer-V2, after Ye et al. 2024, arXiv:2410.05258.

    Both query heads of a head share its key head. There is no norm after the difference.
    """

    maps: ClassVar[int] = 2

    def __init__(self, shape: AttentionShape, kind: LayerKind, bias: bool = False) -> None:
        super().__init__(shape, kind, bias)
        self.share = nn.Linear(shape.d_model, shape.n_heads, bias=False)

    def combined(self, out_BHTC: Tensor, x_BTD: Tensor) -> Tensor:
        first_BHTC, second_BHTC = out_BHTC[:, ::2], out_BHTC[:, 1::2]
        share_BHT1: Tensor = torch.sigmoid(self.share(x_BTD)).mT[..., None]
        return first_BHTC - share_BHT1 * second_BHTC


@final
class DifferentialAttentionV1(MultiHeadAttention):
    """Pairs the heads of the two halves: one map minus a learned multiple of the other reads the values of both.

    y_h = (1 - l_0) norm((A_h - l A_(h + H/2)) [v_h, v_(h + H/2)]), l = exp(q_1 . k_1) - exp(q_2 . k_2) + l_0

    Ye et al. 2024, arXiv:2410.05258, equations 1 to 3, with the heads as in DiffLlama of transformers; l_0 = 0.8 - 0.6
    exp(-0.3 layer), and norm is an RMSNorm without gain.

    norm_eps: the epsilon of this norm. std: the standard deviation of q_1, k_1, q_2 and k_2 before training.
    """

    def __init__(
        self, shape: AttentionShape, kind: LayerKind, bias: bool = False, *, norm_eps: float, std: float
    ) -> None:
        if shape.n_key_heads % 2:
            raise ValueError(f"n_key_heads={shape.n_key_heads} must be even, because heads and key heads form pairs")
        checked_positive(norm_eps=norm_eps, std=std)
        super().__init__(shape, kind, bias)
        self.start = 0.8 - 0.6 * math.exp(-0.3 * shape.layer)
        self.of_pairs = nn.Parameter(torch.empty(4, shape.head_dim).normal_(std=std))  # q_1, k_1, q_2, k_2
        self.norm = nn.RMSNorm(2 * shape.head_dim, eps=norm_eps, elementwise_affine=False)

    def products(self, n_keys: int) -> int:
        return 3 * self.shape.n_heads * self.shape.head_dim * n_keys  # values are twice as wide as queries

    def read_values(self, v_BGKC: Tensor) -> Tensor:
        return torch.cat(v_BGKC.chunk(2, 1), -1).repeat(1, 2, 1, 1)

    def combined(self, out_BHTC: Tensor, x_BTD: Tensor) -> Tensor:
        q_1, k_1, q_2, k_2 = at_least_float32(self.of_pairs)
        share = torch.exp(q_1 @ k_1) - torch.exp(q_2 @ k_2) + self.start
        first, second = out_BHTC.chunk(2, 1)
        y: Tensor = self.norm(first - share.to(out_BHTC.dtype) * second) * (1 - self.start)
        return torch.stack(y.chunk(2, -1), 2).flatten(1, 2)  # a pair gives two heads of the usual width
