"""PyTorch's own attention kernels, called so that they return the log-sum-exp of each row: on CPU and on CUDA.

Log-sum-exps are float32, or float64 where the queries are. No kernel here makes the matrix of logits.
Shapes: B batch, Q queries, K keys, H heads, G key heads, C head channels.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from roundround.attention.documents import Documents
from roundround.attention.kernel_choice import Kernel, kernel_for, takes_groups

aten = torch.ops.aten
MASK_ALIGNMENT = 8  # elements; the memory-efficient kernel reads 16 bytes of a mask at once


def attend(
    *, q_BHQC: Tensor, k_BGKC: Tensor, v_BGKC: Tensor, scale: float, causal: bool, mask: Tensor | None
) -> tuple[Tensor, Tensor, Any]:
    """Output [B, H, Q, C], log-sum-exp [B, H, Q] and what `gradients` takes back.

    `causal` is aligned at the top left; `mask` [1 or B, 1, Q, K] is added to the logits. A row whose mask is -inf
    throughout has output 0 and log-sum-exp 0. q, k and v are as `kernel_choice.fitted` makes them.
    """
    if q_BHQC.device.type == "cpu":
        out, log_sum_exp = aten._scaled_dot_product_flash_attention_for_cpu(
            q_BHQC, k_BGKC, v_BGKC, 0.0, causal, attn_mask=mask, scale=scale
        )
        return out, log_sum_exp, None
    kernel = kernel_for(q_BHQC, masked=mask is not None, differentiable=True)
    return attend_on_cuda(kernel, q_BHQC, k_BGKC, v_BGKC, scale, causal, mask)


def gradients(
    grad_BHQC: Tensor,
    out_BHQC: Tensor,
    log_sum_exp_BHQ: Tensor,
    state: Any,
    *,
    q_BHQC: Tensor,
    k_BGKC: Tensor,
    v_BGKC: Tensor,
    scale: float,
    causal: bool,
    mask: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v, for p_j = exp(e_j - log-sum-exp) and the output as given.

    The kernels compute de_j = p_j (grad . v_j - grad . out) for each key by itself, so the keys given may be a part of
    those that the row sees.
    """
    if q_BHQC.device.type == "cpu":
        return aten._scaled_dot_product_flash_attention_for_cpu_backward(  # type: ignore[no-any-return]
            grad_BHQC, q_BHQC, k_BGKC, v_BGKC, out_BHQC, log_sum_exp_BHQ, 0.0, causal, attn_mask=mask, scale=scale
        )
    return gradients_on_cuda(grad_BHQC, q_BHQC, k_BGKC, v_BGKC, out_BHQC, log_sum_exp_BHQ, state, scale, causal, mask)


def attend_on_cuda(
    kernel: Kernel | None,
    q_BHQC: Tensor,
    k_BGKC: Tensor,
    v_BGKC: Tensor,
    scale: float,
    causal: bool,
    mask: Tensor | None,
) -> tuple[Tensor, Tensor, Any]:
    """`attend` by the flash kernel or the memory-efficient one."""
    if kernel is Kernel.FLASH:
        out, log_sum_exp, *state, _ = aten._scaled_dot_product_flash_attention(
            q_BHQC, k_BGKC, v_BGKC, 0.0, causal, False, scale=scale
        )
        return out, log_sum_exp, (kernel, state)
    assert kernel is Kernel.EFFICIENT, f"no kernel for {q_BHQC.dtype} on {q_BHQC.device}"
    k_BHKC, v_BHKC = (repeated(x, q_BHQC) for x in (k_BGKC, v_BGKC))
    out, log_sum_exp, *state = aten._scaled_dot_product_efficient_attention(
        q_BHQC, k_BHKC, v_BHKC, aligned(mask, q_BHQC, k_BHKC), True, 0.0, causal, scale=scale
    )
    log_sum_exp = log_sum_exp[:, :, : q_BHQC.shape[2]]  # its rows are padded
    if mask is not None:
        empty_B1Q = mask.isneginf().all(-1)
        out, log_sum_exp = out.masked_fill(empty_B1Q[..., None], 0.0), log_sum_exp.masked_fill(empty_B1Q, 0.0)
    return out, log_sum_exp, (kernel, state)


