"""What an encoding adds to the logits, a block of query rows at a time.

Shapes: B batch, Q queries, K keys, H heads.
"""

from __future__ import annotations

from torch import Tensor

from roundround.attention.keys import Keys


class Bias:
    """What an encoding adds to the logits, given for a block of query rows at a time so that no n x n table exists.

    slopes_H: where the bias is `slopes_H * (k_pos - q_pos)`, that is linear in distance, a fused kernel can take it as
    one more channel of queries and keys; None for every other form.
    n_hidden: numbers that `block` holds for each query and key on its way, so that blocks are cut small enough.
    """

    slopes_H: Tensor | None = None
    n_hidden: int = 1

    def block(self, keys: Keys, a: int, b: int) -> Tensor:
        """Bias [1 or B, H, b - a, K'] for the query rows a..b over the keys of `keys.span(a, b)`, in logits."""
        raise NotImplementedError


def relative_positions(keys: Keys, a: int, b: int) -> Tensor:
    """Key position minus query position, in tokens: [1 or B, 1, b - a, K'] int64, over the keys of `keys.span(a, b)`.

    Negative for the past. Keys of the future are in the block wherever the mask, not the span, hides them.
    """
    first, last = keys.span(a, b)
    q_pos_B1Q1, k_pos_B11K = keys.q_pos_BQ[:, None, a:b, None], keys.k_pos_BK[:, None, None, first:last]
    return k_pos_B11K - q_pos_B1Q1
