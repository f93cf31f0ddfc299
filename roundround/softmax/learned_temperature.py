"""The softmax at a temperature that each head learns."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import final

import torch
from torch import Tensor, nn

from roundround.kernels.keys import AttentionShape
from roundround.kernels.precision import at_least_float32
from roundround.kernels.variants import checked_positive
from roundround.softmax.row_scale import RowScale


@final
class LearnedTemperature(RowScale):
    """Divides the logits of each head by a temperature that the head learns.

    alpha_j = exp(e_j / theta_h) / sum_l exp(e_l / theta_h)

    Wang et al. 2024, arXiv:2404.12224, who tune a temperature for each head of a model without positions.

    The parameter is the logarithm of theta, so theta stays positive; theta starts at `temperature`.
    """

    reads_entropy = False

    def __init__(self, shape: AttentionShape, *, temperature: float) -> None:
        super().__init__(shape)
        checked_positive(temperature=temperature)
        self.log_temperature = nn.Parameter(torch.full((shape.n_heads,), math.log(temperature)))

    def beta(self, n_visible: Tensor, entropy: Callable[[], Tensor]) -> Tensor:
        return at_least_float32(self.log_temperature).neg().exp()[:, None, None]
