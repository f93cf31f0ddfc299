"""Triton kernels for the entropy of rows of attention, on CUDA: one pass over queries and keys; no values are read.

The pass keeps three numbers for each row: the largest logit so far, m; l = sum exp(s - m); t = sum (s - m) exp(s - m).
At the end the row's entropy H is ln l - t / l. If a larger logit m' is found, then with d = m - m' the sum l becomes
l e^d, and t becomes (t + d l) e^d. In the backward pass the gradient of a logit is ds_j = -p_j (ln p_j + H) dH. One
kernel computes the gradient of the queries, another the gradient of the keys. Logits, sums and entropies are always
float32, so inputs in bfloat16 cost the entropy no digits. The pass does half the work of attention.

In half precision a matrix product would lose digits of small gradients dH. So the product for the queries is computed
without dH, and its result is multiplied by dH in float32. The product for the keys is computed with dH / D, where D is
the largest |dH| of a block of rows, and its result is multiplied by D in float32.
Windows, chunks, padding, caches and grouped queries need no mask tensor.

Under TRITON_INTERPRET=1, set before Triton is imported, the kernels run on a CPU, slowly.
Shapes: B batch, Q queries, K keys, H heads, G key heads, C head channels.

Tested by tests/gpu/test_interpreted.py, which runs tests/gpu/interpreted.py, and on a GPU by tests/gpu/test_gpu.py.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from roundround.kernels.keys import Keys
from roundround.kernels.row_measures import entropy_of_logits
from roundround.kernels.sdpa import in_rows, repeated
from roundround.kernels.torch_internals import once_per_compilation
from roundround.kernels.trial import passes, say

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
MOST_CHANNELS = 256
INSTEAD = "the entropy is computed by a pass of attention with the keys as values"


def jit(function: Any) -> Any:
    """The function compiled by Triton; unchanged if Triton is not installed."""
    return function if triton is None else triton.jit(function)


# -- what a program of a kernel computes: the logits of some rows and some keys


@jit
def block_of(POINTER, rows, row_stride, n_rows, n_channels, CHANNELS: tl.constexpr):
    """The rows of a matrix with the indices `rows`; 0 beyond the matrix's last row and last channel."""
    channels = tl.arange(0, CHANNELS)
    inside = (rows[:, None] < n_rows) & (channels[None, :] < n_channels)
    return tl.load(POINTER + rows[:, None].to(tl.int64) * row_stride + channels[None, :], mask=inside, other=0.0)


