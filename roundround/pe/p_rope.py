"""p-RoPE."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from roundround.kernels.keys import AttentionShape
from roundround.pe.rotary import RotaryEncoding, ladder


def kept_pairs(p: float, head_dim: int) -> int:
    """Number of channel pairs in the fraction `p` of a head, rounded down as in the paper's listing.

    Raises ValueError unless p is in [0, 1].
    """
    if not 0 <= p <= 1:  # also refuses NaN
        raise ValueError(f"p={p} must lie between 0 (no pair rotates: NoPE) and 1 (every pair rotates: RoPE)")
    return int(p * head_dim // 2)


class FastestPairs(RotaryEncoding):
    """Base of encodings that rotate the share `p` of the pairs with RoPE's fastest frequencies; the others rest."""

    def __init__(self, shape: AttentionShape, *, p: float, theta: float | None) -> None:
        super().__init__(shape, theta=theta)
        self.p = p
        self.n_kept = kept_pairs(p, shape.head_dim)

    def frequencies(self, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> Tensor:
        head_dim = self.shape.head_dim
        kept = ladder(self.n_kept, head_dim, self.theta, dtype, device)
        return torch.cat([kept, kept.new_zeros(head_dim // 2 - self.n_kept)])


@final
class PRoPE(FastestPairs):
    """RoPE without its slowest frequencies, so that some channels carry meaning independently of the position.

    g_k = theta^(-2k / head_dim) for k < int(p * head_dim // 2), and 0 for the remaining pairs

    Barbero et al. 2024, arXiv:2410.06205, section 6.1 and appendix D.

    The kept frequencies are those of RoPE. p = 1 is RoPE, p = 0 is NoPE. Hugging Face names p-RoPE
    `rope_type: proportional`, with frequencies that are equal to the last bit.
    """
