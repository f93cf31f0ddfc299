"""Attention whose inverse temperature follows the entropy of each row, differentiated through it in little memory.

Shapes: B batch, Q queries, K keys, H heads, G key heads, C head channels.

Tested by tests/softmax/test_normalisers.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from roundround.attention.keys import Keys
from roundround.attention.precision import at_least_float32
from roundround.attention.tiled_attention import attend_tiles, tile_gradients
from roundround.attention.tiles import Operands, ranges

ENTROPY_IN_FLOAT32 = ("cpu",)  # devices


class EntropyScaledAttention(torch.autograd.Function):
    """softmax(beta e) v with beta a function of each row's entropy, differentiated through beta, in little memory.

    The same as two calls of `TiledAttention` under autograd, but it holds one pass's gradients at a time, the
    second's a few heads at a time, and no mean keys: at 32k tokens 428 MiB where autograd took 590.

    apply(q, k, v, beta_of, scale, keys): beta_of takes entropies [B, H, Q, 1] in nats to inverse temperatures.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, beta_of: Callable[[Tensor], Tensor], scale: float, keys: Keys
    ) -> Tensor:
        centre = centre_of_keys(k, keys)
        wide_q, wide_k = for_entropy(q, k, centre)
        mean_key, first_lse, _, first_states = attend_tiles(Operands(wide_q, wide_k, wide_k, scale, keys))
        mean_logit = scale * torch.linalg.vecdot(wide_q.to(first_lse.dtype), mean_key.to(first_lse.dtype))
        del mean_key
        with torch.enable_grad():
            entropy = (first_lse - mean_logit)[..., None].requires_grad_()
            beta = beta_of(entropy)
            constant = not beta.requires_grad
            d_beta = torch.zeros_like(beta) if constant else torch.autograd.grad(beta.sum(), entropy)[0]
        beta = beta.detach()
        scaled_q = (q * beta).to(q.dtype)
        out, log_sum_exp, _, states = attend_tiles(Operands(scaled_q, k, v, scale, keys))
        ctx.save_for_backward(q, k, v, out, log_sum_exp, first_lse, mean_logit, beta, d_beta, centre)
        ctx.scale, ctx.keys, ctx.states, ctx.first_states = scale, keys, states, first_states
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, log_sum_exp, first_lse, mean_logit, beta, d_beta, centre = ctx.saved_tensors
        wide, scale, keys = beta.dtype, ctx.scale, ctx.keys
        operands = Operands((q * beta).to(q.dtype), k, v, scale, keys)
        dq, dk, dv = tile_gradients(grad_out, out, log_sum_exp, ctx.states, operands)
        del operands
        d_entropy = d_beta * torch.linalg.vecdot(dq.to(wide), q.to(wide))[..., None]
        dq.mul_(beta)
        # the derivative of the entropy is de_j = -p_j (e_j - E_p[e]): a kernel's p_j (grad . v_j - grad . out) with the
        # keys as values, grad = -scale q and an output along q whose product with it is -E_p[e]
        n_groups = q.shape[1] // k.shape[1]
        for g, h in ranges(k.shape[1], heads_at_once(q, k)):
            heads = slice(g * n_groups, h * n_groups)
            some_q, some_k = for_entropy(q[:, heads], k[:, g:h], None if centre is None else centre[:, g:h])
            length = some_q.square().sum(-1, keepdim=True).to(wide) * scale
            along = (mean_logit[:, heads, :, None] / length).where(length > 0, 0.0)
            mean_key = (some_q * along).to(some_q.dtype)
            grad_mean_key = (some_q * (-scale * d_entropy[:, heads])).to(some_q.dtype)
            some = Operands(some_q, some_k, some_k, scale, keys)
            more_dq, more_dk, _ = tile_gradients(grad_mean_key, mean_key, first_lse[:, heads], ctx.first_states, some)
            dq[:, heads] += more_dq
            dk[:, g:h] += more_dk
        return dq, dk, dv, None, None, None


def centre_of_keys(k: Tensor, keys: Keys) -> Tensor | None:
    """The mean of the keys of each head that are no padding, [B, G, 1, C] float32; None where `for_entropy` needs none.

    It moves all logits of a row alike and so changes neither weights nor entropy, but in half precision what keys share
    costs the digits in which they differ. It passes no gradient, for the same reason.
    """
    if k.device.type in ENTROPY_IN_FLOAT32 or k.dtype not in (torch.float16, torch.bfloat16):
        return None
    wide = k.detach().float()
    if keys.valid_BK is None:
        return wide.mean(2, keepdim=True)
    valid_B1K1 = keys.valid_BK[:, None, :, None]
    return wide.masked_fill(~valid_B1K1, 0.0).sum(2, keepdim=True) / valid_B1K1.sum(2, keepdim=True).clamp(min=1)


def for_entropy(q: Tensor, k: Tensor, centre: Tensor | None) -> tuple[Tensor, Tensor]:
    """Queries and keys as the pass for the entropy takes them: in at least float32 on a CPU, else without their centre.

    On a CPU a pass in bfloat16 costs 7e-3 in beta and gains no time. Elsewhere it runs in the model's precision, with
    sums in float32. What is left of the error, where logits have a standard deviation of 1 (of 3): at most 5e-3 (3e-2)
    nats in bfloat16 and 6e-4 (4e-3) in float16, whatever the keys share; on average a tenth of that.
    """
    if q.device.type in ENTROPY_IN_FLOAT32:
        return at_least_float32(q), at_least_float32(k)
    return q, k if centre is None else (k.float() - centre).to(k.dtype)


def heads_at_once(q: Tensor, k: Tensor) -> int:
    """Key heads whose gradients are held at once: a quarter of them, but enough for all threads to have a head."""
    for_threads = torch.get_num_threads() * k.shape[1] / (q.shape[0] * q.shape[1])
    return math.ceil(max(k.shape[1] / 4, for_threads))
