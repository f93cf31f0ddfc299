"""Attention by PyTorch's FlexAttention on CUDA: the kernel applies any function to each logit and makes no matrix.

Attention whose weights are f(s_j), without division by their sum, is computed from a softmax:
sum_j f(s_j) v_j = exp(lse) out, where out is the output of softmax attention with the logits log f(s_j), and lse is the
log-sum-exp of these logits. Gradients flow through the log-sum-exp too. Windows, chunks and padding become a
`BlockMask`.

On a CPU, FlexAttention is used only by the tests: uncompiled it makes the matrix of logits, and compiled it has no
gradient.
Shapes: B batch, Q queries, K keys, H heads, G key heads, C head channels.

Tested by tests/kernels/test_flex.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from roundround.kernels.bias import Bias, ScoreMod
from roundround.kernels.keys import Keys
from roundround.kernels.sdpa import repeated
from roundround.kernels.torch_internals import once_per_compilation, recompiling
from roundround.kernels.trial import passes, say

DEVICES = ("cuda",)
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
CHANNELS = (16, 256)  # fewest and most
BLOCK = 128  # rows and keys of a block of the mask
RECOMPILATIONS = 256  # each pair of a function and a number of channels needs one; PyTorch's default limit is 8
INSTEAD = "attention is computed as on other devices"


def attend(
    q_BHQC: Tensor,
    k_BGKC: Tensor,
    v_BGKC: Tensor,
    *,
    scale: float,
    keys: Keys,
    bias: Bias | None = None,
    modify: ScoreMod | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Output [B, H, Q, C] of the softmax of the modified logits, and their log-sum-exp and maximum, [B, H, Q, 1].

    If a row sees only logits of -inf, its output is 0, and its log-sum-exp and maximum are -inf. The maximum passes no
    gradient. modify: the function that changes each logit after the bias has changed it, or None.
    """
    from torch.nn.attention.flex_attention import AuxRequest, flex_attention

    change = None if bias is None else bias.score_mod(keys)

    def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        if change is not None:
            score = change(score, b, h, i, j)  # float32, whatever the precision of the queries
        return score if modify is None else modify(score, b, h, i, j)

    call: Any = flex_attention if torch.compiler.is_compiling() else compiled
    out, aux = call(
        q_BHQC, k_BGKC, v_BGKC, score_mod=score_mod, block_mask=block_mask(keys), scale=scale,
        enable_gqa=q_BHQC.shape[1] != k_BGKC.shape[1], return_aux=AuxRequest(lse=True, max_scores=True),
        kernel_options={"FORCE_USE_FLEX_ATTENTION": True},  # the kernel that `flex_passes` tried, at every length
    )  # fmt: skip
    return out, aux.lse[..., None], aux.max_scores.detach()[..., None]


def compiled(*args: Any, **options: Any) -> Any:
    """Call `flex_attention` with these arguments. It is compiled, even if the model is not, except on a CPU."""
    from torch.nn.attention.flex_attention import flex_attention

    function = flex_attention if args[0].device.type == "cpu" else compiled_function()
    with recompiling(RECOMPILATIONS):  # else a second scale or cap would become a symbol, which the kernel refuses
        return function(*args, **options)


@functools.cache
def compiled_function() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, fullgraph=True)


def block_mask(keys: Keys) -> Any:
    """The mask of these keys as a `BlockMask`, made without an n x n table; None if every query sees every key.

    Without padding, each row sees an interval of keys, and neither end of the interval moves back from one row to the
    next. So the first and the last row of a block determine which keys are seen by some of the block's rows, and which
    keys are seen by all of them.
    """
    from torch.nn.attention.flex_attention import BlockMask

    if keys.is_unmasked:
        return None
    device, n_queries, n_keys = keys.k_pos_BK.device, keys.n_queries, keys.n_keys
    first_row = torch.arange(0, n_queries, BLOCK, device=device)
    last_row = (first_row + BLOCK - 1).clamp(max=n_queries - 1)
    start = torch.arange(0, n_keys, BLOCK, device=device)
    end = (start + BLOCK).clamp(max=n_keys)
    seen = (keys.first_visible(first_row)[:, None] < end) & (keys.end_visible(last_row)[:, None] > start)
    by_all = (keys.first_visible(last_row)[:, None] <= start) & (keys.end_visible(first_row)[:, None] >= end)
    by_all &= (start + BLOCK <= n_keys) & (first_row + BLOCK <= n_queries)[:, None] & seen
    if keys.valid_BK is not None:
        by_all = torch.zeros_like(by_all)
    some, every = (blocks_of(x) for x in (seen & ~by_all, by_all))
    return BlockMask.from_kv_blocks(
        *some, *every, BLOCK_SIZE=BLOCK, mask_mod=mask_mod(keys), seq_lengths=(n_queries, n_keys)
    )


