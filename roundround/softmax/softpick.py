"""Softpick."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, final

import torch
import torch.nn.functional as F
from torch import Tensor

from roundround.kernels import flex
from roundround.kernels.bias import Bias
from roundround.kernels.choose import Form
from roundround.kernels.keys import AttentionShape, Keys
from roundround.kernels.variants import checked_positive
from roundround.kernels.whole_rows import Kind, RowFunction
from roundround.softmax.base import AttentionSoftmax


@final
class Softpick(AttentionSoftmax):
    """Attends only to keys with a positive logit; negative logits lower the sum of the weights, so no sink is needed.

    alpha_j = max(exp(e_j) - 1, 0) / (sum_l |exp(e_l) - 1| + eps exp(m)), m = max(0, max_l e_l)

    Zuhri et al. 2025, arXiv:2504.20966, in the numerically safe form: `eps` is added to the sum over exp(e_l - m).
    """

    sums_to_one: ClassVar[bool] = False
    cost_in_blocks: ClassVar[float] = 7
    form: ClassVar[Form] = Form.LOGITS

    def __init__(self, shape: AttentionShape, *, eps: float) -> None:
        super().__init__(shape)
        checked_positive(eps=eps)
        self.eps = eps

    def row_function(self, rows: Mapping[str, Tensor], keys: Keys, bias: Bias | None) -> RowFunction:
        return RowFunction(kind=Kind.SOFTPICK, numbers={"eps": self.eps})

    def normalise(self, logits_BHQK: Tensor, visible_B1QK: Tensor, rows: Mapping[str, Tensor]) -> Tensor:
        seen = logits_BHQK.masked_fill(~visible_B1QK, 0.0)  # exp(0) - 1 adds nothing to either sum
        m = seen.detach().amax(-1, keepdim=True).clamp(min=0.0)  # changes the ratio only through eps
        above, below = seen.clamp(min=0.0), seen.clamp(max=0.0)
        # exp(e - m) - exp(-m) without cancellation near 0 and without overflow
        picked = -torch.expm1(-above) * torch.exp(above - m)
        lost = -torch.expm1(below) * torch.exp(-m)
        return picked / ((picked + lost).sum(-1, keepdim=True) + self.eps)

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
        # each sum is the log-sum-exp of a softmax: of ln(e^s - 1), whose output is used, and of ln(1 - e^s)
        def pick(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return flex.log_expm1(score)

        def lose(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return flex.log_expm1(-score) + score.clamp(max=0.0)

        call: dict[str, Any] = {"scale": scale, "keys": keys, "bias": bias}
        out, picked, largest = flex.attend(q_BHQC, k_BGKC, v_BGKC, modify=pick, **call)
        _, lost, _ = flex.attend(q_BHQC, k_BGKC, v_BGKC.detach(), modify=lose, **call)
        m = F.softplus(largest)  # max(0, largest logit), from ln(e^m - 1)
        picked, lost = (picked - m).exp(), (lost - m).exp()
        return out * (picked / (picked + lost + self.eps))
