"""Hard attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, final

import torch
from torch import Tensor

from roundround.kernels.bias import Bias
from roundround.kernels.keys import Keys
from roundround.kernels.whole_rows import Kind, RowFunction
from roundround.softmax.base import AttentionSoftmax


@final
class Hard(AttentionSoftmax):
    """Attends only to the key with the largest logit: the softmax in the limit of temperature zero.

    alpha_j = 1 / |argmax| where e_j = max_l e_l, else 0

    Velickovic et al. 2024, arXiv:2410.01104, section 2: the limit of sharpening.

    Keys that tie for the largest logit share the weight. Queries and keys get a gradient of zero, so this normaliser is
    for inference, or for training the values only.
    """

    cost_in_blocks: ClassVar[float] = 5

    def row_function(self, rows: Mapping[str, Tensor], keys: Keys, bias: Bias | None) -> RowFunction:
        return RowFunction(kind=Kind.HARD)

    def normalise(self, logits_BHQK: Tensor, visible_B1QK: Tensor, rows: Mapping[str, Tensor]) -> Tensor:
        seen = logits_BHQK.masked_fill(~visible_B1QK, -torch.inf)
        largest = seen == seen.amax(-1, keepdim=True)
        alpha = (largest / largest.sum(-1, keepdim=True)).to(logits_BHQK.dtype)
        return alpha + 0.0 * logits_BHQK.masked_fill(~visible_B1QK, 0.0)  # so that logits get a gradient, of zero
