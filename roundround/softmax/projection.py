"""The projection family: sparse weights, by deep-spin's `entmax`.

Shapes: B batch, Q queries, K keys, H heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import entmax
import torch
from torch import Tensor

from roundround.softmax.base import AttentionSoftmax


class Projection(AttentionSoftmax):
    """argmax_p p . e + entropy(p), over the simplex, for an entropy under which small weights become zero.

    A variant defines `project` alone.
    """

    cost_in_blocks: ClassVar[float] = 20

    def project(self, logits_BHQK: Tensor, rows: Mapping[str, Tensor]) -> Tensor:
        """Weights of logits that are -inf where not visible; no row is -inf throughout."""
        raise NotImplementedError

    def normalise(self, logits_BHQK: Tensor, visible_B1QK: Tensor, rows: Mapping[str, Tensor]) -> Tensor:
        finite = logits_BHQK.nan_to_num(0.0, 0.0, 0.0)  # `weights` makes such rows NaN; entmax would fail on the index
        hidden_B1QK = ~visible_B1QK & (rows["n_visible"] > 0)  # and hides all of a row that sees nothing
        return self.project(finite.masked_fill(hidden_B1QK, -torch.inf), rows)


def entmax_of(logits: Tensor, alpha: float | Tensor) -> Tensor:
    """alpha-entmax over the last axis: in closed form where there is one, else by bisection to the last digit.

    A tensor alpha [H] holds one for each head and is differentiated.
    """
    if isinstance(alpha, Tensor):
        alpha = alpha.to(logits.dtype)[:, None, None]
    elif alpha == 1:
        return logits.softmax(-1)
    elif alpha == 1.5:
        return entmax.entmax15(logits, dim=-1)  # type: ignore[no-any-return]
    elif alpha == 2:
        return entmax.sparsemax(logits, dim=-1)  # type: ignore[no-any-return]
    n_halvings = 30 if logits.dtype == torch.float32 else 60
    return entmax.entmax_bisect(logits, alpha, dim=-1, n_iter=n_halvings)  # type: ignore[no-any-return]
