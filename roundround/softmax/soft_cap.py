"""The softmax of softly capped logits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, final

from torch import Tensor

from roundround.kernels import flex
from roundround.kernels.bias import Bias
from roundround.kernels.choose import Form
from roundround.kernels.keys import AttentionShape, Keys
from roundround.kernels.variants import checked_positive
from roundround.kernels.whole_rows import Kind, RowFunction
from roundround.softmax.base import AttentionSoftmax, softmax_over_visible


@final
class SoftCap(AttentionSoftmax):
    """Limits every logit smoothly to the range from -cap to cap before the softmax.

    alpha = softmax(cap tanh(e / cap))

    Gemma Team 2024, arXiv:2408.00118, section 2 (Gemma 2, with a cap of 50).

    By Lemma 2.1 of arXiv:2410.01104 such a head must disperse, because its logits never differ by more than 2 cap.
    """

    cost_in_blocks: ClassVar[float] = 4.5
    form: ClassVar[Form] = Form.LOGITS

    def __init__(self, shape: AttentionShape, *, cap: float) -> None:
        super().__init__(shape)
        checked_positive(cap=cap)
        self.cap = cap

    def row_function(self, rows: Mapping[str, Tensor], keys: Keys, bias: Bias | None) -> RowFunction:
        return RowFunction(kind=Kind.SOFTMAX, cap=self.cap)

    def normalise(self, logits_BHQK: Tensor, visible_B1QK: Tensor, rows: Mapping[str, Tensor]) -> Tensor:
        return softmax_over_visible(self.cap * (logits_BHQK / self.cap).tanh(), visible_B1QK)

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
        cap = self.cap
        return flex.attend(
            q_BHQC, k_BGKC, v_BGKC, scale=scale, keys=keys, bias=bias,
            modify=lambda score, b, h, i, j: cap * (score / cap).tanh(),
        )[0]  # fmt: skip
