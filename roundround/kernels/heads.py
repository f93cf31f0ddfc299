"""The last heads of a layer, given as a share of all its heads. In NAPE the last heads are the heads without positions.

Shapes: B batch, Q queries, H heads, S last heads.

Tested by tests/softmax/test_scaled_heads.py.
"""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor


def n_last_heads(n_heads: int, share: float) -> int:
    """`share` times the number of heads, rounded up."""
    return math.ceil(share * n_heads - 1e-9)  # 0.7 * 10 is a little above 7


def n_scaled_heads(n_heads: int, scaled_heads: float | None) -> int:
    """Number of heads that a normaliser scales; None means all. Raises ValueError if `scaled_heads` is not a share."""
    if scaled_heads is None:
        return n_heads
    if not 0 < scaled_heads <= 1:
        raise ValueError(
            f"scaled_heads={scaled_heads} must be a share of the heads, above 0 and at most 1, or null for all"
        )
    return n_last_heads(n_heads, scaled_heads)


def of_all_heads(scale_BSQ1: Tensor, n_heads: int) -> Tensor:
    """The scale of all heads [B, H, Q, 1] from the scale of the last S heads; the other heads have exactly 1."""
    n_plain = n_heads - scale_BSQ1.shape[1]
    return F.pad(scale_BSQ1, (0, 0, 0, 0, n_plain, 0), value=1.0) if n_plain else scale_BSQ1
