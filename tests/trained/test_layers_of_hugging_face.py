"""Attention layers as they are shipped, of models that the decoder cannot hold whole: ours equal Hugging Face's own.

The weights are theirs, the text is longer than their windows and chunks. Shapes: B batch, T tokens, D model width,
H heads, C head channels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers_patterns import decoder_of
from rounding import rounding
from torch import Tensor, nn
from transformers import GptOssConfig, Lfm3Config, Llama4TextConfig, Qwen3NextConfig
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssAttention, GptOssRotaryEmbedding
from transformers.models.inkling2.modeling_inkling2 import eager_attention_forward as attention_of_inkling
from transformers.models.lfm3.modeling_lfm3 import Lfm3Attention, Lfm3RotaryEmbedding
from transformers.models.llama4.modeling_llama4 import Llama4TextAttention, Llama4TextRotaryEmbedding
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextAttention, Qwen3NextRotaryEmbedding

from roundround.kernels.keys import AttentionShape, Keys
from roundround.model.decoder import Decoder
from roundround.softmax.input_sink import InputSink

D, H, G, C, T = 48, 4, 2, 16, 24
SIZES: dict[str, Any] = {
    "hidden_size": D, "num_attention_heads": H, "num_key_value_heads": G, "head_dim": C, "num_hidden_layers": 6,
    "attention_dropout": 0.0, "attn_implementation": "eager", "max_position_embeddings": 4096,
}  # fmt: skip
OURS: dict[str, Any] = {"d_model": D, "n_heads": H, "n_key_heads": G, "head_dim": C, "train_length": 4096}
X = torch.randn(2, T, D, generator=torch.Generator().manual_seed(1))
# sums over D and C channels and T keys, one after the other, of numbers of this size
ATOL = rounding(D + C + T + H * C, 10.0)


def random(module: nn.Module) -> nn.Module:
    """With weights of a few tenths, so that rows are neither even nor hard."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    return module.eval()


def mask(sees: Callable[[int, int], bool]) -> Tensor:
    """Added to logits, [1, 1, T, T]: key j is hidden from row i unless it is not later and `sees` says so."""
    hidden = [[not (j <= i and sees(i, j)) for j in range(T)] for i in range(T)]
    return torch.zeros(1, 1, T, T).masked_fill(torch.tensor(hidden), -torch.inf)


def attended(decoder: Decoder, layer: int, weights: dict[str, Tensor]) -> Tensor:
    """What a layer's attention makes of X with these weights."""
    attention, kind, own = decoder.layers[layer].self_attn, decoder.kinds[layer], decoder.encoding_of_layer[layer]
    attention.load_state_dict(weights)
    encoding = decoder.all_encodings[own]
    keys = decoder.keys(torch.zeros(2, T, dtype=torch.long), None, None, None, None)[own]
    with torch.no_grad():
        prepared = encoding.prepare(keys.q_pos_BQ, X.dtype)
        seen = keys.within(kind.window, kind.chunk)
        out: Tensor = attention(X, encoding, prepared, seen, None, lambda x_BTW, site: x_BTW)
    return out


def weights_of(theirs: nn.Module, **renamed: str) -> dict[str, Tensor]:
    """By our names: a name's beginning may be another here."""
    found = {}
    for name, value in theirs.state_dict().items():
        first, _, rest = name.partition(".")
        found[renamed.get(first, first) + (f".{rest}" if rest else "")] = value
    return found


def positions() -> Tensor:
    return torch.arange(T)[None]


@pytest.mark.parametrize("layer", [0, 1], ids=["window", "global"])
@pytest.mark.parametrize("scaled", [False, True], ids=["plain", "YaRN"])
def test_gpt_oss(layer: int, scaled: bool) -> None:
    yarn = {"rope_type": "yarn", "factor": 32.0, "truncate": False, "original_max_position_embeddings": 128}
    rope = {"rope_theta": 150_000.0} | (yarn if scaled else {"rope_type": "default"})
    config = GptOssConfig(**SIZES, sliding_window=5, rope_parameters=rope, attention_bias=True)
    assert config.layer_types[:2] == ["sliding_attention", "full_attention"]
    theirs = random(GptOssAttention(config, layer))
    words = ["pattern=gpt_oss", "pattern.local.window=5"]
    for kind in ("local", "global") if scaled else ():
        words += [f"pe@pattern.{kind}.pe=yarn", f"pattern.{kind}.pe.theta=150000.0", f"pattern.{kind}.pe.factor=32"]
        words += [f"pattern.{kind}.pe.truncate=false", f"pattern.{kind}.pe.original_length=128"]
    ours = decoder_of(*words, **OURS, attention_bias=True)
    cos_sin = GptOssRotaryEmbedding(config)(X, positions())
    with torch.no_grad():
        stock = theirs(X, cos_sin, mask(lambda i, j: layer == 1 or i - j < 5))[0]
    found = attended(ours, layer, weights_of(theirs, sinks="softmax.logit"))
    torch.testing.assert_close(found, stock, rtol=0, atol=ATOL)


