"""What every bias on the logits starts from: how far each key lies from each query.

Shapes: B batch, Q queries, K keys, H heads.
"""

from __future__ import annotations

from torch import Tensor

from roundround.interface import Keys


def relative_positions(keys: Keys, a: int, b: int) -> Tensor:
    """Key position minus query position, in tokens: [1 or B, 1, b - a, K'] int64, over the keys of `keys.span(a, b)`.

    Negative for the past. Keys of the future are in the block wherever the mask, not the span, hides them.
    """
    first, last = keys.span(a, b)
    q_pos_B1Q1, k_pos_B11K = keys.q_pos_BQ[:, None, a:b, None], keys.k_pos_BK[:, None, None, first:last]
    return k_pos_B11K - q_pos_B1Q1
