"""The softmax at a fixed temperature."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from torch import Tensor

from roundround.kernels.keys import AttentionShape
from roundround.kernels.variants import checked_positive
from roundround.softmax.row_scale import RowScale


@final
class Temperature(RowScale):
    """Divides all logits by one fixed number: a number below 1 sharpens the weights, one above 1 flattens them.

    alpha_j = exp(e_j / theta) / sum_l exp(e_l / theta)

    Velickovic et al. 2024, arXiv:2410.01104, section 2.
    """

    reads_entropy = False

    def __init__(self, shape: AttentionShape, *, temperature: float) -> None:
        super().__init__(shape)
        checked_positive(temperature=temperature)
        self.temperature = temperature

    def beta(self, n_visible: Tensor, entropy: Callable[[], Tensor]) -> float:
        return 1 / self.temperature
