"""Self-attention: projections, the encoding's rotation, the normaliser; it never asks which variant it has.

Shapes: B batch, T tokens, H heads, G key heads, C head channels, D model width.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from roundround.attention.keys import AttentionShape, Keys
from roundround.pe.base import PositionalEncoding
from roundround.softmax.base import AttentionSoftmax


class Attention(nn.Module):
    """Grouped-query attention without biases (Ainslie et al. 2023, arXiv:2305.13245); Hugging Face's names."""

    def __init__(self, shape: AttentionShape, softmax: AttentionSoftmax) -> None:
        super().__init__()
        self.shape = shape
        self.softmax = softmax
        self.scale = shape.head_dim**-0.5
        self.q_proj = nn.Linear(shape.d_model, shape.n_heads * shape.head_dim, bias=False)
        self.k_proj = nn.Linear(shape.d_model, shape.n_key_heads * shape.head_dim, bias=False)
        self.v_proj = nn.Linear(shape.d_model, shape.n_key_heads * shape.head_dim, bias=False)
        self.o_proj = nn.Linear(shape.n_heads * shape.head_dim, shape.d_model, bias=False)

    def forward(self, x_BTD: Tensor, encoding: PositionalEncoding, prepared: Any, keys: Keys) -> Tensor:
        prepared = encoding.prepare_layer(x_BTD, prepared, keys)
        q_BHTC = encoding.rotate_queries(self.heads(self.q_proj(x_BTD)), prepared)
        k_BGTC = encoding.rotate_keys(self.heads(self.k_proj(x_BTD)), prepared)
        v_BGTC = self.heads(self.v_proj(x_BTD))
        bias, rows = encoding.bias(q_BHTC, k_BGTC, prepared), self.softmax.row_parameters(x_BTD)
        out_BHTC = self.softmax(q_BHTC, k_BGTC, v_BGTC, scale=self.scale, keys=keys, bias=bias, rows=rows)
        out: Tensor = self.o_proj(out_BHTC.transpose(1, 2).flatten(2))
        return out

    def heads(self, x_BTD: Tensor) -> Tensor:
        """[B, T, heads * C] -> [B, heads, T, C]."""
        return x_BTD.view(*x_BTD.shape[:2], -1, self.shape.head_dim).transpose(1, 2)
