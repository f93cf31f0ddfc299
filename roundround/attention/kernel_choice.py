"""Which of PyTorch's attention kernels serves a call: asked here and nowhere else, and of PyTorch's own predicates.

What they rest on (torch 2.6 to 2.13, aten/src/ATen/native/transformers/cuda/sdp_utils.cpp): the flash kernel takes half
precision on compute capability 8.0 and above, up to 256 channels in eights, fewer key heads than query heads, and no
mask. The memory-efficient kernel takes float32 too, bfloat16 from 8.0 on, any number of channels in eights and a mask,
but not fewer key heads. Whatever neither takes falls to the math kernel, which makes the matrix of logits.

Shapes: B batch, Q queries, K keys, H heads, G key heads, C head channels.
"""

from __future__ import annotations

from enum import Enum, auto

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.backends import cuda

from roundround.attention.precision import has_bfloat16, wide_dtype

CHANNELS_IN_EIGHTS = 8
SDPA_ALONE = ("cuda", "mps", "xpu")  # cuda: ROCm's name for itself; what their kernels return could not be checked


class Kernel(Enum):
    """A kernel of PyTorch's. All but SDPA return log-sum-exps, from which windows, padding and biases are made."""

    CPU = auto()
    FLASH = auto()
    EFFICIENT = auto()
    SDPA = auto()  # whatever `F.scaled_dot_product_attention` calls on this device


def kernel_for(q_BHQC: Tensor, *, masked: bool = False, differentiable: bool = False) -> Kernel | None:
    """The kernel for softmax attention of these queries; None where only blocks of rows do it in linear memory.

    It depends on device, precision, channels (of queries as `fitted` makes them) and on whether they need a gradient.
    masked: whether a tensor is added to the logits.
    differentiable: say so where autograd is off but a gradient will be asked for, as inside an autograd function.
    """
    device = q_BHQC.device.type
    if device == "cpu":
        return Kernel.CPU
    if device != "cuda" or torch.version.hip is not None:
        served = device in SDPA_ALONE and q_BHQC.dtype != torch.float64
        return Kernel.SDPA if served else None
    (row,) = fitted(q_BHQC[:1, :1, :1])
    if not differentiable:
        return kernel_on_cuda(row, masked)
    with torch.enable_grad():
        return kernel_on_cuda(row.detach().requires_grad_(), masked)


def kernel_on_cuda(row_11QC: Tensor, masked: bool) -> Kernel | None:
    """`kernel_for` on NVIDIA's GPUs, of one query that stands for all."""
    asked = cuda.SDPAParams(row_11QC, row_11QC, row_11QC, None, 0.0, False, False)
    if not masked and cuda.can_use_flash_attention(asked):
        return Kernel.FLASH
    return Kernel.EFFICIENT if cuda.can_use_efficient_attention(asked) else None


def varlen_kernel_for(q_BHQC: Tensor) -> Kernel | None:
    """The kernel for rows of unequal length, laid one behind another; None where there is none.

    NVIDIA's GPUs alone have them, in the flash kernel and the memory-efficient one: those of `kernel_for`.
    """
    kernel = kernel_for(q_BHQC) if q_BHQC.device.type == "cuda" else None
    return kernel if kernel in (Kernel.FLASH, Kernel.EFFICIENT) else None


def takes_groups(q_BHQC: Tensor, k_BGKC: Tensor) -> bool:
    """Whether `F.scaled_dot_product_attention` takes fewer key heads than query heads without a matrix of logits."""
    if q_BHQC.device.type == "cpu":
        return True
    kernel = kernel_for(q_BHQC)
    if kernel is not Kernel.EFFICIENT:
        return kernel is Kernel.FLASH
    q_row, k_row = q_BHQC[:, :, :1], k_BGKC[:, :, :1]
    return bool(cuda.can_use_efficient_attention(cuda.SDPAParams(q_row, k_row, k_row, None, 0.0, False, True)))


def fitted(*tensors: Tensor) -> list[Tensor]:
    """Queries, keys and values as the kernels ask for them: as many channels each, in a precision that they take.

    Channels that are added are zero. On CUDA there are eights of them, and bfloat16 is float32 where the device only
    emulates it (compute capability below 8.0, such as T4 and V100).
    """
    n, dtype = max(x.shape[-1] for x in tensors), tensors[0].dtype
    if tensors[0].device.type == "cuda":
        n += -n % CHANNELS_IN_EIGHTS
        if dtype == torch.bfloat16 and not has_bfloat16(tensors[0].device):
            dtype = wide_dtype(dtype)
    return [(x if x.shape[-1] == n else F.pad(x, (0, n - x.shape[-1]))).to(dtype) for x in tensors]
