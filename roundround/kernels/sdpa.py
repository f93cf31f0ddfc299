"""PyTorch's own attention kernels: the choice of a kernel for a call, and calls that return log-sum-exps.

The kernels have these limits in torch 2.6 to 2.13, aten/src/ATen/native/transformers/cuda/sdp_utils.cpp. The flash
kernel takes half precision on compute capability 8.0 and above, multiples of 8 channels up to 256, and grouped queries;
it takes no mask. The memory-efficient kernel takes masks, any multiple of 8 channels, float32, float16, and on compute
capability 8.0 and above bfloat16; it takes no grouped queries. For all other calls PyTorch uses its math kernel, which
makes the matrix of logits; `kernel_for` never chooses that kernel.

Log-sum-exps are float32, or float64 for float64 queries.
Shapes: B batch, Q queries, K keys, H heads, G key heads, C head channels.

Tested by tests/softmax/test_kernels.py and tests/kernels/test_kernel_choice.py.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.backends import cuda

from roundround.kernels import torch_internals
from roundround.kernels.documents import Documents
from roundround.kernels.precision import has_bfloat16, wide_dtype
from roundround.kernels.torch_internals import once_per_compilation

CHANNELS_IN_EIGHTS = 8
SDPA_ALONE = ("cuda", "mps", "xpu")  # devices whose log-sum-exps could not be checked; "cuda" means ROCm here
MASK_ALIGNMENT = 8  # elements; the memory-efficient kernel reads 16 bytes of a mask at once


class Kernel(Enum):
    """A kernel of PyTorch. All kernels except SDPA, the public function, return log-sum-exps.

    Windows, padding and biases need a kernel that returns log-sum-exps.
    """

    CPU = auto()
    FLASH = auto()
    EFFICIENT = auto()
    SDPA = auto()  # whatever `F.scaled_dot_product_attention` calls on this device


def kernel_for(q_BHQC: Tensor, *, masked: bool = False, differentiable: bool = False) -> Kernel | None:
    """The kernel for softmax attention of these queries; None if no kernel computes it in linear memory.

    The choice depends on the queries' device, precision, number of channels (after `fitted`) and need of a gradient.
    masked: whether a mask tensor is added to the logits.
    differentiable: True if a gradient is needed even though autograd is off, as inside an autograd function.
    """
    device = q_BHQC.device.type
    if device == "cpu":
        return Kernel.CPU
    if device != "cuda" or torch.version.hip is not None:
        return Kernel.SDPA if device in SDPA_ALONE and q_BHQC.dtype != torch.float64 else None
    (row,) = fitted(q_BHQC[:1, :1, :1])
    return kernel_on_cuda(str(row.device), row.dtype, row.shape[-1], masked, differentiable or is_differentiated(row))


def is_differentiated(x: Tensor) -> bool:
    return x.requires_grad and torch.is_grad_enabled()


@once_per_compilation  # a compiled graph cannot contain calls of PyTorch's predicates
def kernel_on_cuda(
    device: str, dtype: torch.dtype, n_channels: int, masked: bool, differentiated: bool
) -> Kernel | None:
    """`kernel_for` on NVIDIA's GPUs."""
    asked = question(device, dtype, n_channels, differentiated)
    with torch.set_grad_enabled(differentiated):
        if not masked and cuda.can_use_flash_attention(asked):
            return Kernel.FLASH
        return Kernel.EFFICIENT if cuda.can_use_efficient_attention(asked) else None


def question(
    device: str, dtype: torch.dtype, n_channels: int, differentiated: bool, heads: tuple[int, int] = (1, 1)
) -> cuda.SDPAParams:
    """The argument of PyTorch's predicates such as `can_use_flash_attention`, for queries and keys of this kind."""
    q, k = (torch.empty(1, n, 1, n_channels, device=device, dtype=dtype, requires_grad=differentiated) for n in heads)
    return cuda.SDPAParams(q, k, k, None, 0.0, False, heads[0] != heads[1])


def varlen_kernel_for(q_BHQC: Tensor) -> Kernel | None:
    """The kernel for a concatenated batch of texts of unequal length; None if no kernel takes it.

    Only the flash kernel and the memory-efficient kernel take such a batch, and only on NVIDIA's GPUs.
    """
    kernel = kernel_for(q_BHQC) if q_BHQC.device.type == "cuda" else None
    return kernel if kernel in (Kernel.FLASH, Kernel.EFFICIENT) else None


