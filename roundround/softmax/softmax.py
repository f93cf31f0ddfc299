"""The plain softmax."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor

from roundround.interface import Bias, Keys
from roundround.softmax.base import AttentionSoftmax


@final
class Softmax(AttentionSoftmax):
    """Weights proportional to the exponential of the logits; the normaliser of the Transformer.

    alpha_j = exp(e_j) / sum_l exp(e_l)

    Vaswani et al. 2017, arXiv:1706.03762, equation 1.
    """

    def weights(self, logits_BHQK: Tensor, visible_B1QK: Tensor, rows: Mapping[str, Tensor]) -> Tensor:
        wide = logits_BHQK if logits_BHQK.dtype == torch.float64 else logits_BHQK.float()
        alpha_BHQK = wide.masked_fill(~visible_B1QK, -torch.inf).softmax(-1)
        # a row that sees nothing is 0 / 0 under the formula; it attends to nothing
        return alpha_BHQK.masked_fill(~visible_B1QK.any(-1, keepdim=True), 0.0)

    def attend(
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
        """PyTorch's fused kernel where it needs no mask; a mask would silently make it quadratic in memory."""
        if bias is not None or not (keys.is_plain_causal or keys.is_unmasked):
            return super().attend(q_BHQC, k_BGKC, v_BGKC, scale=scale, keys=keys, bias=bias, rows=rows)
        grouped = q_BHQC.shape[1] != k_BGKC.shape[1]
        causal = not keys.is_unmasked
        return F.scaled_dot_product_attention(q_BHQC, k_BGKC, v_BGKC, is_causal=causal, scale=scale, enable_gqa=grouped)
