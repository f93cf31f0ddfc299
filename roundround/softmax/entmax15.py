"""Entmax with alpha 1.5."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

from torch import Tensor

from roundround.softmax.projection import Projection, entmax_of


@final
class Entmax15(Projection):
    """Half way from softmax to sparsemax: smooth among the large logits, exactly zero for small ones.

    alpha_j = max(e_j / 2 - tau, 0)^2, tau such that the weights sum to one

    Peters et al. 2019, arXiv:1905.05702, section 3.
    """

    fixed_alpha = 1.5

    def project(self, logits_BHQK: Tensor, rows: Mapping[str, Tensor]) -> Tensor:
        return entmax_of(logits_BHQK, self.fixed_alpha)
