"""KERPLE, in its logarithmic form."""

from __future__ import annotations

import math
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn

from roundround.kernels.bias import Bias, relative_positions
from roundround.kernels.keys import AttentionShape, Keys
from roundround.kernels.precision import at_least_float32
from roundround.pe.base import PositionalEncoding

SMALLEST = 0.01  # the least initial value of r1 and r2; the authors' code clamps them to at least this


class LogarithmicBias(Bias):
    """A bias that falls with the logarithm of the distance, the same for past and future keys."""

    of_distance = True

    def __init__(self, r1_H: Tensor, r2_H: Tensor) -> None:
        self.r1_H = r1_H
        self.r2_H = r2_H

    def by_distance(self, distances_N: Tensor) -> Tensor:
        return -self.r1_H[:, None] * torch.log1p(self.r2_H[:, None] * distances_N.abs())

    def block(self, keys: Keys, a: int, b: int) -> Tensor:
        distance_B1QK = relative_positions(keys, a, b).abs()
        return -self.r1_H[:, None, None] * torch.log1p(self.r2_H[:, None, None] * distance_B1QK)


@final
class Kerple(PositionalEncoding):
    """Lowers each logit by the logarithm of the distance, with a strength and a scale learned for each head and layer.

    b(i, j) = -r1 * log(1 + r2 * |i - j|), r1 > 0, r2 > 0

    Chi et al. 2022, arXiv:2205.09921, the logarithmic variant.

    The parameters are the logarithms of r1 and r2, so both stay positive (the authors' code clamps r1 and r2 at 0.01
    instead, where they get no gradient). As in that code, r1 and r2 start uniformly distributed between 0.01 and
    `init_r1` or `init_r2`.
    """

    per_layer: ClassVar[bool] = True

    def __init__(self, shape: AttentionShape, *, init_r1: float, init_r2: float) -> None:
        super().__init__(shape)
        for name, value in (("init_r1", init_r1), ("init_r2", init_r2)):
            if not (value >= SMALLEST and math.isfinite(value)):
                raise ValueError(f"{name}={value} must be a finite number, {SMALLEST} or above")
        self.init_r1 = init_r1
        self.init_r2 = init_r2
        self.log_r1 = nn.Parameter(torch.empty(shape.n_heads))
        self.log_r2 = nn.Parameter(torch.empty(shape.n_heads))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        self.log_r1.uniform_(SMALLEST, self.init_r1).log_()
        self.log_r2.uniform_(SMALLEST, self.init_r2).log_()

    def bias(self, q_BHTC: Tensor, k_BGTC: Tensor, prepared: Any) -> Bias:
        return LogarithmicBias(at_least_float32(self.log_r1).exp(), at_least_float32(self.log_r2).exp())