def gradients_on_cuda(
    grad_BHQC: Tensor,
    q_BHQC: Tensor,
    k_BGKC: Tensor,
    v_BGKC: Tensor,
    out_BHQC: Tensor,
    log_sum_exp_BHQ: Tensor,
    state: Any,
    scale: float,
    causal: bool,
    mask: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """`gradients` by the kernel of the forward pass, which stands in its state."""
    out_BHQC, log_sum_exp_BHQ = out_BHQC.contiguous(), log_sum_exp_BHQ.contiguous()
    kernel, state = state
    if kernel is Kernel.FLASH:
        cum_q, cum_k, max_q, max_k, seed, offset = state
        return aten._scaled_dot_product_flash_attention_backward(  # type: ignore[no-any-return]
            grad_BHQC.contiguous(), q_BHQC, k_BGKC, v_BGKC, out_BHQC, log_sum_exp_BHQ,
            cum_q, cum_k, max_q, max_k, 0.0, causal, seed, offset, scale=scale,
        )  # fmt: skip
    seed, offset = state
    padded = F.pad(log_sum_exp_BHQ, (0, -log_sum_exp_BHQ.shape[-1] % 32))
    k_BHKC, v_BHKC = (repeated(x, q_BHQC) for x in (k_BGKC, v_BGKC))
    dq, dk, dv, _ = aten._scaled_dot_product_efficient_attention_backward(
        grad_BHQC.contiguous(), q_BHQC, k_BHKC, v_BHKC, aligned(mask, q_BHQC, k_BHKC), out_BHQC, padded,
        seed, offset, 0.0, [True, True, True, False], causal, scale=scale,
    )  # fmt: skip
    groups = (k_BGKC.shape[1], -1)
    return dq, dk.unflatten(1, groups).sum(2), dv.unflatten(1, groups).sum(2)


def scaled_dot_product_attention(q_BHQC: Tensor, k_BGKC: Tensor, v_BGKC: Tensor, scale: float, causal: bool) -> Tensor:
    """PyTorch's function of this name, called so that no device makes the matrix of logits for want of grouped keys."""
    grouped = q_BHQC.shape[1] != k_BGKC.shape[1]
    if grouped and not causal:  # every row sees all keys: those of a key head's query heads are rows of one matrix
        rows_BGNC = q_BHQC.reshape(*k_BGKC.shape[:2], -1, q_BHQC.shape[-1])
        return F.scaled_dot_product_attention(rows_BGNC, k_BGKC, v_BGKC, scale=scale).reshape(q_BHQC.shape)
    if grouped and not takes_groups(q_BHQC, k_BGKC):
        k_BGKC, v_BGKC, grouped = repeated(k_BGKC, q_BHQC), repeated(v_BGKC, q_BHQC), False
    return F.scaled_dot_product_attention(q_BHQC, k_BGKC, v_BGKC, is_causal=causal, scale=scale, enable_gqa=grouped)


def attention_of_documents(
    q_BHTC: Tensor, k_BGTC: Tensor, v_BGTC: Tensor, scale: float, documents: Documents
) -> Tensor:
    """Causal attention [B, H, T, C] within each document, by the kernels for rows of unequal length."""

    shortest, longest = documents.shortest, documents.longest  # else they would be read off the offsets in each layer

    def laid_out(x_BHTC: Tensor) -> Tensor:
        x_NHC = repeated(x_BHTC, q_BHTC).transpose(1, 2).flatten(0, 1)
        jagged = torch.nested.nested_tensor_from_jagged(
            x_NHC, documents.offsets, min_seqlen=shortest, max_seqlen=longest
        )
        return jagged.transpose(1, 2)

    q, k, v = (laid_out(x) for x in (q_BHTC, k_BGTC, v_BGTC))
    out_NHC = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale).transpose(1, 2).values()
    return out_NHC.reshape(*documents.pos_BT.shape, *q_BHTC.shape[1::2]).transpose(1, 2)


def repeated(x_BGKC: Tensor, q_BHQC: Tensor) -> Tensor:
    """A key head's values repeated for each of its query heads: [B, G, ...] -> [B, H, ...]."""
    n_groups = q_BHQC.shape[1] // x_BGKC.shape[1]
    return x_BGKC[:, :, None].expand(-1, -1, n_groups, *x_BGKC.shape[2:]).flatten(1, 2)


def aligned(mask: Tensor | None, q_BHQC: Tensor, k_BHKC: Tensor) -> Tensor | None:
    """The mask for all heads, its rows starting where the memory-efficient kernel can read them."""
    if mask is None:
        return None
    n_keys = k_BHKC.shape[2]
    wide = F.pad(mask.to(q_BHQC.dtype), (0, -n_keys % MASK_ALIGNMENT))[..., :n_keys]
    return wide.expand(*q_BHQC.shape[:3], n_keys)