def takes_groups(q_BHQC: Tensor, k_BGKC: Tensor) -> bool:
    """Whether PyTorch's kernel for this call takes fewer key heads than query heads and makes no matrix of logits."""
    if q_BHQC.device.type == "cpu":
        return True
    kernel = kernel_for(q_BHQC)
    if kernel is not Kernel.EFFICIENT:
        return kernel is Kernel.FLASH
    heads = (q_BHQC.shape[1], k_BGKC.shape[1])
    return efficient_takes_groups(str(q_BHQC.device), q_BHQC.dtype, q_BHQC.shape[-1], is_differentiated(q_BHQC), heads)


@once_per_compilation
def efficient_takes_groups(
    device: str, dtype: torch.dtype, n_channels: int, differentiated: bool, heads: tuple[int, int]
) -> bool:
    with torch.set_grad_enabled(differentiated):
        return cuda.can_use_efficient_attention(question(device, dtype, n_channels, differentiated, heads))


def fitted(*tensors: Tensor) -> list[Tensor]:
    """Queries, keys and values as the kernels need them: with equally many channels, in a precision that kernels take.

    A tensor with fewer channels than the others gets channels of zeros. On CUDA the number of channels becomes a
    multiple of 8, and bfloat16 becomes float32 if the device only emulates it (compute capability below 8.0, such as T4
    and V100).
    """
    n, dtype = max(x.shape[-1] for x in tensors), tensors[0].dtype
    if tensors[0].device.type == "cuda":
        n += -n % CHANNELS_IN_EIGHTS
        if dtype == torch.bfloat16 and not has_bfloat16(tensors[0].device):
            dtype = wide_dtype(dtype)
    return [(x if x.shape[-1] == n else F.pad(x, (0, n - x.shape[-1]))).to(dtype) for x in tensors]


def in_rows(x: Tensor) -> Tensor:
    """The tensor, copied if the channels of a row are not adjacent in memory (last stride 1).

    The kernels need last stride 1, and the kernel for CPUs does not check it. Transposed queries, views of complex
    numbers and even some results of `F.pad` have a larger stride.
    """
    return x if x.stride(-1) == 1 else x.contiguous()


# -- calls that return log-sum-exps


