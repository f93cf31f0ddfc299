"""Gated DeltaNet: a linear layer in the place of attention, as in Qwen3-Next and OLMo Hybrid.

Shapes: B batch, T tokens, H heads, G key heads, C key channels, V value channels, D model width.

Tested by tests/model/test_gated_deltanet.py.
"""

from __future__ import annotations

import math
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from roundround.kernels.gated_delta import gated_delta_rule
from roundround.kernels.keys import AttentionShape, Keys
from roundround.model.block import AttentionLayer, LayerKind, Mixed, heads
from roundround.model.cache import LayerCache
from roundround.model.mix import Earlier, convolved, short_filter
from roundround.pe.base import PositionalEncoding

STEPS = (0.001, 0.1)  # the range of the time steps at the beginning
RATES = (0.0, 16.0)  # the range of the decay rates at the beginning


@final
class GatedDeltaNet(AttentionLayer):
    """A state of C x V numbers for each head in the place of keys and values; order enters by decay and convolution.

    q, k, v = silu(conv(W x)), q and k of length 1, q / sqrt(C); beta = sigmoid(W x); g = -A softplus(W x + b);
    y = W' (norm(o) silu(W x)), with o of `gated_delta_rule`

    Yang et al. 2024, arXiv:2412.06464; Qwen3-Next.

    The model's `n_heads` counts the heads of values, `n_key_heads` those of queries and keys. width: the tokens that
    the convolutions read. value_dim: V; None for C, the model's `head_dim`.
    """

    reads = frozenset(("n_key_heads", "head_dim"))

    def __init__(
        self,
        shape: AttentionShape,
        kind: LayerKind,
        bias: bool,
        *,
        width: int,
        value_dim: int | None,
        norm_eps: float,
    ) -> None:
        super().__init__(shape)
        if bias:
            raise ValueError("attention_bias=true, but the projections of GatedDeltaNet have no biases")
        self.value_dim = shape.head_dim if value_dim is None else value_dim
        if width < 2 or self.value_dim < 1:
            raise ValueError(f"width={width} must be at least 2, and value_dim={value_dim} at least 1")
        n_keys, n_values = shape.n_key_heads * shape.head_dim, shape.n_heads * self.value_dim
        self.widths = {"queries": n_keys, "keys": n_keys, "values": n_values}
        self.q_proj, self.k_proj = (nn.Linear(shape.d_model, n_keys, bias=False) for _ in range(2))
        self.v_proj, self.g_proj = (nn.Linear(shape.d_model, n_values, bias=False) for _ in range(2))
        self.a_proj, self.b_proj = (nn.Linear(shape.d_model, shape.n_heads, bias=False) for _ in range(2))
        self.conv = short_filter(2 * n_keys + n_values, width)
        step_H = torch.empty(shape.n_heads).uniform_(*map(math.log, STEPS)).exp()
        self.dt_bias = nn.Parameter(step_H + torch.log(-torch.expm1(-step_H)))  # softplus gives the step
        self.A_log = nn.Parameter(torch.empty(shape.n_heads).uniform_(*RATES).log())
        self.o_norm = nn.RMSNorm(self.value_dim, eps=norm_eps)
        self.o_proj = nn.Linear(n_values, shape.d_model, bias=False)

    def forward(
        self,
        x_BTD: Tensor,
        encoding: PositionalEncoding,
        prepared: Any,
        keys: Keys,
        cache: LayerCache | None,
        mixed: Mixed,
    ) -> Tensor:
        n_new, shape = x_BTD.shape[1], self.shape
        valid_BT1 = None if keys.valid_BK is None else keys.valid_BK[:, -n_new:, None]
        x_BTD = x_BTD if valid_BT1 is None else x_BTD * valid_BT1
        projections = (self.q_proj, self.k_proj, self.v_proj)
        sites = zip(projections, self.widths, strict=True)
        qkv_BTW = torch.cat([mixed(proj(x_BTD), site) for proj, site in sites], -1)
        qkv_BTW = F.silu(convolved(qkv_BTW, self.conv.to(x_BTD.dtype), Earlier(keys, cache), "conv"))
        q_BTW, k_BTW, v_BTW = torch.split(qkv_BTW, list(self.widths.values()), -1)
        repeats, wide = shape.n_heads // shape.n_key_heads, torch.promote_types(x_BTD.dtype, torch.float32)
        q_BHTC, k_BHTC = (
            unit_length(heads(x, shape.head_dim).to(wide)).repeat_interleave(repeats, 1) for x in (q_BTW, k_BTW)
        )
        g_BTH = -self.A_log.to(wide).exp() * F.softplus(self.a_proj(x_BTD).to(wide) + self.dt_bias)
        g_BTH = g_BTH if valid_BT1 is None else g_BTH * valid_BT1
        beta_BTH = torch.sigmoid(self.b_proj(x_BTD)).to(wide)
        beta_BTH = beta_BTH if valid_BT1 is None else beta_BTH * valid_BT1
        out_BHTV, state = gated_delta_rule(
            q_BHTC * shape.head_dim**-0.5,
            k_BHTC,
            heads(v_BTW, self.value_dim),
            g_BTH.transpose(1, 2),
            beta_BTH.transpose(1, 2),
            None if cache is None else cache.kept.get("state"),
            keys.documents,
        )
        if cache is not None:
            cache.keep("state", state)
            cache.n_read += n_new
        gate_BTW = F.silu(self.g_proj(x_BTD).to(wide))
        out_BTW = self.o_norm(out_BHTV.to(wide).transpose(1, 2)).flatten(2) * gate_BTW
        out: Tensor = self.o_proj(out_BTW.to(x_BTD.dtype))
        return out

    def products(self, n_keys: int) -> int:
        return 3 * self.shape.n_heads * self.shape.head_dim * self.value_dim


def unit_length(x: Tensor) -> Tensor:
    return x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt()