def blocks_of(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """For each row of `blocks`, the number of key blocks that are True, and the indices of all key blocks, True first.

    `blocks` is [row blocks, key blocks]; the results are [1, 1, row blocks] and [1, 1, row blocks, key blocks].
    """
    number = blocks.sum(-1, dtype=torch.int32)
    order = blocks.int().sort(dim=-1, descending=True, stable=True).indices.to(torch.int32)
    return number[None, None], order[None, None]


def mask_mod(keys: Keys) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """`Keys.visible` as a function of one query and one key."""
    offset, valid_BK = keys.n_keys - keys.n_queries, keys.valid_BK
    valid_1K = None if valid_BK is None or len(valid_BK) > 1 else valid_BK[0]

    def seen(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        token = i + offset
        found = (j <= token) if keys.causal else (j >= 0)
        if keys.window is not None:
            found = found & (j > token - keys.window) & (j < token + keys.window)
        if keys.chunk is not None:
            found = found & (j // keys.chunk == token // keys.chunk)
        if valid_BK is not None:
            found = found & (valid_BK[b, j] if valid_1K is None else valid_1K[j])
        return found

    return seen


def serves(q_BHQC: Tensor, keys: Keys, bias: Bias | None) -> bool:
    """Whether `attend` can compute this call and is faster than the other paths on this device."""
    if q_BHQC.device.type not in DEVICES or torch.version.hip is not None or keys.n_queries == 1:
        return False
    if bias is not None and bias.score_mod(keys) is None:
        return False
    why = unmet(q_BHQC, keys)
    if why is not None:
        say(f"FlexAttention {why}: {INSTEAD}")
        return False
    return flex_passes(str(q_BHQC.device), q_BHQC.dtype, q_BHQC.shape[-1])


def unmet(q_BHQC: Tensor, keys: Keys) -> str | None:
    """For the warning: a requirement of FlexAttention that this call does not meet; None if it meets them all."""
    fewest, most = CHANNELS
    if q_BHQC.dtype not in DTYPES and q_BHQC.device.type == "cuda":
        return "takes only float32 and half precision"
    if not fewest <= q_BHQC.shape[-1] <= most and q_BHQC.device.type == "cuda":
        return f"takes {fewest} to {most} channels per head, not {q_BHQC.shape[-1]}"
    if keys.chunks_are_shifted:
        return "takes no chunks together with padding"
    if keys.n_queries > keys.n_keys or keys.documents is not None:
        return "is used only if the queries are the last tokens of one document"
    return None


@once_per_compilation
def flex_passes(device: str, dtype: torch.dtype, n_channels: int) -> bool:
    """Whether FlexAttention gives right outputs and gradients on this device; tried with sigmoid weights and a bias."""
    n_tokens = 200
    pos_1T = torch.arange(n_tokens, device=device)[None]
    keys, scale = Keys(q_pos_BQ=pos_1T, k_pos_BK=pos_1T, window=150), n_channels**-0.5
    slopes_H = torch.tensor([0.1, 0.05, 0.02, 0.01], device=device)

    def modified(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return log_sigmoid(score - slopes_H[h] * (i - j))

    def attended(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out, lse, _ = attend(q, k, v, scale=scale, keys=keys, modify=modified)
        return out * lse.exp()

    def definition(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        logits = scale * q @ repeated(k, q).mT - slopes_H[:, None, None] * (pos_1T.mT - pos_1T)
        weights: Tensor = logits.sigmoid().masked_fill(~keys.visible(0, n_tokens), 0.0)
        return weights @ repeated(v, q)

    return passes(
        "FlexAttention", attended, definition, device=device, dtype=dtype, n_channels=n_channels, variant=(),
        instead=INSTEAD, n_tokens=n_tokens,
    )  # fmt: skip


def log_sigmoid(x: Tensor) -> Tensor:
    """ln sigmoid(x), made of functions that every compiler knows; at 0 its derivative is 1/2."""
    return (x - x.abs()) / 2 - torch.log1p(torch.exp(-x.abs()))


def log_expm1(x: Tensor) -> Tensor:
    """ln(e^x - 1) for x > 0; -inf, with derivative 0, for other x."""
    positive = x > 0
    safe = torch.where(positive, x, 1.0)
    return torch.where(positive, safe + torch.log(-torch.expm1(-safe)), -torch.inf)
