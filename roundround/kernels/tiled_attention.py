"""Attention assembled from calls of the flash kernels, gradients included.

It rests on one property of the kernels' backward pass: from the forward pass it needs only the output and the
log-sum-exp. So attention computed over one block of keys after another, or with a null key, has exact gradients if the
backward pass gets the output and the log-sum-exp over all keys. If an inverse temperature depends on the entropy of
each row, the gradients include the path through the entropy.

Shapes: B batch, Q queries, K keys, H heads, G key heads, C head channels.

Tested by tests/softmax/test_softmax.py, tests/softmax/test_softmax_contract.py and tests/softmax/test_normalisers.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from roundround.kernels import sdpa
from roundround.kernels.keys import Keys
from roundround.kernels.precision import at_least_float32
from roundround.kernels.tiles import Operands, Tile, linear_terms, ranges

DENORMAL_GUARD = 86 * math.log(2)  # nats


class TiledAttention(torch.autograd.Function):
    """Attention tile by tile, with an optional null key; the blocks of keys are merged by their log-sum-exps.

    lse = log(sum_blocks exp(lse_block) + exp(null)), out = sum_blocks out_block exp(lse_block - lse)

    apply(q, k, v, slopes, t_q, t_k, null, scale, keys) gives the output [B, H, Q, C], the log-sum-exp [B, H, Q] without
    gradient and, with slopes, the mean distance E_p[t_j - t_i], [B, H, Q, 1]. The gradient of the mean distance flows
    only through the weights p. slopes, t_q and t_k are the fields of `LinearTerms`, or None. null is the logit of the
    null key for each head or row, [1 or B, H, 1 or Q], or None.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        slopes: Tensor | None,
        t_q: Tensor | None,
        t_k: Tensor | None,
        null_BHQ: Tensor | None,
        scale: float,
        keys: Keys,
    ) -> tuple[Tensor, Tensor, Tensor]:
        linear = linear_terms(slopes, t_q, t_k)
        whole, log_sum_exp, distance, ctx.states = attend_tiles(Operands(q, k, v, scale, keys, linear), null_BHQ)
        ctx.save_for_backward(q, k, v, slopes, t_q, t_k, null_BHQ, whole, log_sum_exp)
        ctx.scale, ctx.keys = scale, keys
        ctx.mark_non_differentiable(log_sum_exp)
        if slopes is None:
            ctx.mark_non_differentiable(distance)
        return whole[..., : v.shape[-1]], log_sum_exp, distance

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor, _: Tensor, grad_distance: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, slopes, t_q, t_k, null_BHQ, whole, log_sum_exp = ctx.saved_tensors
        operands = Operands(q, k, v, ctx.scale, ctx.keys, linear_terms(slopes, t_q, t_k))
        if slopes is not None:
            grad_out = F.pad(grad_out, (0, operands.n_more))
            operands.own_channel(grad_out).copy_(operands.by_coordinate(grad_distance[..., 0]))
        grads = tile_gradients(grad_out, whole, log_sum_exp, ctx.states, operands)
        d_null = None
        if null_BHQ is not None:
            share = (null_BHQ.to(log_sum_exp.dtype) - log_sum_exp).exp()
            of_null_BHQ = torch.linalg.vecdot(grad_out.to(share.dtype), whole.to(share.dtype)) * share
            d_null = -of_null_BHQ.sum_to_size(null_BHQ.shape).to(null_BHQ.dtype)
        d_linear: tuple[Tensor | None, ...] = (None, None, None)
        if slopes is not None:
            d_linear = operands.linear_gradients(grads[0], grads[1])
            grads = [grad[..., : -operands.n_more] for grad in grads]
        return *grads, *d_linear, d_null, None, None


def attend_tiles(operands: Operands, null_BHQ: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, list[Any]]:
    """The output, the log-sum-exp, the mean distance E_p[t_j - t_i], and the state for `tile_gradients`.

    The output includes the channels that `Operands` adds. Without a linear bias the mean distance is a single 0.
    """
    tiles, linear, rows = list(operands.tiles()), operands.linear, operands.q.shape[:3]
    outs, log_sum_exps, distances, states = [], [], [], []
    for tile in tiles:
        done = [sdpa.attend(**operands.kernel_arguments(tile, block)) for block in tile.key_blocks]
        out, log_sum_exp = merge_by_log_sum_exp([(out, log_sum_exp) for out, log_sum_exp, _ in done])
        log_sum_exp = log_sum_exp + operands.shift(tile)
        if linear is not None:
            distances.append(operands.own_channel(out).flatten(1, 2)[..., None] + operands.to_centre(tile))
        if null_BHQ is not None:
            null = null_BHQ[:, operands.heads(tile)].to(log_sum_exp.dtype)
            total = torch.logaddexp(log_sum_exp, null if null.shape[2] == 1 else null[:, :, tile.a : tile.b])
            out, log_sum_exp = out * (log_sum_exp - total).exp()[..., None].to(out.dtype), total
        outs.append(out)
        log_sum_exps.append(log_sum_exp)
        states.append((tile, [state for *_, state in done]))
    distance = operands.q.new_zeros(()) if linear is None else assemble(tiles, distances, (*rows, 1))
    whole = assemble(tiles, outs, (*rows, outs[0].shape[-1]))
    return whole, assemble(tiles, log_sum_exps, rows), distance, states


