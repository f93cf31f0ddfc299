"""Multi-head latent attention: the keys and values of all heads are projections of one short vector for each token.

Shapes: B batch, T tokens, K tokens so far, H heads, C unrotated channels, R rotated channels, L rank of the latent.

Tested by tests/model/test_mix.py and tests/trained/test_stock.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from roundround.kernels.keys import AttentionShape, Keys
from roundround.model.block import AttentionLayer, LayerKind, Mixed, check_order, heads
from roundround.model.cache import LayerCache
from roundround.pe.base import PositionalEncoding


@final
class LatentAttention(AttentionLayer):
    """Attention whose cache holds one normed latent and one rotated key for each token, whatever the number of heads.

    c = norm(A x); q_h = [B_h x, R(B'_h x)], k_h = [U_h c, R(A' x)], v_h = V_h c; logits q . k / sqrt(C + R)

    DeepSeek-AI 2024, arXiv:2405.04434, section 2.1; parameters have the names of Hugging Face's DeepSeek V3.

    rank: the channels of the latent, L. query_rank: the channels of the latent from which the queries are made; None if
    they are made from x. rotated: the channels, R, to which the encoding is applied; all heads share this part of the
    key. The model's `head_dim` is C, the number of unrotated channels, and of channels of a value.
    """

    reads = frozenset(("pe", "softmax", "gate", "window", "chunk", "head_dim", "theta", "logit_scale"))

    def __init__(
        self,
        shape: AttentionShape,
        kind: LayerKind,
        bias: bool,
        *,
        rank: int,
        query_rank: int | None,
        rotated: int,
        norm_eps: float,
    ) -> None:
        super().__init__(replace(shape, n_key_heads=shape.n_heads, head_dim=shape.head_dim + rotated))
        if min(rank, rotated, rank if query_rank is None else query_rank) < 1:
            raise ValueError(f"rank={rank}, query_rank={query_rank} and rotated={rotated} must be at least 1")
        n_queries, n_values = shape.n_heads * self.shape.head_dim, shape.n_heads * shape.head_dim
        self.sizes = [shape.head_dim, rotated]
        if query_rank is None:
            self.q_proj = nn.Linear(shape.d_model, n_queries, bias=False)
        else:
            self.q_a_proj = nn.Linear(shape.d_model, query_rank, bias=bias)
            self.q_a_layernorm = nn.RMSNorm(query_rank, eps=norm_eps)
            self.q_b_proj = nn.Linear(query_rank, n_queries, bias=False)
        self.of_queries = ("q_proj",) if query_rank is None else ("q_a_proj", "q_a_layernorm", "q_b_proj")
        self.kv_a_proj_with_mqa = nn.Linear(shape.d_model, rank + rotated, bias=bias)
        self.kv_a_layernorm = nn.RMSNorm(rank, eps=norm_eps)
        self.kv_b_proj = nn.Linear(rank, 2 * n_values, bias=False)
        self.o_proj = nn.Linear(n_values, shape.d_model, bias=bias)
        self.softmax = kind.make_softmax(self.shape)
        self.gate = None if kind.make_gate is None else kind.make_gate(shape)
        self.widths = {"queries": n_queries, "latent": rank + rotated}
        self.encoding_shape = replace(shape, n_key_heads=1, head_dim=rotated)

    def check(self, encoding: PositionalEncoding) -> None:
        check_order(self.softmax, encoding)
        if type(encoding).rotate_values is not PositionalEncoding.rotate_values:
            raise ValueError(
                f"{type(encoding).__name__} rotates values, but latent attention keeps none; give another pe, or "
                "attention=grouped"
            )

    def forward(
        self,
        x_BTD: Tensor,
        encoding: PositionalEncoding,
        prepared: Any,
        keys: Keys,
        cache: LayerCache | None,
        mixed: Mixed,
    ) -> Tensor:
        prepared = self.prepared(x_BTD, encoding, prepared, keys, cache)
        n_unrotated, n_rotated = self.sizes
        q_BTW = x_BTD
        for name in self.of_queries:
            q_BTW = self.get_submodule(name)(q_BTW)
        q_BHTC, q_BHTR = torch.split(heads(mixed(q_BTW, "queries"), self.shape.head_dim), self.sizes, -1)
        q_BHTC = torch.cat([q_BHTC, encoding.rotate_queries(q_BHTR, prepared)], -1)
        latent_B1TW = mixed(self.kv_a_proj_with_mqa(x_BTD), "latent")[:, None]
        c_B1KL, k_B1KR = latent_B1TW.tensor_split([latent_B1TW.shape[-1] - n_rotated], -1)
        c_B1KL, k_B1KR = self.kv_a_layernorm(c_B1KL), encoding.rotate_keys(k_B1KR, prepared)
        if cache is not None:
            c_B1KL, k_B1KR = cache.extend(c_B1KL, k_B1KR)
            keys = replace(cache.narrowed(keys), k_norm=None)  # the cache has the norm of the latents
        k_BHKC, v_BHKC = heads(self.kv_b_proj(c_B1KL[:, 0]), 2 * n_unrotated).chunk(2, -1)
        k_BHKC = torch.cat([k_BHKC, k_B1KR.expand(-1, k_BHKC.shape[1], -1, -1)], -1)
        bias, rows = encoding.bias(q_BHTC, k_BHKC, prepared), self.softmax.row_parameters(x_BTD)
        padded = F.pad(v_BHKC, (0, n_rotated))  # kernels want values as wide as keys
        out_BHTC = self.softmax(q_BHTC, k_BHKC, padded, scale=self.shape.scale, keys=keys, bias=bias, rows=rows)
        out_BHTC = out_BHTC[..., :n_unrotated]
        if self.gate is not None:
            out_BHTC = self.gate(out_BHTC, x_BTD, v_BHKC[:, :, -x_BTD.shape[1] :])
        out: Tensor = self.o_proj(out_BHTC.transpose(1, 2).flatten(2))
        return out
