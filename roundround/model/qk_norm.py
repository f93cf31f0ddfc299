"""Normalised queries and keys: no logit grows with the length of a vector.

Shapes: B batch, T tokens, H heads, G key heads, C head channels.

Tested by tests/trained/test_patterns.py.
"""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor, nn

from roundround.kernels.keys import AttentionShape
from roundround.kernels.precision import at_least_float32
from roundround.kernels.variants import FinalVariants


class QueryKeyNorm(FinalVariants, nn.Module):
    """Base of modules that normalise queries and keys, before the rotation, or after it if `after_rotation`.

    A variant is one final class with `__init__(self, shape, *, tunables)`; each layer has one instance.
    """

    after_rotation: bool = False

    def __init__(self, shape: AttentionShape) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, q_BHTC: Tensor, k_BGTC: Tensor) -> tuple[Tensor, Tensor]:
        """The normalised queries and keys."""
        raise NotImplementedError

    def of_values(self, v_BGTC: Tensor) -> Tensor:
        """The values, normalised or, by default, unchanged."""
        return v_BGTC


@final
class RMSQueryKeyNorm(QueryKeyNorm):
    """Divides queries and keys by the root mean square of their channels.

    q <- g_q q / sqrt(mean(q^2) + eps), and k alike

    Dehghani et al. 2023, arXiv:2302.05442 (QK-norm); Gemma Team 2025, arXiv:2503.19786.

    With `gain`, g is learned for each channel and starts at 1; otherwise g is 1. With `across_heads`, the mean is over
    the channels of all heads, as in OLMo 2 and 3. With `values`, values are normalised too, without a gain, as in
    Gemma 4.
    """

    def __init__(
        self, shape: AttentionShape, *, gain: bool, after_rotation: bool, across_heads: bool, values: bool, eps: float
    ) -> None:
        super().__init__(shape)
        self.after_rotation, self.across_heads, self.values, self.eps = after_rotation, across_heads, values, eps
        widths = [n * shape.head_dim if across_heads else shape.head_dim for n in (shape.n_heads, shape.n_key_heads)]
        self.q_norm, self.k_norm = (nn.RMSNorm(width, eps=eps, elementwise_affine=gain) for width in widths)

    def forward(self, q_BHTC: Tensor, k_BGTC: Tensor) -> tuple[Tensor, Tensor]:
        if not self.across_heads:
            return self.q_norm(q_BHTC), self.k_norm(k_BGTC)
        q_BTHC, k_BTGC = q_BHTC.transpose(1, 2), k_BGTC.transpose(1, 2)
        q_BTHC = self.q_norm(q_BTHC.flatten(2)).view_as(q_BTHC)
        k_BTGC = self.k_norm(k_BTGC.flatten(2)).view_as(k_BTGC)
        return q_BTHC.transpose(1, 2), k_BTGC.transpose(1, 2)

    def of_values(self, v_BGTC: Tensor) -> Tensor:
        return nn.functional.rms_norm(v_BGTC, v_BGTC.shape[-1:], eps=self.eps) if self.values else v_BGTC


@final
class L2QueryKeyNorm(QueryKeyNorm):
    """Makes a logit the cosine of the angle between query and key, times a number that each head learns.

    e_j = g_h q . k_j / (|q| |k_j|)

    Henry et al. 2020, arXiv:2010.04245.

    `start` is the initial g; null means log2(L^2 - L), as in the paper, where L is the training context length.
    """

    def __init__(self, shape: AttentionShape, *, start: float | None) -> None:
        super().__init__(shape)
        length = max(2, shape.train_length)
        start = math.log2(length * length - length) if start is None else start
        self.g = nn.Parameter(torch.full((shape.n_heads,), start))

    def forward(self, q_BHTC: Tensor, k_BGTC: Tensor) -> tuple[Tensor, Tensor]:
        q_BHTC, k_BGTC = nn.functional.normalize(q_BHTC, dim=-1), nn.functional.normalize(k_BGTC, dim=-1)
        g_H11 = at_least_float32(self.g)[:, None, None] / self.shape.scale  # the scale multiplies the logit afterwards
        return (q_BHTC * g_H11).to(q_BHTC.dtype), k_BGTC
