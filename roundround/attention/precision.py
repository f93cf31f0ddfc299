"""In which precision attention computes what half precision would spoil."""

from __future__ import annotations

import torch
from torch import Tensor


def at_least_float32(x: Tensor) -> Tensor:
    """The tensor in float32, or in float64 where it is float64."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