def test_qwen3_next() -> None:
    rope = {"rope_type": "default", "rope_theta": 10_000_000.0, "partial_rotary_factor": 0.25}
    config = Qwen3NextConfig(**SIZES, rope_parameters=rope, rms_norm_eps=1e-6)
    theirs = random(Qwen3NextAttention(config, 3))
    weights = weights_of(theirs, q_norm="qk_norm.q_norm", k_norm="qk_norm.k_norm")
    both_HNCD = weights.pop("q_proj.weight").view(H, 2, C, D)  # of each head, its queries and its gate
    weights["q_proj.weight"], weights["gate.proj.weight"] = (both_HNCD[:, n].reshape(H * C, D) for n in (0, 1))
    for name in ("q", "k"):
        weights[f"qk_norm.{name}_norm.weight"] = weights[f"qk_norm.{name}_norm.weight"] + 1
    with torch.no_grad():
        stock = theirs(X, Qwen3NextRotaryEmbedding(config)(X, positions()), mask(lambda i, j: True))[0]
    found = attended(decoder_of("pattern=qwen3_next", **OURS), 3, weights)
    torch.testing.assert_close(found, stock, rtol=0, atol=ATOL)


@pytest.mark.parametrize("layer", [0, 3], ids=["chunks", "no position"])
def test_llama4(layer: int) -> None:
    config = Llama4TextConfig(
        **SIZES, rope_parameters={"rope_type": "default", "rope_theta": 500_000.0}, use_qk_norm=True, rms_norm_eps=1e-6,
        no_rope_layers=[1, 1, 1, 0, 1, 1], attn_temperature_tuning=True, floor_scale=4, attn_scale=0.1,
    )  # fmt: skip
    theirs = random(Llama4TextAttention(config, layer))
    weights = weights_of(theirs)
    if layer == 0:  # pairs of neighbours there, halves here
        halves = torch.cat([torch.arange(0, C, 2), torch.arange(1, C, 2)])
        for name, n in (("q_proj.weight", H), ("k_proj.weight", G)):
            weights[name] = weights[name].view(n, C, D)[:, halves].reshape(n * C, D)
    with torch.no_grad():
        turns = Llama4TextRotaryEmbedding(config)(X, positions())
        stock = theirs(X, turns, mask(lambda i, j: layer == 3 or i // 7 == j // 7))[0]
    words = ["pattern=llama4", "pattern.local.chunk=7", "pattern.global.softmax.length=4"]
    found = attended(decoder_of(*words, **OURS), layer, weights)
    torch.testing.assert_close(found, stock, rtol=0, atol=ATOL)


@pytest.mark.parametrize(("layer", "kind"), [(0, "full_attention"), (1, "sliding_attention")])
def test_lfm3(layer: int, kind: str) -> None:
    config = Lfm3Config(**SIZES | {"num_hidden_layers": 24}, sliding_window=5, norm_eps=1e-6)
    attentions = [place for place, name in enumerate(config.layer_types) if name != "conv"]
    assert config.layer_types[attentions[layer]] == kind
    theirs = random(Lfm3Attention(config, attentions[layer]))
    names = {"q_norm": "qk_norm.q_norm", "k_norm": "qk_norm.k_norm", "g_proj": "gate.proj"}
    with torch.no_grad():
        cos_sin = Lfm3RotaryEmbedding(config)(X, positions(), kind)
        stock = theirs(X, cos_sin, mask(lambda i, j: layer == 0 or i - j < 5))[0]
    found = attended(decoder_of("pattern=lfm3", "pattern.local.window=5", **OURS), layer, weights_of(theirs, **names))
    torch.testing.assert_close(found, stock, rtol=0, atol=ATOL)


def test_a_sink_that_reads_the_input_is_that_of_inkling() -> None:
    shape = AttentionShape(n_heads=H, n_key_heads=G, head_dim=C, d_model=D, layer=0, train_length=T)
    sink = InputSink(shape, init_logit=None)
    random(sink)
    generator = torch.Generator().manual_seed(2)
    q, k, v = (torch.randn(2, n, T, C, generator=generator) for n in (H, G, G))

    class Module(nn.Module):
        num_key_value_groups = H // G

    with torch.no_grad():
        sinks = (X @ sink.weight.T).transpose(1, 2).unsqueeze(-1)
        stock = attention_of_inkling(Module().eval(), q, k, v, mask(lambda i, j: True), scaling=0.3, sinks=sinks)[0]
        keys = Keys(q_pos_BQ=positions(), k_pos_BK=positions())
        found = sink(q, k, v, scale=0.3, keys=keys, bias=None, rows=sink.row_parameters(X))
    torch.testing.assert_close(found.transpose(1, 2), stock, rtol=0, atol=ATOL)
