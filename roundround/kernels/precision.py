"""The precision of those parts of attention that half precision would spoil.

Tested by tests/softmax/test_softmax_contract.py.
"""

from __future__ import annotations

import torch
from torch import Tensor

from roundround.kernels.torch_internals import once_per_compilation


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """The precision of angles, norms, slopes and counts: float64 for float64, else float32."""
    return torch.promote_types(dtype, torch.float32)


def has_bfloat16(device: torch.device) -> bool:
    """Whether the device computes in bfloat16 itself; NVIDIA GPUs below compute capability 8.0 (T4, V100) emulate it.

    With several GPUs PyTorch answers for the current GPU.
    """
    return device.type != "cuda" or cuda_has_bfloat16()


@once_per_compilation  # a compiled graph cannot contain a call of the driver
def cuda_has_bfloat16() -> bool:
    return bool(torch.cuda.is_bf16_supported(including_emulation=False))


def at_least_float32(x: Tensor) -> Tensor:
    """The tensor in float32; a float64 tensor stays float64."""
    return x.to(wide_dtype(x.dtype))
