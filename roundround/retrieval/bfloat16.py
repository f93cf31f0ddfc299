"""A trained model of max retrieval as bfloat16 would have it, for evaluation alone.

Shapes: S seeds, B sets, N items, D width, K classes.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import final

import torch
from torch import Tensor

from roundround.retrieval.model import MaxRetrieval
from roundround.retrieval.sets import Sets


@final
class InBfloat16:
    """A copy of a model whose weights, items and every result in between are rounded to bfloat16; its softmax is not.

    It goes by the model's definition, because the fast form, equal in exact numbers, is rounded at other places. Sums
    inside a product of matrices have float32, as on TPUs and GPUs. Near 1 bfloat16 keeps 8 bits: from some hundred
    items on, several share the largest priority.
    """

    def __init__(self, model: MaxRetrieval) -> None:
        self.model = copy.deepcopy(model).bfloat16()
        self.n_classes = model.n_classes

    @property
    def device(self) -> torch.device:
        return self.model.device

    @torch.no_grad()
    def attended(self, sets: Sets) -> tuple[Tensor, Tensor]:
        """Attention logits [S, B, N] and the values [S, B, N, D]."""
        priorities_SBN, queries_SB = sets.priorities_SBN.bfloat16(), sets.queries_SB.bfloat16()
        return self.model.logits_and_values(replace(sets, priorities_SBN=priorities_SBN, queries_SB=queries_SB))

    def answer_from(self, mean_SBD: Tensor, total_SB: Tensor) -> Tensor:
        """Logits of the classes from the weighted sum of the values: [S, B, K]; `total_SB` is in it already."""
        return self.model.answer(mean_SBD)
