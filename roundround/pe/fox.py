"""The forget gates of the Forgetting Transformer."""

from __future__ import annotations

from typing import Any, ClassVar, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from roundround.kernels.bias import LinearBias
from roundround.kernels.keys import AttentionShape, Keys
from roundround.kernels.precision import at_least_float32, wide_dtype
from roundround.pe.base import PositionalEncoding


@final
class FoX(PositionalEncoding):
    """Lets each head forget: every token multiplies the weights of all earlier tokens by a gate computed from itself.

    b(i, j) = c_i - c_j, c_t = sum_{l <= t} ln sigmoid(w_h . x_l + b_h)

    Lin et al. 2025, arXiv:2503.02130, section 3.

    x is the layer's normed input. w starts normal with standard deviation `init_std`, and b starts at 0, so that every
    head starts near ALiBi with slope ln 2. Padding forgets nothing.
    """

    per_layer: ClassVar[bool] = True

    def __init__(self, shape: AttentionShape, *, init_std: float) -> None:
        super().__init__(shape)
        if not 0 <= init_std < float("inf"):
            raise ValueError(f"init_std={init_std} must be a finite number, 0 or above")
        self.init_std = init_std
        self.gate_weight = nn.Parameter(torch.empty(shape.n_heads, shape.d_model))
        self.gate_bias = nn.Parameter(torch.empty(shape.n_heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.gate_weight, std=self.init_std)
        nn.init.zeros_(self.gate_bias)

    def prepare_layer(self, x_BTD: Tensor, prepared: Any, keys: Keys) -> Tensor:
        """-c, the tokens' coordinates for `LinearBias`: [B, H, T], in float64, which keeps the digits of long sums."""
        with torch.autocast(x_BTD.device.type, enabled=False):  # rounding errors of bfloat16 would add up
            operands = (at_least_float32(x) for x in (x_BTD, self.gate_weight, self.gate_bias))
            log_gate_BTH = F.logsigmoid(F.linear(*operands))
        if keys.valid_BK is not None:
            log_gate_BTH = log_gate_BTH.masked_fill(~keys.valid_BK[:, -x_BTD.shape[1] :, None], 0.0)
        wide = torch.float32 if x_BTD.device.type == "mps" else torch.float64  # Apple's GPUs have no float64
        return -log_gate_BTH.mT.to(wide).cumsum(-1)

    def continue_layer(self, x_BTD: Tensor, prepared: Any, keys: Keys, carried: Tensor | None) -> tuple[Tensor, Tensor]:
        new = self.prepare_layer(x_BTD, prepared, keys)
        whole = new if carried is None else torch.cat([carried, carried[..., -1:] + new], -1)
        return whole, whole

    def bias(self, q_BHTC: Tensor, k_BGTC: Tensor, prepared: Tensor) -> LinearBias:
        one = torch.ones(1, 1, 1, dtype=wide_dtype(q_BHTC.dtype), device=q_BHTC.device)
        return LinearBias(one, prepared[..., -q_BHTC.shape[2] :], prepared[..., -k_BGTC.shape[2] :])
