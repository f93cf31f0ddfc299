"""NAPE: some heads without position, the other heads with ALiBi."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor

from roundround.kernels.bias import LinearBias
from roundround.kernels.heads import n_last_heads
from roundround.kernels.keys import AttentionShape
from roundround.kernels.precision import wide_dtype
from roundround.pe.base import PositionalEncoding


@final
class NAPE(PositionalEncoding):
    """Leaves the last half of the heads without position and gives the first half ALiBi, with slopes 1, 1/2, 1/3, ...

    b(i, j) = -slope_h (i - j), slope_h = 1 / h for the first heads, h = 1 .. A, and 0 for the others

    Vasylenko et al. 2025, arXiv:2506.16640; order, sign and scale are as in the authors' code,
    `get_nape_slopes` in deep-spin/asentmax, synthetic/src/models/architectures/sparse_gemma.py.

    `nope_heads`: the share of the heads without position, rounded up to whole heads: 1 is NoPE; at 0 every head has a
    slope. As in the authors' code, h counts within the layer, so more heads add flatter slopes to the same steep ones.
    The bias is added to logits that are scaled already; like the bias of ALiBi, it is meant for causal attention.
    """

    def __init__(self, shape: AttentionShape, *, nope_heads: float) -> None:
        super().__init__(shape)
        if not 0 <= nope_heads <= 1:
            raise ValueError(f"nope_heads={nope_heads} must be a share of the heads, from 0 to 1")
        self.n_nope_heads = n_last_heads(shape.n_heads, nope_heads)

    def slopes(self, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> Tensor:
        """Slope of each head, logits per token: [H]. Computed at each use: bfloat16 would round stored slopes."""
        n_biased = self.shape.n_heads - self.n_nope_heads
        biased = 1 / torch.arange(1, n_biased + 1, dtype=dtype, device=device)
        return torch.cat([biased, biased.new_zeros(self.n_nope_heads)])

    def bias(self, q_BHTC: Tensor, k_BGTC: Tensor, prepared: Any) -> LinearBias:
        slopes_H = self.slopes(wide_dtype(q_BHTC.dtype), q_BHTC.device)
        return LinearBias(slopes_H[:, None, None])

    def facts(self) -> dict[str, int]:
        return {"heads_without_position": self.n_nope_heads, "heads": self.shape.n_heads}
