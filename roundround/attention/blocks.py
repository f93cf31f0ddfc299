"""Attention over blocks of query rows: any weights, memory linear in length.

FlexAttention is not used instead: without compilation it makes the whole matrix of logits, it covers the softmax alone,
and none of its CUDA kernels could be checked without a GPU.

Shapes: B batch, Q queries, K keys, H heads, G key heads, C head channels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from roundround.attention.bias import Bias
from roundround.attention.kernels import repeated
from roundround.attention.keys import Keys

LOGITS_PER_BLOCK = 2**23  # 32 MiB of float32: large enough to keep a GPU busy, small beside a model
LOGITS_IN_CACHE = 2**21  # on a CPU: 8 MiB stay in the allocator's reach, up to twice as fast ...
ROWS_IN_CACHE = 32  # ... unless it leaves fewer rows than this, for each of which all keys' gradients are added up

# weights [B, H, b - a, K'] from the logits and the visibility of the query rows a..b
WeightsOfRows = Callable[[Tensor, Tensor, int, int], Tensor]


def attend_in_blocks(
    weights_of_rows: WeightsOfRows,
    q_BHQC: Tensor,
    k_BGKC: Tensor,
    v_BGKC: Tensor,
    *,
    scale: float,
    keys: Keys,
    bias: Bias | None,
) -> Tensor:
    """Attention output [B, H, Q, C], a few query rows at a time; the backward pass computes each block again."""
    blocks = []
    for a, b in reversed(query_blocks(q_BHQC, keys, bias)):  # the largest first, so that its memory serves all others
        block = (weights_of_rows, q_BHQC, k_BGKC, v_BGKC, scale, keys, bias, a, b)
        recompute = torch.is_grad_enabled() and b - a < keys.n_queries
        blocks.append(checkpoint(attend_rows, *block, use_reentrant=False) if recompute else attend_rows(*block))
    return torch.cat(blocks[::-1], dim=2)


def attend_rows(
    weights_of_rows: WeightsOfRows,
    q_BHQC: Tensor,
    k_BGKC: Tensor,
    v_BGKC: Tensor,
    scale: float,
    keys: Keys,
    bias: Bias | None,
    a: int,
    b: int,
) -> Tensor:
    """Attention output of the query rows a..b: [B, H, b - a, C]."""
    first, last = keys.span(a, b)
    logits_BHQK, visible_B1QK = logits_of_rows(q_BHQC, k_BGKC, scale, keys, bias, a, b)
    v_BHKC = repeated(v_BGKC[:, :, first:last], q_BHQC)
    alpha_BHQK = weights_of_rows(logits_BHQK, visible_B1QK, a, b)
    return alpha_BHQK.to(v_BHKC.dtype) @ v_BHKC


def logits_of_rows(
    q_BHQC: Tensor, k_BGKC: Tensor, scale: float, keys: Keys, bias: Bias | None, a: int, b: int
) -> tuple[Tensor, Tensor]:
    """Logits [B, H, b - a, K'] of the query rows a..b over the keys of `keys.span(a, b)`, and who is visible."""
    first, last = keys.span(a, b)
    k_BHKC = repeated(k_BGKC[:, :, first:last], q_BHQC)
    logits_BHQK = (q_BHQC[:, :, a:b] * scale) @ k_BHKC.mT
    if bias is not None:
        logits_BHQK = logits_BHQK + bias.block(keys, a, b)
    return logits_BHQK, keys.visible(a, b)


def rows_between(rows: Mapping[str, Tensor], visible_B1QK: Tensor, a: int, b: int) -> dict[str, Tensor]:
    """What a normaliser reads about the query rows a..b: its row parameters and `n_visible`."""
    return {name: value[:, :, a:b] for name, value in rows.items()} | {"n_visible": visible_B1QK.sum(-1, keepdim=True)}


def query_blocks(q_BHQC: Tensor, keys: Keys, bias: Bias | None = None) -> list[tuple[int, int]]:
    """Ranges of query rows whose logits fit in `LOGITS_PER_BLOCK` elements; at least one row each."""
    held = q_BHQC.shape[0] * max(q_BHQC.shape[1], 1 if bias is None else bias.n_hidden)
    rows = rows_within(LOGITS_PER_BLOCK // held, keys)
    if q_BHQC.device.type == "cpu":
        rows = min(rows, max(ROWS_IN_CACHE, rows_within(LOGITS_IN_CACHE // held, keys)))
    rows = max(1, rows)
    return [(a, min(a + rows, keys.n_queries)) for a in range(0, keys.n_queries, rows)]


def rows_within(limit: int, keys: Keys) -> int:
    """Number of rows with at most `limit` logits; with a window they span no more keys than themselves and it."""
    rows = limit // keys.n_keys
    if keys.window is None:
        return rows
    return max(rows, largest_square(limit, keys.window * (1 if keys.causal else 2)))


def largest_square(limit: int, side: int) -> int:
    """Largest n with n (n + side) <= limit; 0 where there is none above."""
    return int(((side * side + 4 * limit) ** 0.5 - side) / 2)
