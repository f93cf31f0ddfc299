"""The row-scale family: the softmax of logits that are first multiplied by one number for each row.

Shapes: B batch, Q queries, K keys, H heads, G key heads, C head channels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

import torch
from torch import Tensor

from roundround.kernels import flex, fused
from roundround.kernels.bias import Bias, LinearBias, ScoreMod, at_each
from roundround.kernels.choose import Form, Path
from roundround.kernels.keys import Keys
from roundround.kernels.precision import wide_dtype
from roundround.kernels.row_measures import entropy_of_logits
from roundround.kernels.whole_rows import Kind, RowFunction
from roundround.softmax.base import AttentionSoftmax, softmax_over_visible


class RowScale(AttentionSoftmax):
    """softmax(beta e) with one number beta for each row: beta multiplies the query, and a fused kernel does the rest.

    A variant defines only `beta`. If there is a bias on the logits, beta multiplies it too.

    reads_entropy: whether `beta` may call `entropy()`, which needs a kernel that returns log-sum-exps. On MPS, XPU and
    ROCm no such kernel is used; variants that do not read the entropy run `F.scaled_dot_product_attention` there.
    """

    cost_in_blocks: ClassVar[float] = 4
    reads_entropy: ClassVar[bool] = True

    @property
    def form(self) -> Form:  # type: ignore[override]
        return Form.ENTROPY if self.reads_entropy else Form.SOFTMAX

    @property
    def differentiates_entropy(self) -> bool:
        """Whether beta depends on nothing but the entropy, and a gradient flows through beta; default False."""
        return False

    def beta(self, n_visible: Tensor, entropy: Callable[[], Tensor]) -> Tensor | float | None:
        """Inverse temperature, broadcasting to [B, H, Q, 1]; None for 1.

        `n_visible` is the number of keys of each row, as `count` defines it, [1 or B, 1, Q, 1], float32 or float64.
        `entropy()` computes the Shannon entropy of the softmax of each row, [B, H, Q, 1], in nats. This costs a second
        pass over the logits.
        """
        raise NotImplementedError

    def row_function(self, rows: Mapping[str, Tensor], keys: Keys, bias: Bias | None) -> RowFunction | None:
        if bias is None or isinstance(bias, LinearBias) or self.reads_entropy:
            return None
        beta = self.beta(self.n_counted(keys).to(torch.float64), no_entropy)
        return RowFunction(kind=Kind.SOFTMAX, factor=torch.as_tensor(beta) if beta is not None else None)

    def normalise(self, logits_BHQK: Tensor, visible_B1QK: Tensor, rows: Mapping[str, Tensor]) -> Tensor:
        beta = self.beta(rows["n_visible"].to(logits_BHQK.dtype), lambda: entropy_of_logits(logits_BHQK, visible_B1QK))
        # the mask comes after the product: 0 * -inf would make the gradient of beta NaN
        return softmax_over_visible(logits_BHQK if beta is None else logits_BHQK * beta, visible_B1QK)

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
        n_visible = self.n_counted(keys).to(wide_dtype(q_BHQC.dtype))
        if self.path(q_BHQC, keys, bias) is Path.FLEX:
            beta = self.beta(n_visible, no_entropy)
            return flex.attend(q_BHQC, k_BGKC, v_BGKC, scale=scale, keys=keys, bias=bias, modify=multiplied(beta))[0]
        assert bias is None or isinstance(bias, LinearBias), "no other bias has this form"
        linear: LinearBias | None = bias
        if self.differentiates_entropy and bias is None and torch.is_grad_enabled():

            def beta_of(entropy_BHQ1: Tensor) -> Tensor:
                beta = self.beta(n_visible, lambda: entropy_BHQ1)
                assert isinstance(beta, Tensor), "beta follows the entropy"
                return beta

            return fused.attention_by_entropy(q_BHQC, k_BGKC, v_BGKC, scale=scale, keys=keys, beta_of=beta_of)
        beta = self.beta(n_visible, lambda: fused.entropy(q_BHQC, k_BGKC, scale=scale, keys=keys, bias=linear))
        if beta is None:
            return fused.attention(q_BHQC, k_BGKC, v_BGKC, scale=scale, keys=keys, bias=linear)
        q_BHQC, times = (q_BHQC * beta).to(q_BHQC.dtype), None if linear is None else linear.times(beta)
        return fused.attention(q_BHQC, k_BGKC, v_BGKC, scale=scale, keys=keys, bias=times)


def multiplied(beta: Tensor | float | None) -> ScoreMod | None:
    """The function with which a FlexAttention kernel multiplies each logit by its row's beta; None if beta is None."""
    if beta is None:
        return None
    if not isinstance(beta, Tensor):
        return lambda score, b, h, i, j: score * beta
    of_row = at_each(beta[..., 0])
    return lambda score, b, h, i, j: score * of_row(b, h, i)


def no_entropy() -> Tensor:
    raise AssertionError("reads_entropy is False")
