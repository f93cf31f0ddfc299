"""Selective RoPE.

Shapes: B batch, T tokens, G key heads, H heads, C head channels, P pairs, R rank, D model width, W = G P.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from roundround.kernels.earlier import earlier_tokens, filtered
from roundround.kernels.keys import AttentionShape, Keys
from roundround.kernels.precision import at_least_float32
from roundround.kernels.sdpa import repeated
from roundround.pe.base import PositionalEncoding
from roundround.pe.rotary import apply_rotation, check_head_dim, checked_theta, ladder

WIDTH = 4  # tokens that the convolution reads


@final
class SelectiveRoPE(PositionalEncoding):
    """Rotates pairs by angles that the tokens themselves choose: each token adds its own angle to those before it.

    angle_t = theta^(-2k / C) sum_{l <= t} phi_l, phi = conv(W_2 W_1 x), x the layer's input with heads of norm 1

    Movahedi et al. 2025, arXiv:2511.17388, with the settings of the authors' language models
    (timurcarstensen/selective-rope): no gate, no bias, fixed frequencies.

    `rank`: of W_2 W_1. `theta`: the base of the frequencies. conv is causal, for each channel, over 4 tokens; it sees
    no padding and no other document. The authors have as many key heads as heads; with fewer, the angles belong to key
    heads. A cache keeps the angles of the last token and the features of the last three.
    """

    per_layer: ClassVar[bool] = True

    def __init__(self, shape: AttentionShape, *, rank: int, theta: float) -> None:
        super().__init__(shape)
        check_head_dim(shape)
        if rank < 1:
            raise ValueError(f"rank={rank} must be at least 1")
        if shape.d_model % shape.n_heads:
            raise ValueError(f"d_model={shape.d_model} must be a multiple of n_heads={shape.n_heads}")
        self.theta = checked_theta(theta, shape)
        n_angles = shape.n_key_heads * shape.head_dim // 2
        self.down = nn.Parameter(torch.empty(rank, shape.d_model))
        self.up = nn.Parameter(torch.empty(n_angles, rank))
        self.filter = nn.Parameter(torch.empty(n_angles, 1, WIDTH))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for parameter in (self.down, self.up, self.filter):
            nn.init.kaiming_uniform_(parameter, a=math.sqrt(5))  # as nn.Linear and nn.Conv1d do

    def prepare_layer(self, x_BTD: Tensor, prepared: Any, keys: Keys) -> tuple[Tensor, Tensor]:
        return self.continue_layer(x_BTD, prepared, keys, None)[0]

    def continue_layer(
        self, x_BTD: Tensor, prepared: Any, keys: Keys, carried: Tensor | None
    ) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """Cosines and signed sines, [B, G, T, C]. Carried: features of the last three tokens, then the last angles."""
        with torch.autocast(x_BTD.device.type, enabled=False):  # rounding errors of bfloat16 would add up
            x_BTD, down, up, weight = (at_least_float32(x) for x in (x_BTD, self.down, self.up, self.filter))
            heads_BTHC = F.normalize(x_BTD.view(*x_BTD.shape[:2], self.shape.n_heads, -1), dim=-1)
            phi_BTW = F.linear(F.linear(heads_BTHC.flatten(2), down), up)
            past, sum_B1W = (None, 0.0) if carried is None else (carried[:, :-1], carried[:, -1:])
            earlier, last = earlier_tokens(phi_BTW, WIDTH - 1, keys, past)
            phi_BTW = filtered(phi_BTW, earlier, weight)
        if keys.valid_BK is not None:
            phi_BTW = phi_BTW * keys.valid_BK[:, -x_BTD.shape[1] :, None]
        sum_BTW = sum_B1W + phi_BTW.cumsum(1)
        sum_BGTP = sum_BTW.view(*x_BTD.shape[:2], self.shape.n_key_heads, -1).transpose(1, 2)
        angles = sum_BGTP * ladder(sum_BGTP.shape[-1], self.shape.head_dim, self.theta, sum_BTW.dtype, sum_BTW.device)
        cos, sin = angles.cos(), angles.sin()
        return (torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)), torch.cat([last, sum_BTW[:, -1:]], 1)

    def rotate_queries(self, q_BHTC: Tensor, prepared: tuple[Tensor, Tensor]) -> Tensor:
        cos, sin = (repeated(x, q_BHTC) for x in prepared)
        return apply_rotation(q_BHTC, cos, sin)

    def rotate_keys(self, k_BGTC: Tensor, prepared: tuple[Tensor, Tensor]) -> Tensor:
        return apply_rotation(k_BGTC, *prepared)
