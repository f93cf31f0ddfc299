"""A learned sink for each head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

import torch
from torch import Tensor, nn

from roundround.kernels.keys import AttentionShape
from roundround.kernels.precision import at_least_float32
from roundround.kernels.variants import checked_finite
from roundround.softmax.null_key import NullKey


@final
class Sink(NullKey):
    """Lets part of each head's attention go to nothing, by a learned logit of one extra key whose value is zero.

    alpha_j = exp(e_j) / (exp(s_h) + sum_l exp(e_l))

    OpenAI 2025, arXiv:2508.10925 (gpt-oss); the idea is from Xiao et al. 2023, arXiv:2309.17453.

    The logit starts at `init_logit`.
    """

    def __init__(self, shape: AttentionShape, *, init_logit: float) -> None:
        super().__init__(shape)
        checked_finite(init_logit=init_logit)
        self.logit = nn.Parameter(torch.full((shape.n_heads,), init_logit))

    def null_logit(self, rows: Mapping[str, Tensor], device: torch.device) -> Tensor:
        return at_least_float32(self.logit)[None, :, None]
