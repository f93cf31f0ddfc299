"""The softmax of the largest logits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, final

import torch
from torch import Tensor

from roundround.kernels.bias import Bias
from roundround.kernels.keys import AttentionShape, Keys
from roundround.kernels.whole_rows import Kind, RowFunction
from roundround.softmax.base import AttentionSoftmax, softmax_over_visible


@final
class TopK(AttentionSoftmax):
    """Attends only to the k keys with the largest logits.

    alpha_j = exp(e_j) / sum_{l in top k} exp(e_l) where e_j is among the k largest, else 0

    Gupta et al. 2021, arXiv:2106.06899, section 3.

    Keys that tie with the k-th are all kept.
    """

    cost_in_blocks: ClassVar[float] = 7

    def __init__(self, shape: AttentionShape, *, k: int) -> None:
        super().__init__(shape)
        if k < 1:
            raise ValueError(f"k={k} must be at least 1")
        self.k = k

    def row_function(self, rows: Mapping[str, Tensor], keys: Keys, bias: Bias | None) -> RowFunction:
        return RowFunction(kind=Kind.TOP_K, numbers={"k": self.k})

    def normalise(self, logits_BHQK: Tensor, visible_B1QK: Tensor, rows: Mapping[str, Tensor]) -> Tensor:
        if logits_BHQK.shape[-1] <= self.k:
            return softmax_over_visible(logits_BHQK, visible_B1QK)
        seen = logits_BHQK.detach().masked_fill(~visible_B1QK, -torch.inf)
        smallest_kept = seen.topk(self.k, dim=-1, sorted=False).values.amin(-1, keepdim=True)
        return softmax_over_visible(logits_BHQK, visible_B1QK & (seen >= smallest_kept))
