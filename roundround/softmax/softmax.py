"""The plain softmax."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import final

from torch import Tensor

from roundround.kernels import flex, fused
from roundround.kernels.bias import Bias, LinearBias
from roundround.kernels.choose import Path
from roundround.kernels.keys import Keys
from roundround.softmax.row_scale import RowScale


@final
class Softmax(RowScale):
    """Gives each key a weight proportional to the exponential of its logit; the normaliser of the Transformer.

    alpha_j = exp(e_j) / sum_l exp(e_l)

    Vaswani et al. 2017, arXiv:1706.03762, equation 1.
    """

    reads_entropy = False

    def beta(self, n_visible: Tensor, entropy: Callable[[], Tensor]) -> None:
        return None

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
        if self.path(q_BHQC, keys, bias) is Path.FLEX:
            return flex.attend(q_BHQC, k_BGKC, v_BGKC, scale=scale, keys=keys, bias=bias)[0]
        assert bias is None or isinstance(bias, LinearBias), "no other bias has this form"
        return fused.attention(q_BHQC, k_BGKC, v_BGKC, scale=scale, keys=keys, bias=bias)  # without beta
