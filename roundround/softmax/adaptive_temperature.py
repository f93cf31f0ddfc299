"""Adaptive temperature: the remedy for dispersion that Velickovic et al. propose."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import final

import torch
from torch import Tensor

from roundround.kernels.bias import Bias, LinearBias
from roundround.kernels.keys import AttentionShape, Keys
from roundround.kernels.variants import checked_finite
from roundround.kernels.whole_rows import Kind, RowFunction
from roundround.softmax.row_scale import RowScale

LONG = 16_384  # keys
PUBLISHED = (-0.037, 0.481, -2.3, 4.917, -1.791)  # highest power first; the yaml's default


@final
class AdaptiveTemperature(RowScale):
    """Sharpens each row by an inverse temperature that depends on the row's own entropy.

    alpha = softmax(beta e), beta = max(polynomial(H), min_beta) where H > min_entropy, else 1, H = entropy(softmax(e))

    Velickovic et al. 2024, arXiv:2410.01104, figure 4 and section 4.

    `coefficients`: the coefficients of the polynomial, highest power first; H is in nats. The published polynomial
    exceeds 1 only for 0.849 < H < 5.945. It leaves a row with a lower or a higher entropy unchanged; 5.945 is the
    entropy of 381 equally attended keys. `entropy_range`: the range of entropies to which a polynomial was fitted; a
    row outside the range gets the beta of the nearer end.
    `in_training`: whether beta is used in training; false trains with the plain softmax, as in the paper's main
    experiment. `gradient_through_beta`: whether training differentiates beta; false treats beta as a constant.
    """

    def __init__(
        self,
        shape: AttentionShape,
        *,
        coefficients: Sequence[float],
        min_entropy: float,
        min_beta: float,
        entropy_range: Sequence[float] | None,
        in_training: bool,
        gradient_through_beta: bool,
    ) -> None:
        super().__init__(shape)
        if not len(coefficients):
            raise ValueError("coefficients is empty; give a polynomial in the entropy, highest power first")
        if not all(abs(c) < float("inf") for c in coefficients):
            raise ValueError(f"coefficients={list(coefficients)} must be finite numbers")
        checked_finite(min_entropy=min_entropy, min_beta=min_beta)
        if min_beta < 1:
            raise ValueError(f"min_beta={min_beta} must be 1 or above: the temperature never flattens a row")
        if entropy_range is not None and not (
            len(entropy_range) == 2 and -float("inf") < entropy_range[0] <= entropy_range[1] < float("inf")
        ):
            raise ValueError(f"entropy_range={list(entropy_range)} must be two finite numbers, the lower one first")
        self.coefficients = tuple(coefficients)
        self.entropy_range = None if entropy_range is None else tuple(entropy_range)
        self.min_entropy = min_entropy
        self.min_beta = min_beta
        self.in_training = in_training
        self.gradient_through_beta = gradient_through_beta

    @property
    def differentiates_entropy(self) -> bool:
        return self.gradient_through_beta and (self.in_training or not self.training)

    def beta(self, n_visible: Tensor, entropy: Callable[[], Tensor]) -> Tensor | None:
        if self.training and not self.in_training:
            return None
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.gradient_through_beta):
            return self.beta_at(entropy())

    def row_function(self, rows: Mapping[str, Tensor], keys: Keys, bias: Bias | None) -> RowFunction | None:
        if isinstance(bias, LinearBias) and keys.n_keys > LONG:
            return None  # the tiled kernel skips far keys, which are most keys of so long a text
        if self.training and not self.in_training:
            fused = bias is None or isinstance(bias, LinearBias)
            return None if fused else RowFunction(kind=Kind.SOFTMAX)
        lowest, highest = self.entropy_range or (-math.inf, math.inf)
        numbers = {"min_entropy": self.min_entropy, "min_beta": self.min_beta, "lowest": lowest, "highest": highest}
        return RowFunction(
            kind=Kind.ADAPTIVE,
            coefficients=self.coefficients,
            numbers=numbers | {"through_beta": self.gradient_through_beta},
        )

    def beta_at(self, entropy: Tensor) -> Tensor:
        """Inverse temperature of rows with this entropy in nats."""
        return inverse_temperature(entropy, self.coefficients, self.min_entropy, self.min_beta, self.entropy_range)


def inverse_temperature(
    entropy: Tensor,
    coefficients: Sequence[float] = PUBLISHED,
    min_entropy: float = 0.5,
    min_beta: float = 1.0,
    entropy_range: Sequence[float] | None = None,
) -> Tensor:
    """The paper's beta(H), H in nats: 1 if H is at most `min_entropy`, else max(polynomial(H), `min_beta`).

    Outside `entropy_range`, if it is given, the polynomial is evaluated at the nearer end of the range.
    """
    inside = entropy if entropy_range is None else entropy.clamp(*entropy_range)
    value = polynomial(coefficients, inside).clamp_min(min_beta)
    return torch.where(entropy > min_entropy, value, torch.ones_like(value))


def polynomial(coefficients: Sequence[float], x: Tensor) -> Tensor:
    """Value at x of the polynomial with these coefficients, highest power first (Horner's rule)."""
    value = torch.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        value = value * x + c
    return value
