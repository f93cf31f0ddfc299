"""Differential attention: DiffLlama's for the first form, a loop for the second, around any normaliser.

Shapes: B batch, T tokens, H heads, C head channels, D model width.
"""

from __future__ import annotations

import pytest
import torch
from conftest import option
from helpers_attention import keys_of
from helpers_pe import noise
from torch import Tensor
from transformers import DiffLlamaConfig
from transformers.models.diffllama.modeling_diffllama import DiffLlamaAttention, DiffLlamaRotaryEmbedding

from roundround.config.build import maker
from roundround.config.options import load_option
from roundround.hf.patching.patch import replace_parts
from roundround.kernels.keys import AttentionShape
from roundround.model.block import LayerKind
from roundround.model.differential_attention import DifferentialAttention, DifferentialAttentionV1
from roundround.pe.rope import RoPE
from roundround.softmax.base import AttentionSoftmax
from roundround.trained.models import build_decoder
from roundround.trained.patterns import kinds_of

D_MODEL, N_TOKENS = 32, 11


def shape(n_key_heads: int = 2, layer: int = 3) -> AttentionShape:
    sizes = {"n_heads": 4, "n_key_heads": n_key_heads, "head_dim": 8, "d_model": D_MODEL}
    return AttentionShape(**sizes, layer=layer, train_length=16)


def kind(softmax: str = "softmax") -> LayerKind:
    return kinds_of(1, pattern=None, pe=option("pe", "rope"), softmax=option("softmax", softmax))[0]


def output(layer: DifferentialAttention | DifferentialAttentionV1, x_BTD: Tensor) -> Tensor:
    encoding, keys = RoPE(layer.encoding_shape, theta=10_000.0), keys_of(N_TOKENS, N_TOKENS)
    prepared = encoding.prepare(keys.k_pos_BK, x_BTD.dtype)
    return layer(x_BTD, encoding, prepared, keys, None, lambda x, site: x)


def test_the_first_form_is_that_of_diffllama() -> None:
    torch.manual_seed(0)
    config = DiffLlamaConfig(
        hidden_size=D_MODEL, num_attention_heads=4, num_key_value_heads=2, head_dim=8, rms_norm_eps=1e-5
    )
    config._attn_implementation = "eager"
    theirs = DiffLlamaAttention(config, layer_idx=3).double().eval()
    ours = DifferentialAttentionV1(shape(), kind(), norm_eps=1e-5, std=0.1).double()
    weights = {name: value for name, value in theirs.state_dict().items() if "proj" in name}
    names = ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2")
    weights["of_pairs"] = torch.stack([getattr(theirs, name).detach() for name in names])
    ours.load_state_dict(weights)
    x_BTD, pos_1T = noise(2, N_TOKENS, D_MODEL), torch.arange(N_TOKENS)[None]
    hidden = torch.full((N_TOKENS, N_TOKENS), -torch.inf, dtype=torch.float64).triu(1)[None, None]
    expected = theirs(x_BTD, DiffLlamaRotaryEmbedding(config).double()(x_BTD, pos_1T), hidden)[0]
    torch.testing.assert_close(output(ours, x_BTD), expected, rtol=0, atol=1e-6)  # their angles are float32


@pytest.mark.parametrize("softmax", ["softmax", "entmax15", "sink"])
def test_the_second_form_is_a_loop_over_heads(softmax: str) -> None:
    torch.manual_seed(0)
    layer = DifferentialAttention(shape(), kind(softmax)).double()
    x_BTD, keys = noise(1, N_TOKENS, D_MODEL, seed=2), keys_of(N_TOKENS, N_TOKENS)
    encoding = RoPE(layer.encoding_shape, theta=10_000.0)
    prepared = encoding.prepare(keys.k_pos_BK, torch.float64)
    q, k, v = (
        proj(x_BTD).unflatten(-1, (-1, 8)).transpose(1, 2) for proj in (layer.q_proj, layer.k_proj, layer.v_proj)
    )
    assert (q.shape[1], k.shape[1]) == (8, 2)
    q, k = encoding.rotate_queries(q, prepared), encoding.rotate_keys(k, prepared)
    logits = 8**-0.5 * q @ k.repeat_interleave(4, 1).mT
    visible = torch.ones(N_TOKENS, N_TOKENS).tril().bool()[None, None]
    of_rows = {"n_visible": visible.sum(-1, keepdim=True)}
    alpha = layer.softmax.weights(logits, visible, of_rows)
    heads = []
    for h in range(4):
        share = torch.sigmoid(x_BTD[0] @ layer.share.weight[h])[:, None]
        heads.append((alpha[0, 2 * h] - share * alpha[0, 2 * h + 1]) @ v[0, h // 2])
    expected = layer.o_proj(torch.cat(heads, -1))[None]
    torch.testing.assert_close(output(layer, x_BTD), expected, rtol=1e-12, atol=1e-12)


def test_a_share_of_zero_leaves_the_first_map_alone() -> None:
    layer = DifferentialAttention(shape(), kind()).double()
    x_BTD = noise(1, N_TOKENS, D_MODEL).abs()
    with torch.no_grad():
        layer.share.weight.fill_(-1e6)
    before = output(layer, x_BTD)
    with torch.no_grad():
        layer.q_proj.weight.unflatten(0, (4, 2, 8))[:, 1].zero_()
    torch.testing.assert_close(output(layer, x_BTD), before)


def test_every_query_head_has_its_own_numbers_of_the_normaliser() -> None:
    softmax = DifferentialAttention(shape(), kind("ssmax")).softmax
    assert isinstance(softmax, AttentionSoftmax)
    assert softmax.shape.n_heads == 8


def test_a_replaced_normaliser_has_the_sizes_of_the_query_heads() -> None:
    parts = {part: option(part, name) for part, name in (("pe", "rope"), ("softmax", "softmax"), ("attention", "diff"))}
    sizes = {"d_model": D_MODEL, "n_layers": 1, "n_heads": 4, "n_key_heads": 2, "d_mlp": 8, "train_length": 16}
    decoder, tokens_BT = (
        build_decoder(load_option("model", "tiny", **sizes), n_vocab=20, **parts),
        torch.arange(12)[None],
    )
    make = maker(option("softmax", "ssmax"), AttentionSoftmax)
    before = decoder(tokens_BT)
    with replace_parts(decoder, make, None):
        assert [softmax.shape.n_heads for softmax in decoder.normalisers] == [8]
        assert not torch.equal(decoder(tokens_BT), before)
    assert torch.equal(decoder(tokens_BT), before)


def test_an_odd_number_of_key_heads_is_refused_where_they_form_pairs() -> None:
    with pytest.raises(ValueError, match="n_key_heads=1 must be even"):
        DifferentialAttentionV1(shape(n_key_heads=1), kind(), norm_eps=1e-5, std=0.1)
