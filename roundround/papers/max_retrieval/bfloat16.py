"""A trained model of max retrieval as bfloat16 would have it, for evaluation alone.

Shapes: S seeds, B sets, N items, D width, K classes.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import final

import torch
from torch import Tensor

from roundround.papers.max_retrieval.model import MaxRetrieval, StackedLinear
from roundround.papers.max_retrieval.sets import Sets


@final
class InBfloat16:
    """A copy of a model that computes in bfloat16, but for its softmax.

    Weights, items and every result in between are rounded; with `factors_alone` only what goes into a product of
    matrices, and all else has float32: what JAX does on a TPU where no precision is asked for. Sums inside a product
    have float32 either way, as on TPUs and GPUs. It goes by the model's definition, because the fast form, equal in
    exact numbers, is rounded at other places. Near 1 bfloat16 keeps 8 bits: from some hundred items on, several share
    the largest priority.
    """

    def __init__(self, model: MaxRetrieval, *, factors_alone: bool) -> None:
        self.model, self.n_classes, self.factors_alone = copy.deepcopy(model), model.n_classes, factors_alone
        if not factors_alone:
            self.model.bfloat16()
            return
        for layer in self.model.children():
            assert isinstance(layer, StackedLinear)
            layer.weight.data = rounded(layer.weight.data)
            layer.register_forward_pre_hook(lambda layer, inputs: (rounded(inputs[0]),))
        for layer in (self.model.to_query, self.model.to_key, self.model.to_value):  # what they give meets in products
            layer.register_forward_hook(lambda layer, inputs, output: rounded(output))

    @property
    def device(self) -> torch.device:
        return self.model.device

    @torch.no_grad()
    def attended(self, sets: Sets) -> tuple[Tensor, Tensor]:
        """Attention logits [S, B, N], and the values [S, B, N, D] in bfloat16."""
        if self.factors_alone:
            e_SBN, v_SBND = self.model.logits_and_values(sets)
            return e_SBN, v_SBND.bfloat16()
        priorities_SBN, queries_SB = sets.priorities_SBN.bfloat16(), sets.queries_SB.bfloat16()
        return self.model.logits_and_values(replace(sets, priorities_SBN=priorities_SBN, queries_SB=queries_SB))

    def answer_from(self, mean_SBD: Tensor, total_SB: Tensor) -> Tensor:
        """Logits of the classes from the weighted sum of the values: [S, B, K]; `total_SB` is in it already."""
        return self.model.answer(mean_SBD.to(self.model.answer_in.weight.dtype))


def rounded(x: Tensor) -> Tensor:
    """To bfloat16 and back."""
    return x.bfloat16().to(x.dtype)
