"""Sparsemax."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, final

from torch import Tensor

from roundround.softmax.projection import Projection, entmax_of


@final
class Sparsemax(Projection):
    """Projects the logits onto the nearest point of the simplex, which makes small weights exactly zero.

    alpha_j = max(e_j - tau, 0), tau such that the weights sum to one

    Martins and Astudillo 2016, arXiv:1602.02068, equation 2.
    """

    cost_in_blocks: ClassVar[float] = 7
    fixed_alpha = 2.0

    def project(self, logits_BHQK: Tensor, rows: Mapping[str, Tensor]) -> Tensor:
        return entmax_of(logits_BHQK, self.fixed_alpha)
