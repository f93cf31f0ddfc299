"""Self-attention: projections, the encoding's rotation, the normaliser; it never asks which variant it has.

Shapes: B batch, T tokens, H heads, G key heads, C head channels, D model width.

Tested by tests/model/test_decoder.py.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from roundround.kernels.keys import AttentionShape, Keys
from roundround.model.cache import LayerCache
from roundround.model.gate import OutputGate
from roundround.model.qk_norm import QueryKeyNorm
from roundround.pe.base import PositionalEncoding
from roundround.softmax.base import AttentionSoftmax


class Attention(nn.Module):
    """Grouped-query attention (Ainslie et al. 2023, arXiv:2305.13245); Hugging Face's names.

    qk_norm: normalises queries and keys; gate: changes what attention gives before `o_proj`. None: there is none.
    bias: of the four projections.
    """

    def __init__(
        self,
        shape: AttentionShape,
        softmax: AttentionSoftmax,
        *,
        qk_norm: QueryKeyNorm | None = None,
        gate: OutputGate | None = None,
        bias: bool = False,
    ) -> None:
        super().__init__()
        self.shape = shape
        self.softmax = softmax
        self.q_proj = nn.Linear(shape.d_model, shape.n_heads * shape.head_dim, bias=bias)
        self.k_proj = nn.Linear(shape.d_model, shape.n_key_heads * shape.head_dim, bias=bias)
        self.v_proj = nn.Linear(shape.d_model, shape.n_key_heads * shape.head_dim, bias=bias)
        self.o_proj = nn.Linear(shape.n_heads * shape.head_dim, shape.d_model, bias=bias)
        self.qk_norm = qk_norm
        self.gate = gate

    def forward(
        self,
        x_BTD: Tensor,
        encoding: PositionalEncoding,
        prepared: Any,
        keys: Keys,
        cache: LayerCache | None = None,
    ) -> Tensor:
        """The layer's attention, [B, T, D]; `cache` has the keys before these tokens, and keeps theirs.

        With it `keys` are of all tokens so far, windows aside.
        """
        prepared = encoding.prepare_layer(x_BTD, prepared, keys)
        q_BHTC, k_BGTC, v_BGTC = (self.heads(proj(x_BTD)) for proj in (self.q_proj, self.k_proj, self.v_proj))
        norm = self.qk_norm
        if norm is not None and not norm.after_rotation:
            q_BHTC, k_BGTC = norm(q_BHTC, k_BGTC)
        q_BHTC, k_BGTC = encoding.rotate_queries(q_BHTC, prepared), encoding.rotate_keys(k_BGTC, prepared)
        if norm is not None:
            q_BHTC, k_BGTC = norm(q_BHTC, k_BGTC) if norm.after_rotation else (q_BHTC, k_BGTC)
            v_BGTC = norm.of_values(v_BGTC)
        k_BGKC, v_BGKC = k_BGTC, v_BGTC
        if cache is not None:
            k_BGKC, v_BGKC = cache.extend(k_BGTC, v_BGTC)
            keys = cache.narrowed(keys)
            prepared, cache.carried = encoding.continued(prepared, cache.carried)
        bias, rows = encoding.bias(q_BHTC, k_BGKC, prepared), self.softmax.row_parameters(x_BTD)
        out_BHTC = self.softmax(q_BHTC, k_BGKC, v_BGKC, scale=self.shape.scale, keys=keys, bias=bias, rows=rows)
        if self.gate is not None:
            out_BHTC = self.gate(out_BHTC, x_BTD, v_BGTC)
        out: Tensor = self.o_proj(out_BHTC.transpose(1, 2).flatten(2))
        return out

    def heads(self, x_BTD: Tensor) -> Tensor:
        """[B, T, heads * C] -> [B, heads, T, C]."""
        return x_BTD.view(*x_BTD.shape[:2], -1, self.shape.head_dim).transpose(1, 2)
