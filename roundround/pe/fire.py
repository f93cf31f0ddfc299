"""FIRE."""

from __future__ import annotations

import math
from typing import Any, ClassVar, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from roundround.kernels.bias import Bias, PiecewiseBias, relative_positions
from roundround.kernels.keys import AttentionShape, Keys
from roundround.kernels.precision import at_least_float32
from roundround.kernels.variants import checked_positive
from roundround.pe.base import PositionalEncoding


class InterpolatedBias(PiecewiseBias):
    """FIRE's bias, which a small network computes from log-scaled absolute distance / log-scaled query position."""

    def __init__(self, fire: FIRE) -> None:
        self.fire = fire
        self.n_hidden = fire.enter.out_features

    def block(self, keys: Keys, a: int, b: int) -> Tensor:
        share_BQK = self.u(relative_positions(keys, a, b)[:, 0]) / self.span(keys.q_pos_BQ[:, a:b, None])
        return self.fire.network(share_BQK).permute(0, 3, 1, 2)

    def u(self, distances: Tensor) -> Tensor:
        return torch.log1p(at_least_float32(self.fire.log_c).exp() * distances.abs())

    def span(self, q_pos: Tensor) -> Tensor:
        c, threshold = at_least_float32(self.fire.log_c).exp(), at_least_float32(self.fire.log_threshold).exp()
        return torch.log1p(c * torch.maximum(threshold, q_pos.to(threshold.dtype)))

    def pieces(self) -> tuple[Tensor, Tensor]:
        """The linear pieces of FIRE's network f, and the knots between them, as in `PiecewiseBias.pieces`.

        Unit m of the hidden layer is active on one side of -b_m / w_m: above it if w_m > 0, below it if w_m < 0.
        """
        w_M, b_M = at_least_float32(self.fire.enter.weight)[:, 0], at_least_float32(self.fire.enter.bias)
        out_HM, level_H = at_least_float32(self.fire.leave.weight), at_least_float32(self.fire.leave.bias)
        knots_M, order_M = torch.where(w_M == 0, torch.inf, -b_M / w_M).detach().sort()
        after_MP = torch.arange(len(w_M) + 1, device=w_M.device) > order_M.argsort()[:, None]
        acts_MP = torch.where(w_M[:, None] == 0, b_M[:, None] > 0, after_MP == (w_M[:, None] > 0)).to(w_M.dtype)
        with torch.autocast(w_M.device.type, enabled=False):
            slopes_HP, levels_HP = (out_HM * w_M) @ acts_MP, (out_HM * b_M) @ acts_MP + level_H[:, None]
        return torch.stack((slopes_HP, levels_HP), -1), knots_M


@final
class FIRE(PositionalEncoding):
    """Learns the bias as a function of the distance divided by the query's position, so that it need not extrapolate.

    b(i, j) = f(psi(|i - j|) / psi(max(L, i))), psi(x) = log(c x + 1), f a network of one hidden ReLU layer

    Li et al. 2023, arXiv:2310.04418, section 3.

    c and the threshold L are learned as logarithms, so both stay positive; they start at `init_c` and
    `init_threshold`. `hidden` is the width of the network. Up to position L the bias depends only on the distance;
    beyond L, the distances from 0 to the query's position are mapped to the range [0, 1] that training has seen.
    """

    per_layer: ClassVar[bool] = True

    def __init__(self, shape: AttentionShape, *, hidden: int, init_c: float, init_threshold: float) -> None:
        super().__init__(shape)
        if hidden < 1:
            raise ValueError(f"hidden={hidden} must be 1 or more")
        checked_positive(init_c=init_c, init_threshold=init_threshold)
        self.init_c = init_c
        self.init_threshold = init_threshold
        self.log_c = nn.Parameter(torch.empty(1))
        self.log_threshold = nn.Parameter(torch.empty(1))
        self.enter = nn.Linear(1, hidden)
        self.leave = nn.Linear(hidden, shape.n_heads)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.log_c, math.log(self.init_c))
        nn.init.constant_(self.log_threshold, math.log(self.init_threshold))

    def network(self, share_BQK: Tensor) -> Tensor:
        """The function f, [B, Q, K] -> [B, Q, K, H], in at least float32 even under autocast."""
        with torch.autocast(share_BQK.device.type, enabled=False):
            hidden = F.relu(
                F.linear(share_BQK[..., None], at_least_float32(self.enter.weight), at_least_float32(self.enter.bias))
            )
            return F.linear(hidden, at_least_float32(self.leave.weight), at_least_float32(self.leave.bias))

    def bias(self, q_BHTC: Tensor, k_BGTC: Tensor, prepared: Any) -> Bias:
        return InterpolatedBias(self)