def tile_gradients(
    grad_out: Tensor, whole: Tensor, log_sum_exp: Tensor, states: list[Any], operands: Operands
) -> list[Tensor]:
    """Gradients of the queries, keys and values, including those of the channels that `Operands` adds."""
    # far keys have denormal weights, on which a CPU takes a hundred times as long. So all weights are multiplied by a
    # power of two, and the gradients, which are linear in the weights, are divided by it at the end
    guard = 0.0 if operands.linear is None else DENORMAL_GUARD
    sums: list[Tensor] = []
    for tile, block_states in states:
        rows = (slice(None), operands.heads(tile), slice(tile.a, tile.b))
        lse = log_sum_exp[rows] - operands.shift(tile) - guard
        for block, state in zip(tile.key_blocks, block_states, strict=True):
            grads = sdpa.gradients(grad_out[rows], whole[rows], lse, state, **operands.kernel_arguments(tile, block))
            if operands.linear is not None:
                operands.count_from_rows(grads[0], tile)
            if grads[0].shape == whole.shape and grads[1].shape == operands.k.shape:
                sums = list(grads)
                continue
            if not sums:
                sums = [whole.new_zeros(whole.shape), torch.zeros_like(operands.k), torch.zeros_like(operands.v)]
            columns = (slice(None), slice(tile.g, tile.h), slice(block.first, block.last))
            for total, place, grad in zip(sums, (rows, columns, columns), grads, strict=True):
                total[place] += grad
    return [total.mul_(math.exp(-guard)) for total in sums] if guard else sums


def merge_by_log_sum_exp(blocks: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Merge the outputs and log-sum-exps of disjoint blocks of keys into those of all keys."""
    (out, log_sum_exp), *others = blocks
    for other, other_lse in others:
        total = torch.logaddexp(log_sum_exp, other_lse)
        mine, its = ((lse - total).exp()[..., None].to(out.dtype) for lse in (log_sum_exp, other_lse))
        out, log_sum_exp = out * mine + other * its, total
    return out, log_sum_exp


def assemble(tiles: list[Tile], values: list[Tensor], shape: tuple[int, ...]) -> Tensor:
    """One tensor of this shape, assembled from the values of each tile."""
    if len(values) == 1:
        return values[0]
    whole = values[0].new_empty(shape)
    n_groups = shape[1] // max(tile.h for tile in tiles)
    for tile, value in zip(tiles, values, strict=True):
        whole[:, tile.g * n_groups : tile.h * n_groups, tile.a : tile.b] = value
    return whole


# -- an inverse temperature that follows the entropy of each row


ENTROPY_IN_FLOAT32 = ("cpu",)  # devices


class EntropyScaledAttention(torch.autograd.Function):
    """softmax(beta e) v in little memory, where beta is a function of each row's entropy; gradients flow through beta.

    Two calls of `TiledAttention` under autograd give the same result in more memory: 590 MiB at 32k tokens instead of
    428 MiB. This function needs less because it does not store each row's mean key for the backward pass. In the
    backward pass it also holds fewer gradients at once: those of the output or those of the entropy, and for the
    entropy those of a few heads.

    apply(q, k, v, beta_of, scale, keys): beta_of maps entropies [B, H, Q, 1] in nats to inverse temperatures.
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
            d_beta = torch.autograd.grad(beta.sum(), entropy)[0] if beta.requires_grad else torch.zeros_like(beta)
        beta = beta.detach()
        out, log_sum_exp, _, states = attend_tiles(Operands((q * beta).to(q.dtype), k, v, scale, keys))
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
        # a kernel's p_j (grad . v_j - grad . out) is the derivative of the entropy, -p_j (e_j - E_p[e]), if the values
        # are the keys, grad is -scale q, and out is the vector along q for which grad . out is -E_p[e]
        n_groups, n_key_heads = q.shape[1] // k.shape[1], k.shape[1]
        # gradients of a quarter of the key heads are held at once, but of enough for all threads to have a head
        for_threads = torch.get_num_threads() * n_key_heads / (q.shape[0] * q.shape[1])
        for g, h in ranges(n_key_heads, math.ceil(max(n_key_heads / 4, for_threads))):
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
    """The mean of each head's keys, padding excluded, [B, G, 1, C] float32; None if `for_entropy` does not need it.

    Subtracting the mean shifts all logits of a row equally. The shift changes neither weights nor entropy, so the mean
    needs no gradient. If it were not subtracted, a large mean would round away the keys' differences in half precision.
    """
    if k.device.type in ENTROPY_IN_FLOAT32 or k.dtype not in (torch.float16, torch.bfloat16):
        return None
    wide = k.detach().float()
    if keys.valid_BK is None:
        return wide.mean(2, keepdim=True)
    valid_B1K1 = keys.valid_BK[:, None, :, None]
    return wide.masked_fill(~valid_B1K1, 0.0).sum(2, keepdim=True) / valid_B1K1.sum(2, keepdim=True).clamp(min=1)


def for_entropy(q: Tensor, k: Tensor, centre: Tensor | None) -> tuple[Tensor, Tensor]:
    """Queries and keys for the entropy pass: on a CPU in at least float32; elsewhere the keys minus `centre`.

    On a CPU a pass in bfloat16 would cause an error of 7e-3 in beta and save no time. On a GPU the pass runs in the
    model's precision, with sums in float32. The remaining error of the entropy does not depend on the mean key. If the
    logits have a standard deviation of 1, it is at most 5e-3 nats in bfloat16 and 6e-4 nats in float16; if the standard
    deviation is 3, it is at most 3e-2 and 4e-3 nats. The average error is a tenth of these bounds.
    """
    if q.device.type in ENTROPY_IN_FLOAT32:
        return at_least_float32(q), at_least_float32(k)
    return q, k if centre is None else (k.float() - centre).to(k.dtype)
