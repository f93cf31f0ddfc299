"""Sigmoid attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, final

import torch
from torch import Tensor

from roundround.kernels import flex
from roundround.kernels.bias import Bias, at_each
from roundround.kernels.choose import Form
from roundround.kernels.keys import AttentionShape, Keys
from roundround.kernels.precision import wide_dtype
from roundround.kernels.whole_rows import Kind, RowFunction
from roundround.softmax.base import AttentionSoftmax, checked_count


@final
class Sigmoid(AttentionSoftmax):
    """Weighs each key by itself, without competition, and shrinks all weights as the row grows.

    alpha_j = 1 / (1 + exp(-(e_j - ln n))), n the visible keys

    Ramapuram et al. 2024, arXiv:2409.04431, section 3.

    `count`: with `visible`, n counts the visible keys; with `position`, all tokens up to the query's own.
    """

    sums_to_one: ClassVar[bool] = False
    cost_in_blocks: ClassVar[float] = 3
    form: ClassVar[Form] = Form.LOGITS

    def __init__(self, shape: AttentionShape, *, count: str = "visible") -> None:
        super().__init__(shape)
        self.count = checked_count(count)

    def row_function(self, rows: Mapping[str, Tensor], keys: Keys, bias: Bias | None) -> RowFunction:
        ln_n = self.n_counted(keys).clamp(min=1).to(torch.float64).log()
        return RowFunction(kind=Kind.SIGMOID, shift=ln_n)

    def normalise(self, logits_BHQK: Tensor, visible_B1QK: Tensor, rows: Mapping[str, Tensor]) -> Tensor:
        ln_n = rows["n_visible"].clamp(min=1).to(logits_BHQK.dtype).log()
        return torch.sigmoid(logits_BHQK - ln_n)

    def attend_fused(
        self,
        q_BHQC: Tensor,
        k_BGKC: Tensor,
        v_BGKC: Tensor,
        *,
        scale: float,
        keys: Keys,
        bias: Bias | None,
        rows: Mapping[str, Tensor],
    ) -> Tensor:
        ln_n = at_each(self.n_counted(keys)[..., 0].clamp(min=1).to(wide_dtype(q_BHQC.dtype)).log())
        out, log_sum_exp, _ = flex.attend(
            q_BHQC, k_BGKC, v_BGKC, scale=scale, keys=keys, bias=bias,
            modify=lambda score, b, h, i, j: flex.log_sigmoid(score - ln_n(b, h, i)),
        )  # fmt: skip
        return out * log_sum_exp.exp()
