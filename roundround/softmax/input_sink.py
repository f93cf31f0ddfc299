"""A sink whose logit each token computes from its own input.

Shapes: B batch, T tokens, H heads, D model width.
"""

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
class InputSink(NullKey):
    """Lets part of each head's attention go to nothing; a logit computed from the query's token determines how much.

    alpha_j = exp(e_j) / (exp(s) + sum_l exp(e_l)), s = w_h . x_i + b_h

    Inkling 2, 2026, without b; a sink without w is the `sink` of gpt-oss, OpenAI 2025, arXiv:2508.10925.

    x_i is the layer's input. w starts at 0 and b at `init_logit`; if this is null, there is no b.
    """

    def __init__(self, shape: AttentionShape, *, init_logit: float | None) -> None:
        super().__init__(shape)
        self.weight = nn.Parameter(torch.zeros(shape.n_heads, shape.d_model))
        self.logit = None
        if init_logit is not None:
            checked_finite(init_logit=init_logit)
            self.logit = nn.Parameter(torch.full((shape.n_heads,), init_logit))

    def row_parameters(self, x_BTD: Tensor) -> dict[str, Tensor]:
        with torch.autocast(x_BTD.device.type, enabled=False):
            s_BTH = at_least_float32(x_BTD) @ at_least_float32(self.weight).mT
        if self.logit is not None:
            s_BTH = s_BTH + at_least_float32(self.logit)
        return {"sink": s_BTH.mT[..., None]}

    def null_logit(self, rows: Mapping[str, Tensor], device: torch.device) -> Tensor:
        return rows["sink"][..., 0]
