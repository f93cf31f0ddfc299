"""Temperatures that depend on the length, as released models such as Llama 4 use them."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from torch import Tensor

from roundround.kernels.keys import AttentionShape
from roundround.kernels.variants import checked_finite, checked_positive
from roundround.softmax.base import checked_count
from roundround.softmax.row_scale import RowScale

GROWTHS = ("steps", "smooth", "beyond")


@final
class LengthTemperature(RowScale):
    """Sharpens rows by a slowly growing function of the number of tokens up to the query.

    alpha_j = exp(beta e_j) / sum_l exp(beta e_l), beta = 1 + a ln(u), u = 1 + floor(n / L)

    Nakanishi 2025, arXiv:2501.19399, in the form of Llama 4 (`attn_scale`, `floor_scale`).

    `strength` is a, and `length` is L, in tokens. `growth` says what u is: `steps`, the formula above; `smooth`,
    1 + n / L; `beyond`, max(1, n / L). With `power`, beta is u^a. `first`: the n of the first token, 1 or 0. `count`:
    with `visible`, n counts the visible keys; with `position`, all tokens up to the query's own, as in the released
    models.
    """

    reads_entropy = False

    def __init__(
        self, shape: AttentionShape, *, strength: float, length: int, growth: str, power: bool, first: int, count: str
    ) -> None:
        super().__init__(shape)
        checked_finite(strength=strength)
        checked_positive(length=length)
        if growth not in GROWTHS:
            raise ValueError(f"growth={growth} must be one of {', '.join(GROWTHS)}")
        if first not in (0, 1):
            raise ValueError(f"first={first} must be 0 or 1: it is the n of the first token")
        self.strength, self.length, self.growth, self.power, self.first = strength, length, growth, power, first
        self.count = checked_count(count)

    def beta(self, n_visible: Tensor, entropy: Callable[[], Tensor]) -> Tensor:
        n = (n_visible - 1 + self.first).clamp(min=0) / self.length
        grown = {"steps": 1 + n.floor(), "smooth": 1 + n, "beyond": n.clamp(min=1.0)}[self.growth]
        return grown**self.strength if self.power else 1 + self.strength * grown.log()
