"""The softmax with one added to the denominator."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from roundround.attention.keys import AttentionShape
from roundround.softmax.null_key import NullKey


@final
class Softmax1(NullKey):
    """Lets a row attend to nothing, as if there were one more key of logit and value zero.

    alpha_j = exp(e_j) / (1 + sum_l exp(e_l))

    Miller 2023, "Attention is off by one"; before him Shazeer et al. in flaxformer; studied by Xiao et al. 2023,
    arXiv:2309.17453, as a zero sink.
    """

    def __init__(self, shape: AttentionShape) -> None:
        super().__init__(shape)
        # holds nothing: a normaliser without parameters learns from it the device of the model
        self.register_buffer("like", torch.empty(0), persistent=False)

    def null_logit(self) -> Tensor:
        return torch.zeros(self.shape.n_heads, device=self.get_buffer("like").device)
