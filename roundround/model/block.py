"""One layer of the decoder: attention, then an MLP, each with an RMSNorm and a residual; shapes as there.

Tested by tests/model/test_decoder.py.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from roundround.kernels.keys import Keys
from roundround.model.attention import Attention
from roundround.model.cache import LayerCache
from roundround.pe.base import PositionalEncoding


class MLP(nn.Module):
    """down(activation(gate x) * up x): SwiGLU, or GeGLU in Gemma's flavour (Shazeer 2020, arXiv:2002.05202)."""

    def __init__(self, d_model: int, d_mlp: int, *, geglu: bool, bias: bool = False) -> None:
        super().__init__()
        self.geglu = geglu
        self.gate_proj = nn.Linear(d_model, d_mlp, bias=bias)
        self.up_proj = nn.Linear(d_model, d_mlp, bias=bias)
        self.down_proj = nn.Linear(d_mlp, d_model, bias=bias)

    def forward(self, x_BTD: Tensor) -> Tensor:
        gate = self.gate_proj(x_BTD)
        active = F.gelu(gate, approximate="tanh") if self.geglu else F.silu(gate)
        out: Tensor = self.down_proj(active * self.up_proj(x_BTD))
        return out


class SquaredReLU(nn.Module):
    """down(max(0, up x)^2) (So et al. 2021, arXiv:2109.08668)."""

    def __init__(self, d_model: int, d_mlp: int, *, bias: bool) -> None:
        super().__init__()
        self.up_proj = nn.Linear(d_model, d_mlp, bias=bias)
        self.down_proj = nn.Linear(d_mlp, d_model, bias=bias)

    def forward(self, x_BTD: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.relu(self.up_proj(x_BTD)).square())
        return out


def mlp_of(kind: str, d_model: int, d_mlp: int, *, geglu: bool, bias: bool) -> nn.Module | None:
    """`gated` or `relu_squared`; None for `d_mlp` 0. Raises ValueError for another kind, or for GeGLU without gates."""
    if kind not in ("gated", "relu_squared"):
        raise ValueError(f"mlp={kind} must be gated or relu_squared")
    if kind == "relu_squared" and geglu:
        raise ValueError("geglu=true is of mlp=gated; give geglu=false")
    if not d_mlp:
        return None
    return MLP(d_model, d_mlp, geglu=geglu, bias=bias) if kind == "gated" else SquaredReLU(d_model, d_mlp, bias=bias)


NORMS = ("before", "both", "after")


class Block(nn.Module):
    """Transformer layer with residuals (Touvron et al. 2023, arXiv:2302.13971); names as in Hugging Face's models.

    norms: where the RMSNorms of attention and MLP stand: `before` each, as in Llama; `both` before and after each, as
    in Gemma 2 to 4; `after` each, as in OLMo 2 and 3. Without an MLP the layer is the attention alone, with its norms.
    """

    def __init__(self, attention: Attention, mlp: nn.Module | None, *, norm_eps: float, norms: str) -> None:
        super().__init__()
        if norms not in NORMS:
            raise ValueError(f"norms={norms} must be one of {', '.join(NORMS)}")

        def norm(*, there: bool = True) -> nn.RMSNorm | None:
            return nn.RMSNorm(attention.shape.d_model, eps=norm_eps) if there else None

        has_mlp, after = mlp is not None, norms != "before"
        self.input_layernorm = norm(there=norms != "after")
        self.self_attn = attention
        # Llama's second norm is before the MLP; in the others the one of this name is after attention
        self.post_attention_layernorm = norm(there=after or has_mlp)
        self.pre_feedforward_layernorm = norm(there=has_mlp and norms == "both")
        self.mlp = mlp
        self.post_feedforward_layernorm = norm(there=has_mlp and after)
        self.norms_after = after

    def forward(
        self,
        x_BTD: Tensor,
        encoding: PositionalEncoding,
        prepared: Any,
        keys: Keys,
        cache: LayerCache | None = None,
    ) -> Tensor:
        found_BTD = self.self_attn(normed(self.input_layernorm, x_BTD), encoding, prepared, keys, cache)
        x_BTD = x_BTD + (normed(self.post_attention_layernorm, found_BTD) if self.norms_after else found_BTD)
        if self.mlp is None:
            return x_BTD
        before = self.pre_feedforward_layernorm if self.norms_after else self.post_attention_layernorm
        return x_BTD + normed(self.post_feedforward_layernorm, self.mlp(normed(before, x_BTD)))


def normed(norm: nn.RMSNorm | None, x_BTD: Tensor) -> Tensor:
    return x_BTD if norm is None else norm(x_BTD)
