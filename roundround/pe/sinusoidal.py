"""Sinusoidal positions, added to the token embeddings."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from roundround.kernels.keys import AttentionShape
from roundround.kernels.precision import wide_dtype
from roundround.pe.base import PositionalEncoding
from roundround.pe.rotary import checked_theta, ladder


@final
class Sinusoidal(PositionalEncoding):
    """Adds to each token a fixed vector of sines and cosines of its position, at geometrically spaced frequencies.

    x[2k] += sin(position * g_k), x[2k + 1] += cos(position * g_k), g_k = theta^(-2k / d_model)

    Vaswani et al. 2017, arXiv:1706.03762, section 3.5.

    Sines and cosines alternate, as in the paper's formula; the authors' code has all sines first, which is the same up
    to a permutation of channels. The paper also multiplies the token embeddings by sqrt(d_model); an encoding does not.
    """

    def __init__(self, shape: AttentionShape, *, theta: float) -> None:
        super().__init__(shape)
        if shape.d_model % 2:
            raise ValueError(f"d_model={shape.d_model} is odd; sines and cosines come in pairs, so it must be even")
        self.theta = checked_theta(theta, shape)

    def embed(self, x_BTD: Tensor, pos_BT: Tensor) -> Tensor:
        d_model = self.shape.d_model
        wide = wide_dtype(x_BTD.dtype)
        angles_BTP = pos_BT[..., None].to(wide) * ladder(d_model // 2, d_model, self.theta, wide, pos_BT.device)
        waves_BTD = torch.stack([angles_BTP.sin(), angles_BTP.cos()], dim=-1).flatten(-2)
        return x_BTD + waves_BTD.to(x_BTD.dtype)