@jit
def visible(tokens, columns, VALID, n_keys, window, chunk,
            CAUSAL: tl.constexpr, WINDOW: tl.constexpr, CHUNK: tl.constexpr, PADDED: tl.constexpr):  # fmt: skip
    """Mask [rows, keys] as in `Keys.visible`. tokens [rows, 1]: the index of each query's own key. columns [1, keys]:
    the indices of the keys.
    """
    seen = (columns < n_keys) & (tokens < n_keys)
    if CAUSAL:
        seen = seen & (columns <= tokens)
    if WINDOW:
        seen = seen & (columns > tokens - window)
        if not CAUSAL:
            seen = seen & (columns < tokens + window)
    if CHUNK:
        seen = seen & (columns // chunk == tokens // chunk)
    if PADDED:
        seen = seen & (tl.load(VALID + columns, mask=columns < n_keys, other=0) != 0)
    return seen


@jit
def entropy_of_rows(Q, K, VALID, ENTROPY, LSE, scale, n_queries, n_keys, n_channels, window, chunk,
                    q_batch, q_head, q_row, k_batch, k_head, k_row, valid_batch, n_heads,
                    GROUPS: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, CHUNK: tl.constexpr,
                    PADDED: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, CHANNELS: tl.constexpr):  # fmt: skip
    """Entropy and log-sum-exp of one block of rows; both are 0 for a row that sees nothing."""
    head, batch = tl.program_id(1), tl.program_id(2).to(tl.int64)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    offset = n_keys - n_queries
    tokens = rows + offset
    q = block_of(Q + batch * q_batch + head.to(tl.int64) * q_head, rows, q_row, n_queries, n_channels, CHANNELS)
    K += batch * k_batch + (head // GROUPS).to(tl.int64) * k_head
    VALID += batch * valid_batch
    first, last = span(tl.program_id(0) * ROWS + offset, ROWS, n_keys, window, chunk, CAUSAL, WINDOW, CHUNK)
    largest = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    moment = tl.zeros((ROWS,), tl.float32)
    for start in range(first // KEYS * KEYS, last, KEYS):
        columns = start + tl.arange(0, KEYS)
        k = block_of(K, columns, k_row, n_keys, n_channels, CHANNELS)
        seen = visible(tokens[:, None], columns[None, :], VALID, n_keys, window, chunk, CAUSAL, WINDOW, CHUNK, PADDED)
        logits = tl.where(seen, tl.dot(q, tl.trans(k), input_precision="ieee") * scale, float("-inf"))
        new = tl.maximum(largest, tl.max(logits, 1))
        base = tl.where(new == float("-inf"), 0.0, new)
        drop = tl.where(largest == float("-inf"), 0.0, largest - base)
        moment = (moment + drop * total) * tl.exp(drop)
        total = total * tl.exp(drop)
        gap = tl.where(seen, logits - base[:, None], 0.0)
        weight = tl.where(seen, tl.exp(gap), 0.0)
        total += tl.sum(weight, 1)
        moment += tl.sum(gap * weight, 1)
        largest = new
    sees = total > 0
    safe = tl.where(sees, total, 1.0)
    place = (batch * n_heads + head) * n_queries + rows
    tl.store(ENTROPY + place, tl.where(sees, tl.log(safe) - moment / safe, 0.0), mask=rows < n_queries)
    tl.store(LSE + place, tl.where(sees, largest + tl.log(safe), 0.0), mask=rows < n_queries)


@jit
def span(token, ROWS: tl.constexpr, n_keys, window, chunk, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
         CHUNK: tl.constexpr):  # fmt: skip
    """The range of keys that `ROWS` successive rows see, as in `Keys.span`; the first row's own key is `token`."""
    first, last = token * 0, token * 0 + n_keys
    if CAUSAL:
        last = tl.minimum(last, token + ROWS)
    if WINDOW:
        first = tl.maximum(first, token - window + 1)
        last = tl.minimum(last, token + ROWS + window - 1)
    if CHUNK:
        first = tl.maximum(first, token // chunk * chunk)
        last = tl.minimum(last, (token + ROWS + chunk - 1) // chunk * chunk)
    return first, last


@jit
def derivative(logits, seen, lse, entropy):
    """p (ln p + H): minus the derivative of a row's entropy with respect to its logits."""
    log_p = tl.where(seen, logits - lse, 0.0)
    return tl.where(seen, tl.exp(log_p) * (log_p + entropy), 0.0)


@jit
def gradient_of_queries(Q, K, VALID, ENTROPY, LSE, GRAD, DQ, scale, n_queries, n_keys, n_channels, window, chunk,
                        q_batch, q_head, q_row, k_batch, k_head, k_row, valid_batch, n_heads,
                        GROUPS: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, CHUNK: tl.constexpr,
                        PADDED: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
                        CHANNELS: tl.constexpr):  # fmt: skip
    """Write the gradient of one block of queries to DQ, contiguous. GRAD holds dH, the gradient of the entropies.

    dq_i = -scale dH_i sum_j p_ij (ln p_ij + H_i) k_j
    """
    head, batch = tl.program_id(1), tl.program_id(2).to(tl.int64)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    offset = n_keys - n_queries
    q = block_of(Q + batch * q_batch + head.to(tl.int64) * q_head, rows, q_row, n_queries, n_channels, CHANNELS)
    K += batch * k_batch + (head // GROUPS).to(tl.int64) * k_head
    VALID += batch * valid_batch
    place = (batch * n_heads + head) * n_queries + rows
    lse = tl.load(LSE + place, mask=rows < n_queries, other=0.0)
    entropy = tl.load(ENTROPY + place, mask=rows < n_queries, other=0.0)
    grad = tl.load(GRAD + place, mask=rows < n_queries, other=0.0)
    first, last = span(tl.program_id(0) * ROWS + offset, ROWS, n_keys, window, chunk, CAUSAL, WINDOW, CHUNK)
    sums = tl.zeros((ROWS, CHANNELS), tl.float32)
    for start in range(first // KEYS * KEYS, last, KEYS):
        columns = start + tl.arange(0, KEYS)
        k = block_of(K, columns, k_row, n_keys, n_channels, CHANNELS)
        seen = visible((rows + offset)[:, None], columns[None, :], VALID, n_keys, window, chunk,
                       CAUSAL, WINDOW, CHUNK, PADDED)  # fmt: skip
        logits = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        weight = derivative(logits, seen, lse[:, None], entropy[:, None])
        sums += tl.dot(weight.to(k.dtype), k, input_precision="ieee")
    channels = tl.arange(0, CHANNELS)
    inside = (rows[:, None] < n_queries) & (channels[None, :] < n_channels)
    dq = (-scale) * grad[:, None] * sums
    tl.store(DQ + place[:, None] * n_channels + channels[None, :], dq.to(DQ.dtype.element_ty), mask=inside)


@jit
def gradient_of_keys(Q, K, VALID, ENTROPY, LSE, GRAD, DK, scale, n_queries, n_keys, n_channels, window, chunk,
                     q_batch, q_head, q_row, k_batch, k_head, k_row, valid_batch, n_heads,
                     GROUPS: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, CHUNK: tl.constexpr,
                     PADDED: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, CHANNELS: tl.constexpr):  # fmt: skip
    """Write the gradient of one block of keys to DK, contiguous. GRAD holds dH, the gradient of the entropies.

    dk_j = -scale sum_i p_ij (ln p_ij + H_i) dH_i q_i, summed over the key head's query heads
    """
    key_head, batch = tl.program_id(1), tl.program_id(2).to(tl.int64)
    start = tl.program_id(0) * KEYS
    columns = start + tl.arange(0, KEYS)
    offset = n_keys - n_queries
    k = block_of(K + batch * k_batch + key_head.to(tl.int64) * k_head, columns, k_row, n_keys, n_channels, CHANNELS)
    VALID += batch * valid_batch
    first, last = start * 0, start * 0 + n_keys  # tokens that may see these keys
    if CAUSAL:
        first = tl.maximum(first, start)
    if WINDOW:
        if not CAUSAL:
            first = tl.maximum(first, start - window + 1)
        last = tl.minimum(last, start + KEYS + window - 1)
    if CHUNK:
        first = tl.maximum(first, start // chunk * chunk)
        last = tl.minimum(last, (start + KEYS + chunk - 1) // chunk * chunk)
    first = tl.maximum(first - offset, 0)
    sums = tl.zeros((KEYS, CHANNELS), tl.float32)
    for head in range(key_head * GROUPS, key_head * GROUPS + GROUPS):
        head_place = batch * n_heads + head
        for row in range(first // ROWS * ROWS, last - offset, ROWS):
            rows = row + tl.arange(0, ROWS)
            q = block_of(
                Q + batch * q_batch + (batch * 0 + head) * q_head, rows, q_row, n_queries, n_channels, CHANNELS
            )
            place = head_place * n_queries + rows
            lse = tl.load(LSE + place, mask=rows < n_queries, other=0.0)
            entropy = tl.load(ENTROPY + place, mask=rows < n_queries, other=0.0)
            grad = tl.load(GRAD + place, mask=rows < n_queries, other=0.0)
            seen = visible((rows + offset)[:, None], columns[None, :], VALID, n_keys, window, chunk,
                           CAUSAL, WINDOW, CHUNK, PADDED)  # fmt: skip
            logits = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
            weight = derivative(logits, seen, lse[:, None], entropy[:, None])
            top = tl.max(tl.abs(grad), 0)  # divided out before the product, in which float16 would lose small gradients
            share = tl.where(top > 0, grad / tl.where(top > 0, top, 1.0), 0.0)
            scaled_q = (q.to(tl.float32) * share[:, None]).to(q.dtype)
            sums += top * tl.dot(tl.trans(weight.to(q.dtype)), scaled_q, input_precision="ieee")
    channels = tl.arange(0, CHANNELS)
    inside = (columns[:, None] < n_keys) & (channels[None, :] < n_channels)
    place = (batch * (n_heads // GROUPS) + key_head) * n_keys + columns
    tl.store(DK + place[:, None] * n_channels + channels[None, :], (-scale * sums).to(DK.dtype.element_ty), mask=inside)


# -- the launch of the kernels


class RowEntropy(torch.autograd.Function):
    """Entropy in nats and log-sum-exp of each row, [B, H, Q] float32; the log-sum-exp passes no gradient.

    apply(q, k, scale, keys)
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, scale: float, keys: Keys) -> tuple[Tensor, Tensor]:
        q, k = (in_rows(x) for x in (q, k))
        entropy, log_sum_exp = (q.new_empty(q.shape[:3], dtype=torch.float32) for _ in range(2))
        launch(entropy_of_rows, q, k, scale, keys, entropy, log_sum_exp)
        ctx.save_for_backward(q, k, entropy, log_sum_exp)
        ctx.scale, ctx.keys = scale, keys
        ctx.mark_non_differentiable(log_sum_exp)
        return entropy, log_sum_exp

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        q, k, entropy, log_sum_exp = ctx.saved_tensors
        grad = grad.float().contiguous()
        dq, dk = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k))
        launch(gradient_of_queries, q, k, ctx.scale, ctx.keys, entropy, log_sum_exp, grad, dq)
        launch(gradient_of_keys, q, k, ctx.scale, ctx.keys, entropy, log_sum_exp, grad, dk)
        return dq, dk, None, None


def launch(kernel: Any, q: Tensor, k: Tensor, scale: float, keys: Keys, *rest: Tensor) -> None:
    """Run a kernel with one program for each text, head and block of rows.

    If the kernel is `gradient_of_keys`, there is one program for each text, key head and block of keys.
    """
    (n_batch, n_heads, n_queries, n_channels), (n_key_heads, n_keys) = q.shape, k.shape[1:3]
    size = 64 if n_channels <= 128 else 32
    of_keys = kernel is gradient_of_keys
    grid = (-(-(n_keys if of_keys else n_queries) // size), n_key_heads if of_keys else n_heads, n_batch)
    valid = None if keys.valid_BK is None else keys.valid_BK.to(torch.uint8).contiguous()
    kernel[grid](
        q, k, q if valid is None else valid, *rest, scale, n_queries, n_keys, n_channels,
        keys.window or 0, keys.chunk or 0, *q.stride()[:3], *k.stride()[:3],
        0 if valid is None or len(valid) == 1 else n_keys, n_heads,
        GROUPS=n_heads // n_key_heads, CAUSAL=keys.causal, WINDOW=keys.window is not None, CHUNK=keys.chunk is not None,
        PADDED=valid is not None, ROWS=size, KEYS=size, CHANNELS=max(16, 1 << (n_channels - 1).bit_length()),
    )  # fmt: skip


def serves(q_BHQC: Tensor, keys: Keys) -> bool:
    """Whether the kernels can compute the entropy for these queries and keys; if not, a warning gives the reason once.

    The function is called only where Triton can run: on CUDA, or if Triton's kernels are interpreted.
    """
    if triton is None or torch.version.hip is not None:
        return False
    why = unmet(q_BHQC, keys)
    if why is not None:
        say(f"the entropy kernel {why}: {INSTEAD}")
        return False
    return kernel_passes(str(q_BHQC.device), q_BHQC.dtype, q_BHQC.shape[-1])


def unmet(q_BHQC: Tensor, keys: Keys) -> str | None:
    """For the warning: a requirement of the kernels that this call does not meet; None if it meets them all."""
    if q_BHQC.dtype not in DTYPES:
        return "takes only float32 and half precision"
    if q_BHQC.shape[-1] > MOST_CHANNELS:
        return f"takes at most {MOST_CHANNELS} channels per head, not {q_BHQC.shape[-1]}"
    if keys.chunks_are_shifted:
        return "takes no chunks together with padding"
    if keys.n_queries > keys.n_keys:
        return "takes no more queries than keys"
    if keys.documents is not None:
        return "takes only one document in each row"
    return None


@once_per_compilation
def kernel_passes(device: str, dtype: torch.dtype, n_channels: int) -> bool:
    """Whether the kernels compute the entropy and its gradients correctly on this device."""
    pos_1T = torch.arange(70, device=device)[None]
    keys, scale = Keys(q_pos_BQ=pos_1T, k_pos_BK=pos_1T), n_channels**-0.5

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return RowEntropy.apply(q, k, scale, keys)[0][..., None] * repeated(v, q)  # type: ignore[no-any-return]

    def definition(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        logits = scale * q @ repeated(k, q).mT
        return entropy_of_logits(logits, keys.visible(0, 70)) * repeated(v, q)

    return passes(
        "the entropy kernel", attend, definition,
        device=device, dtype=dtype, n_channels=n_channels, variant=(), instead=INSTEAD,
    )  # fmt: skip
