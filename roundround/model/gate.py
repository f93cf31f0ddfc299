"""Modules between attention and its output matrix: gates that read the layer's input, and exclusive attention.

Shapes: B batch, T tokens, H heads, G key heads, C head channels, D model width.

Tested by tests/trained/test_patterns.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from roundround.kernels.keys import AttentionShape
from roundround.kernels.sdpa import repeated
from roundround.kernels.variants import FinalVariants

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"sigmoid": torch.sigmoid, "softplus": F.softplus}
MIN_SQUARED_NORM = 1e-8  # least squared norm of the value to which a row's output is made orthogonal


class OutputGate(FinalVariants, nn.Module):
    """Base of modules that change the output of attention before `o_proj`.

    A variant is one final class with `__init__(self, shape, *, tunables)` and `forward`; each layer has one instance.
    The variant's matrices (`nn.Linear`) are initialised as the decoder's are.
    """

    def __init__(self, shape: AttentionShape) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, out_BHTC: Tensor, x_BTD: Tensor, v_BGTC: Tensor) -> Tensor:
        """The changed output, [B, H, T, C]. `x_BTD` is the normed input of the layer, and `v_BGTC` are its values."""
        raise NotImplementedError


@final
class InputGate(OutputGate):
    """Multiplies the output of each head, or of each channel, by a number computed from the token's own input.

    y <- y f(W x)

    Qiu et al. 2025, arXiv:2505.06708 (f the sigmoid).

    `per` is `head` for one number a head, or `channel` for one number a channel of each head. `activation`, f, is
    `sigmoid` or `softplus`. With `bias`, a bias that starts at 0 is added to W x.
    """

    def __init__(self, shape: AttentionShape, *, per: str, activation: str, bias: bool) -> None:
        super().__init__(shape)
        for name, value, allowed in (("per", per, ("head", "channel")), ("activation", activation, ACTIVATIONS)):
            if value not in allowed:
                raise ValueError(f"{name}={value} must be {' or '.join(allowed)}")
        self.n_of_head = 1 if per == "head" else shape.head_dim
        self.activate = ACTIVATIONS[activation]
        self.proj = nn.Linear(shape.d_model, shape.n_heads * self.n_of_head, bias=bias)
        if bias:
            nn.init.zeros_(self.proj.bias)

    def forward(self, out_BHTC: Tensor, x_BTD: Tensor, v_BGTC: Tensor) -> Tensor:
        gate_BTG = self.activate(self.proj(x_BTD))
        return out_BHTC * gate_BTG.view(*x_BTD.shape[:2], -1, self.n_of_head).transpose(1, 2)


@final
class ExclusiveSelfAttention(OutputGate):
    """Removes the part of a head's output along the token's own value, which the residual stream already contains.

    y <- y - a (y . v) v / max(|v|^2, 1e-8)

    XSA, arXiv:2603.09078.

    a is 1. With `learned`, a is the tanh of a parameter that each head has and that starts at 0.
    """

    def __init__(self, shape: AttentionShape, *, learned: bool) -> None:
        super().__init__(shape)
        self.strength = nn.Parameter(torch.zeros(shape.n_heads)) if learned else None

    def forward(self, out_BHTC: Tensor, x_BTD: Tensor, v_BGTC: Tensor) -> Tensor:
        v_BHTC = repeated(v_BGTC, out_BHTC)
        along_BHT1 = (out_BHTC * v_BHTC).sum(-1, keepdim=True)
        own_BHTC = v_BHTC * (along_BHT1 / v_BHTC.square().sum(-1, keepdim=True).clamp_min(MIN_SQUARED_NORM))
        return out_BHTC - (own_BHTC if self.strength is None else self.strength.tanh()[:, None, None] * own_BHTC)
