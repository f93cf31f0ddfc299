"""Attention over blocks of query rows, for weights of any form; memory is linear in length.

FlexAttention, which `flex.py` calls on CUDA, is no replacement: it changes single logits, while the functions here need
the whole row. On a CPU, FlexAttention makes the matrix of logits, or has no gradient if it is compiled.

Shapes: B batch, Q queries, K keys, H heads, G key heads, C head channels.

Tested by tests/softmax/test_softmax.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from roundround.kernels.bias import Bias
from roundround.kernels.keys import Keys
from roundround.kernels.precision import at_least_float32

LOGITS_PER_BLOCK = 2**23  # 32 MiB of float32: large enough to keep a GPU busy, small beside a model
LOGITS_IN_CACHE = 2**21  # the limit on a CPU: the allocator reuses blocks of 8 MiB, which is up to twice as fast
ROWS_IN_CACHE = 32  # LOGITS_IN_CACHE allows at least so many rows: each block adds up the gradients of all its keys
ROWS_OF_TEXTS = 64  # a block of several texts has at least so many rows (docs/inside/benchmarks.md)

# weights [B', H, b - a, K'] from the logits and the visibility of the query rows a..b of some texts
WeightsOfRows = Callable[[Tensor, Tensor, slice, int, int], Tensor]


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
    """Attention output [B, H, Q, C], computed in blocks of a few texts and query rows.

    The backward pass computes each block again. Each block has all heads, because a normaliser can have parameters for
    each head. With a bias, each block also has all texts: the bias is mostly the same for all texts.
    """
    size = texts_at_once(q_BHQC, keys) if bias is None else q_BHQC.shape[0]
    outs = []
    for first, *some in zip(
        range(0, q_BHQC.shape[0], size), *(torch.split(x, size) for x in (q_BHQC, k_BGKC, v_BGKC)), strict=True
    ):
        texts, blocks = slice(first, first + size), []
        keys_of_some = keys.of_texts(texts)
        for a, b in reversed(query_blocks(some[0], keys_of_some, bias)):  # largest first: the others reuse its memory
            block = (weights_of_rows, *some, scale, keys_of_some, bias, texts, a, b)
            recompute = torch.is_grad_enabled() and (b - a < keys.n_queries or size < q_BHQC.shape[0])
            blocks.append(checkpoint(attend_rows, *block, use_reentrant=False) if recompute else attend_rows(*block))
        outs.append(torch.cat(blocks[::-1], dim=2))
    return torch.cat(outs)


def attend_rows(
    weights_of_rows: WeightsOfRows,
    q_BHQC: Tensor,
    k_BGKC: Tensor,
    v_BGKC: Tensor,
    scale: float,
    keys: Keys,
    bias: Bias | None,
    texts: slice,
    a: int,
    b: int,
) -> Tensor:
    """Attention output of the query rows a..b of these texts: [B', H, b - a, C]."""
    first, last = keys.span(a, b)
    logits_BHQK, visible_B1QK = logits_of_rows(q_BHQC, k_BGKC, scale, keys, bias, a, b)
    alpha_BHQK = weights_of_rows(logits_BHQK, visible_B1QK, texts, a, b)
    return times_of_key_heads(alpha_BHQK.to(v_BGKC.dtype), v_BGKC[:, :, first:last])


def logits_of_rows(
    q_BHQC: Tensor, k_BGKC: Tensor, scale: float, keys: Keys, bias: Bias | None, a: int, b: int
) -> tuple[Tensor, Tensor]:
    """Logits [B, H, b - a, K'] of the query rows a..b over the keys of `keys.span(a, b)`, and which keys are visible.

    Logits are at least float32: half precision would make close logits equal, or give another key the largest logit.
    """
    first, last = keys.span(a, b)
    with torch.autocast(q_BHQC.device.type, enabled=False):
        q, k = at_least_float32(q_BHQC[:, :, a:b]), at_least_float32(k_BGKC[:, :, first:last])
        logits_BHQK = times_of_key_heads(q * scale, k.mT)
    if bias is not None:
        logits_BHQK = bias.applied(logits_BHQK, keys, a, b)
    return logits_BHQK, keys.visible(a, b)


def times_of_key_heads(x_BHQN: Tensor, y_BGNM: Tensor) -> Tensor:
    """x @ y, where each head of x takes the y of its key head.

    All heads with the same key head form one matrix, so y is not copied.
    """
    n_batch, n_heads, n_rows, n = x_BHQN.shape
    n_key_heads = y_BGNM.shape[1]
    joined = x_BHQN.reshape(n_batch, n_key_heads, n_heads // n_key_heads * n_rows, n) @ y_BGNM
    return joined.view(n_batch, n_heads, n_rows, y_BGNM.shape[-1])


def rows_between(rows: Mapping[str, Tensor], visible_B1QK: Tensor, a: int, b: int) -> dict[str, Tensor]:
    """The row parameters of a normaliser for the query rows a..b, with `n_visible` added if it is missing."""
    of_rows = {name: value[:, :, a:b] for name, value in rows.items()}
    return of_rows if "n_visible" in rows else of_rows | {"n_visible": visible_B1QK.sum(-1, keepdim=True)}


def texts_at_once(q_BHQC: Tensor, keys: Keys) -> int:
    """The number of texts in a block that has room for `ROWS_OF_TEXTS` rows of each text, or for all its rows."""
    n_batch, n_heads, n_queries, _ = q_BHQC.shape
    limit = min(LOGITS_PER_BLOCK, LOGITS_IN_CACHE) if q_BHQC.device.type == "cpu" else LOGITS_PER_BLOCK
    fitting = rows_within(limit // n_heads, keys) // max(1, min(n_queries, ROWS_OF_TEXTS))
    n_parts = -(-n_batch // max(1, fitting))
    return max(1, -(-n_batch // max(1, n_parts)))


def query_blocks(q_BHQC: Tensor, keys: Keys, bias: Bias | None = None) -> list[tuple[int, int]]:
    """Ranges of query rows whose logits fit in `LOGITS_PER_BLOCK` elements; at least one row each."""
    held = q_BHQC.shape[0] * max(q_BHQC.shape[1], 1 if bias is None else bias.n_hidden)
    rows = rows_within(LOGITS_PER_BLOCK // held, keys)
    if q_BHQC.device.type == "cpu":
        rows = min(rows, max(ROWS_IN_CACHE, rows_within(LOGITS_IN_CACHE // held, keys)))
    rows = max(1, rows)
    return [(a, min(a + rows, keys.n_queries)) for a in range(0, keys.n_queries, rows)]


def rows_within(limit: int, keys: Keys) -> int:
    """The largest n so that n query rows have at most `limit` logits over the keys within a window or chunk."""
    reach = min(keys.window or keys.n_keys, keys.chunk or keys.n_keys)
    if reach >= keys.n_keys:
        return limit // keys.n_keys
    side = reach * (1 if keys.causal else 2)
    return max(limit // keys.n_keys, int(((side * side + 4 * limit) ** 0.5 - side) / 2))  # n (n + side) <= limit