def attend(
    *, q_BHQC: Tensor, k_BGKC: Tensor, v_BGKC: Tensor, scale: float, causal: bool, mask: Tensor | None
) -> tuple[Tensor, Tensor, Any]:
    """Output [B, H, Q, C], log-sum-exp [B, H, Q] and the state that `gradients` takes.

    With `causal`, row i sees the keys 0 to i, even if there are more keys than queries. `mask` [1 or B, 1, Q, K] is
    added to the logits. A row whose mask is -inf throughout has output 0 and log-sum-exp 0. q, k and v are as `fitted`
    makes them, with any strides.
    """
    q_BHQC, k_BGKC, v_BGKC = (in_rows(x) for x in (q_BHQC, k_BGKC, v_BGKC))
    if q_BHQC.device.type == "cpu":
        out, log_sum_exp = torch_internals.flash_on_cpu(
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
    """Gradients of q, k and v, given the output and the log-sum-exp, lse; the weights are p_j = exp(e_j - lse).

    The kernels compute de_j = p_j (grad . v_j - grad . out) for each key separately. So a call may have only some of
    the keys that a query sees, if the output and lse are those over all of these keys.
    """
    tensors = (grad_BHQC, out_BHQC, q_BHQC, k_BGKC, v_BGKC)
    grad_BHQC, out_BHQC, q_BHQC, k_BGKC, v_BGKC = (in_rows(x) for x in tensors)
    if q_BHQC.device.type == "cpu":
        return torch_internals.flash_on_cpu_backward(  # type: ignore[no-any-return]
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
        out, log_sum_exp, *state, _ = torch_internals.flash(q_BHQC, k_BGKC, v_BGKC, 0.0, causal, False, scale=scale)
        return out, log_sum_exp, (kernel, state)
    assert kernel is Kernel.EFFICIENT, f"no kernel for {q_BHQC.dtype} on {q_BHQC.device}"
    k_BHKC, v_BHKC = (repeated(x, q_BHQC) for x in (k_BGKC, v_BGKC))
    out, log_sum_exp, *state = torch_internals.efficient(
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
    """`gradients` by the kernel of the forward pass, which `state` names."""
    kernel, state = state
    if kernel is Kernel.FLASH:
        out_BHQC, log_sum_exp_BHQ = out_BHQC.contiguous(), log_sum_exp_BHQ.contiguous()
        cum_q, cum_k, max_q, max_k, seed, offset = state
        return torch_internals.flash_backward(  # type: ignore[no-any-return]
            grad_BHQC.contiguous(), q_BHQC, k_BGKC, v_BGKC, out_BHQC, log_sum_exp_BHQ,
            cum_q, cum_k, max_q, max_k, 0.0, causal, seed, offset, scale=scale,
        )  # fmt: skip
    seed, offset = state
    # the kernel expects the layout of its own forward pass: in half precision an output stored as [B, Q, H, C],
    # whatever its strides say, and log-sum-exps that are infinite beyond the last row
    out_BHQC = out_BHQC.transpose(1, 2).contiguous().transpose(1, 2)
    padded = F.pad(log_sum_exp_BHQ, (0, -log_sum_exp_BHQ.shape[-1] % 32), value=torch.inf)
    k_BHKC, v_BHKC = (repeated(x, q_BHQC) for x in (k_BGKC, v_BGKC))
    dq, dk, dv, _ = torch_internals.efficient_backward(
        grad_BHQC.contiguous(), q_BHQC, k_BHKC, v_BHKC, aligned(mask, q_BHQC, k_BHKC), out_BHQC, padded,
        seed, offset, 0.0, [True, True, True, False], causal, scale=scale,
    )  # fmt: skip
    groups = (k_BGKC.shape[1], -1)
    return dq, dk.unflatten(1, groups).sum(2), dv.unflatten(1, groups).sum(2)


def scaled_dot_product_attention(q_BHQC: Tensor, k_BGKC: Tensor, v_BGKC: Tensor, scale: float, causal: bool) -> Tensor:
    """PyTorch's function of this name, called so that PyTorch makes no matrix of logits.

    If the kernel takes no grouped queries, keys and values are first repeated for each query head.
    """
    q_BHQC, k_BGKC, v_BGKC = (in_rows(x) for x in (q_BHQC, k_BGKC, v_BGKC))  # otherwise PyTorch makes that matrix too
    grouped = q_BHQC.shape[1] != k_BGKC.shape[1]
    if grouped and not causal:  # every row sees all keys: the query heads of a key head become rows of one matrix
        rows_BGNC = q_BHQC.reshape(*k_BGKC.shape[:2], -1, q_BHQC.shape[-1])
        return F.scaled_dot_product_attention(rows_BGNC, k_BGKC, v_BGKC, scale=scale).reshape(q_BHQC.shape)
    if grouped and not takes_groups(q_BHQC, k_BGKC):
        k_BGKC, v_BGKC, grouped = repeated(k_BGKC, q_BHQC), repeated(v_BGKC, q_BHQC), False
    return F.scaled_dot_product_attention(q_BHQC, k_BGKC, v_BGKC, is_causal=causal, scale=scale, enable_gqa=grouped)


def attention_of_documents(
    q_BHTC: Tensor, k_BGTC: Tensor, v_BGTC: Tensor, scale: float, documents: Documents
) -> Tensor:
    """Causal attention [B, H, T, C] within each document, by the kernels for texts of unequal length."""

    shortest, longest = documents.shortest, documents.longest  # else PyTorch computes them again in each layer

    def laid_out(x_BHTC: Tensor) -> Tensor:
        x_NHC = repeated(in_rows(x_BHTC), q_BHTC).transpose(1, 2).flatten(0, 1)
        jagged = torch.nested.nested_tensor_from_jagged(
            x_NHC, documents.offsets, min_seqlen=shortest, max_seqlen=longest
        )
        return jagged.transpose(1, 2)

    q, k, v = (laid_out(x) for x in (q_BHTC, k_BGTC, v_BGTC))
    out_NHC = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale).transpose(1, 2).values()
    return out_NHC.reshape(*documents.pos_BT.shape, *q_BHTC.shape[1::2]).transpose(1, 2)


def repeated(x_BGKC: Tensor, q_BHQC: Tensor) -> Tensor:
    """The entries of each key head, repeated for each of its query heads: [B, G, ...] -> [B, H, ...]."""
    n_groups = q_BHQC.shape[1] // x_BGKC.shape[1]
    return x_BGKC[:, :, None].expand(-1, -1, n_groups, *x_BGKC.shape[2:]).flatten(1, 2)


def aligned(mask: Tensor | None, q_BHQC: Tensor, k_BHKC: Tensor) -> Tensor | None:
    """The mask for all heads, with its rows aligned in memory as the memory-efficient kernel needs it."""
    if mask is None:
        return None
    n_keys = k_BHKC.shape[2]
    wide = F.pad(mask.to(q_BHQC.dtype), (0, -n_keys % MASK_ALIGNMENT))[..., :n_keys]
    return wide.expand(*q_BHQC.shape[:3], n_keys)
