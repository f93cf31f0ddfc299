"""The null-key family: the softmax with one extra key of value zero, so that a row can attend to nothing.

Shapes: B batch, Q queries, K keys, H heads, G key heads, C head channels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from roundround.kernels import flex, fused
from roundround.kernels.bias import Bias, LinearBias
from roundround.kernels.choose import Form, Path
from roundround.kernels.keys import Keys
from roundround.kernels.whole_rows import Kind, RowFunction
from roundround.softmax.base import AttentionSoftmax


class NullKey(AttentionSoftmax):
    """exp(e_j) / (exp(null) + sum_l exp(e_l)): the fused softmax, corrected by its log-sum-exp.

    A variant defines only `null_logit`; the gradient of the null logit is in `kernels/tiled_attention.py`.
    """

    sums_to_one: ClassVar[bool] = False
    cost_in_blocks: ClassVar[float] = 4
    form: ClassVar[Form] = Form.NULL_KEY

    def null_logit(self, rows: Mapping[str, Tensor], device: torch.device) -> Tensor:
        """Logit of the null key, [1 or B, H, 1 or Q], in at least float32, on the device of the queries.

        `rows` holds the `row_parameters` of the Q rows.
        """
        raise NotImplementedError

    def row_function(self, rows: Mapping[str, Tensor], keys: Keys, bias: Bias | None) -> RowFunction | None:
        if bias is None or isinstance(bias, LinearBias):
            return None
        return RowFunction(kind=Kind.SOFTMAX, shift=self.null_logit(rows, keys.k_pos_BK.device)[..., None])

    def normalise(self, logits_BHQK: Tensor, visible_B1QK: Tensor, rows: Mapping[str, Tensor]) -> Tensor:
        null_BHQ = self.null_logit(rows, logits_BHQK.device).to(logits_BHQK.dtype)
        null_BHQ1 = null_BHQ[..., None].expand(*logits_BHQK.shape[:3], 1)
        seen_BHQK = logits_BHQK.masked_fill(~visible_B1QK, -torch.inf)
        return torch.cat([null_BHQ1, seen_BHQK], -1).softmax(-1)[..., 1:]

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
        null_BHQ = self.null_logit(rows, q_BHQC.device)
        if self.path(q_BHQC, keys, bias) is Path.FLEX:
            out, log_sum_exp, _ = flex.attend(q_BHQC, k_BGKC, v_BGKC, scale=scale, keys=keys, bias=bias)
            return out * torch.sigmoid(log_sum_exp - null_BHQ[..., None])
        assert bias is None or isinstance(bias, LinearBias), "no other bias has this form"
        return fused.attention(q_BHQC, k_BGKC, v_BGKC, scale=scale, keys=keys, bias=bias, null_BHQ=null_BHQ)
