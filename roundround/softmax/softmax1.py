"""The softmax with one added to the denominator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

import torch
from torch import Tensor

from roundround.softmax.null_key import NullKey


@final
class Softmax1(NullKey):
    """Lets a row attend to nothing, as if there were one more key whose logit and value are zero.

    alpha_j = exp(e_j) / (1 + sum_l exp(e_l))

    Miller 2023, "Attention is off by one"; earlier in flaxformer, by Shazeer et al.; Xiao et al. 2023,
    arXiv:2309.17453, study it as a zero sink.
    """

    def null_logit(self, rows: Mapping[str, Tensor], device: torch.device) -> Tensor:
        return torch.zeros(1, self.shape.n_heads, 1, device=device)
