"""Attention layers as they are shipped, of models that the decoder cannot hold whole: ours equal Hugging Face's own.

The weights are theirs, the text is longer than their windows and chunks. Shapes: B batch, T tokens, D model width,
H heads, C head channels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from helpers_patterns import decoder_of
from rounding import rounding
from torch import Tensor, nn
from transformers import (
    AfmoeConfig,
    Cohere2Config,
    DeepseekV4Config,
    Exaone4Config,
    FlintConfig,
    GptOssConfig,
    GraniteSWAConfig,
    InklingTextConfig,
    KimiLinearConfig,
    Lfm3Config,
    Llama4TextConfig,
    MiMoV2FlashConfig,
    MuseGlimmerTextConfig,
    OlmoHybridConfig,
    Qwen3NextConfig,
)
from transformers.models.afmoe.modeling_afmoe import AfmoeAttention, AfmoeRotaryEmbedding
from transformers.models.cohere2.modeling_cohere2 import Cohere2Attention, Cohere2RotaryEmbedding
from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4Attention, DeepseekV4RotaryEmbedding
from transformers.models.exaone4.modeling_exaone4 import Exaone4Attention, Exaone4RotaryEmbedding
from transformers.models.flint.modeling_flint import FlintAttention, FlintRotaryEmbedding
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssAttention, GptOssRotaryEmbedding
from transformers.models.granite_swa.modeling_granite_swa import GraniteSWAAttention, GraniteSWARotaryEmbedding
from transformers.models.inkling.modeling_inkling import InklingAttention
from transformers.models.inkling2.modeling_inkling2 import eager_attention_forward as attention_of_inkling
from transformers.models.kimi_linear.modeling_kimi_linear import KimiLinearAttention
from transformers.models.lfm3.modeling_lfm3 import Lfm3Attention, Lfm3RotaryEmbedding
from transformers.models.llama4.modeling_llama4 import Llama4TextAttention, Llama4TextRotaryEmbedding
from transformers.models.mimo_v2_flash.modeling_mimo_v2_flash import MiMoV2FlashAttention, MiMoV2FlashRotaryEmbedding
from transformers.models.muse_glimmer.modeling_muse_glimmer import (
    MuseGlimmerTextAttention,
    MuseGlimmerTextRotaryEmbedding,
)
from transformers.models.olmo_hybrid.modeling_olmo_hybrid import OlmoHybridAttention
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextAttention, Qwen3NextRotaryEmbedding

from roundround.kernels.keys import AttentionShape, Keys
from roundround.model.decoder import Decoder
from roundround.model.mix import Earlier
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


def attended(decoder: Decoder, layer: int, weights: dict[str, Tensor], x_BTD: Tensor = X) -> Tensor:
    """What a layer's attention makes of an input with these weights; a mix keeps its own."""
    attention, kind, own = decoder.layers[layer].self_attn, decoder.kinds[layer], decoder.encoding_of_layer[layer]
    attention.load_state_dict(weights)
    encoding = decoder.all_encodings[own]
    keys = decoder.keys(torch.zeros(2, T, dtype=torch.long), None, None, None, None)[own]
    with torch.no_grad():
        prepared = encoding.prepare(keys.q_pos_BQ, x_BTD.dtype)
        mixed = partial(decoder.layers[layer].mix, earlier=Earlier(keys, None))
        out: Tensor = attention(x_BTD, encoding, prepared, keys.within(kind.window, kind.chunk), None, mixed)
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


WINDOWS: dict[str, tuple[Any, Any, Any, dict[str, Any], list[str]]] = {  # config, attention, rotation, theirs, ours
    "afmoe": (AfmoeConfig, AfmoeAttention, AfmoeRotaryEmbedding, {"rms_norm_eps": 1e-6}, []),
    "cohere2": (Cohere2Config, Cohere2Attention, Cohere2RotaryEmbedding, {}, []),
    "exaone4": (Exaone4Config, Exaone4Attention, Exaone4RotaryEmbedding, {"rms_norm_eps": 1e-6}, []),
    "flint": (FlintConfig, FlintAttention, FlintRotaryEmbedding, {}, []),
    "granite_swa": (
        *(GraniteSWAConfig, GraniteSWAAttention, GraniteSWARotaryEmbedding),
        *({"attention_multiplier": 0.25}, ["pattern.local.logit_scale=0.25", "pattern.global.logit_scale=0.25"]),
    ),
    "mimo_v2": (
        *(MiMoV2FlashConfig, MiMoV2FlashAttention, MiMoV2FlashRotaryEmbedding),
        {"head_dim": 24, "v_head_dim": 24, "attention_value_scale": None},  # a third of them rotates
        ["pattern.local.head_dim=24", "pattern.global.head_dim=24", f"pattern.local.n_key_heads={2 * G}"],
    ),
    "muse": (
        *(MuseGlimmerTextConfig, MuseGlimmerTextAttention, MuseGlimmerTextRotaryEmbedding),
        {"rms_norm_eps": 1e-6},
        [f"pattern.{kind}.logit_scale={3.87 / math.sqrt(C)}" for kind in ("local", "global")],
    ),
}


def released(pattern: str) -> Any:
    """The config of transformers, of the sizes here, with the base of the frequencies that the pattern has."""
    config, _, _, theirs, _ = WINDOWS[pattern]
    bases = {"exaone4": 1_000_000.0, "muse": 500_000.0}
    rope = {"rope_type": "default", "rope_theta": bases.get(pattern, 10_000.0)}
    sizes = SIZES | {"num_hidden_layers": 8, "sliding_window": 5, "hidden_size": H * C} | theirs
    return config(**sizes, **({} if pattern == "mimo_v2" else {"rope_parameters": rope}))


@pytest.mark.parametrize("layer", [2, 5, 7])
@pytest.mark.parametrize("pattern", WINDOWS)
def test_windows_and_layers_without(pattern: str, layer: int) -> None:
    _, attention, rotation, _, words = WINDOWS[pattern]
    config = released(pattern)
    kind = config.layer_types[layer]
    theirs = random(attention(config, layer))
    names = {"q_norm": "qk_norm.q_norm", "k_norm": "qk_norm.k_norm", "sinks": "softmax.logit"}
    gate = {"gate_proj": "gate.proj"} if pattern in ("afmoe", "muse") else {}
    weights = weights_of(theirs, **names, **gate)
    if pattern == "cohere2" and kind == "sliding_attention":  # pairs of neighbours there, halves here
        halves = torch.cat([torch.arange(0, C, 2), torch.arange(1, C, 2)])
        for name, n in (("q_proj.weight", H), ("k_proj.weight", G)):
            weights[name] = weights[name].view(n, C, H * C)[:, halves].reshape(n * C, H * C)
    x_BTD = X.repeat(1, 1, 2)[..., : H * C]
    cos_sin = rotation(config)(x_BTD, positions(), *([kind] if pattern == "mimo_v2" else []))
    if pattern == "muse" and not config.layer_rope_theta[layer]:
        cos_sin = None
    seen = mask(lambda i, j: kind == "full_attention" or i - j < 5)
    with torch.no_grad():
        stock = theirs(x_BTD, cos_sin, seen)[0]
    ours = decoder_of(f"pattern={pattern}", "pattern.local.window=5", *words, n_layers=8, **OURS | {"d_model": H * C})
    assert (ours.kinds[layer].window is None) == (kind == "full_attention")
    torch.testing.assert_close(attended(ours, layer, weights, x_BTD), stock, rtol=0, atol=ATOL)


def test_olmo_hybrids_attention() -> None:
    config = OlmoHybridConfig(**SIZES | {"hidden_size": H * C}, rope_parameters=None)
    theirs = random(OlmoHybridAttention(config, 3))
    names = {"q_norm": "qk_norm.q_norm", "k_norm": "qk_norm.k_norm"}
    x_BTD = X.repeat(1, 1, 2)[..., : H * C]
    with torch.no_grad():
        stock = theirs(x_BTD, None, mask(lambda i, j: True))[0]
    ours = decoder_of("pattern=olmo_hybrid", **OURS | {"d_model": H * C})
    torch.testing.assert_close(attended(ours, 3, weights_of(theirs, **names), x_BTD), stock, rtol=0, atol=ATOL)


def test_kimi_linears_attention() -> None:
    sizes = {"kv_lora_rank": 20, "qk_rope_head_dim": 8, "qk_nope_head_dim": C, "v_head_dim": C, "q_lora_rank": None}
    config = KimiLinearConfig(**SIZES | {"num_key_value_heads": H}, **sizes)
    theirs = random(KimiLinearAttention(config, 4))
    with torch.no_grad():
        stock = theirs(X, mask(lambda i, j: True))[0]
    words = ["pattern=kimi_linear", "pattern.global.attention.rank=20", "pattern.global.attention.rotated=8"]
    found = attended(decoder_of(*words, n_layers=5, **OURS), 4, weights_of(theirs))
    torch.testing.assert_close(found, stock, rtol=0, atol=ATOL)


@pytest.mark.parametrize("layer", [0, 5], ids=["window", "global"])
def test_inkling_without_its_bias(layer: int) -> None:
    config = InklingTextConfig(
        **SIZES, swa_num_attention_heads=H, swa_num_key_value_heads=G, swa_head_dim=C, sliding_window_size=5,
        log_scaling_n_floor=4,
    )  # fmt: skip
    theirs = random(InklingAttention(config, layer))
    weights = weights_of(theirs, q_norm="qk_norm.q_norm", k_norm="qk_norm.k_norm")
    theirs.r_proj.weight.data.zero_()
    words = [f"pattern.{kind}.logit_scale={1 / C}" for kind in ("local", "global")]
    ours = decoder_of("pattern=inkling", "pattern.local.window=5", *words, "pattern.global.softmax.length=4", **OURS)
    filters = ours.layers[layer].mix.filters
    with torch.no_grad():
        stock = theirs(X, mask(lambda i, j: layer == 5 or i - j < 5))[0]
        for site, name in (("keys", "k_sconv.conv1d.weight"), ("values", "v_sconv.conv1d.weight")):
            filters[f"of_{site}"].copy_(weights.pop(name))
        filters.of_queries.zero_()
        for encoding in ours.all_encodings:
            encoding.table.zero_()
    weights = {name: value for name, value in weights.items() if not name.startswith("r")}
    torch.testing.assert_close(attended(ours, layer, weights), stock, rtol=0, atol=ATOL)


def test_deepseek_v4s_windows() -> None:
    """Keys are values there, and the last channels rotate, as pairs of neighbours."""
    n_channels, n_pairs = 32, 2
    sizes = SIZES | {"head_dim": n_channels, "num_key_value_heads": 1, "num_attention_heads": H}
    ranks = {"q_lora_rank": 12, "o_lora_rank": 20, "o_groups": 1, "partial_rotary_factor": 0.125}
    config = DeepseekV4Config(**sizes, **ranks, sliding_window=5, layer_types=["sliding_attention"] * 6)
    theirs = random(DeepseekV4Attention(config, 0))
    theirs.q_a_norm = nn.Identity()
    theirs.kv_norm.weight.data.fill_(1)  # a gain of values, which ours have not
    rotating = torch.arange(n_channels - 2 * n_pairs, n_channels)
    rest = torch.arange(n_channels - 2 * n_pairs)
    order = torch.cat([rotating[::2], rest[: rest.numel() // 2], rotating[1::2], rest[rest.numel() // 2 :]])
    q_HCD = (theirs.q_b_proj.weight @ theirs.q_a_proj.weight).view(H, n_channels, D)[:, order]
    o_DHC = (theirs.o_b_proj.weight @ theirs.o_a_proj.weight).view(D, H, n_channels)[..., order]
    weights = {"q_proj.weight": q_HCD.flatten(0, 1), "o_proj.weight": o_DHC.flatten(1), "softmax.logit": theirs.sinks}
    weights |= {f"{name}_proj.weight": theirs.kv_proj.weight[order] for name in "kv"}
    weights |= {f"qk_norm.{name}_norm.weight": torch.ones(n_channels) for name in "qk"}
    turns = {"main": DeepseekV4RotaryEmbedding(config)(X, positions(), "main")}
    with torch.no_grad():
        stock = theirs(X, turns, positions(), mask(lambda i, j: i - j < 5))[0]
    ours = decoder_of("pattern=deepseek_v4", "pattern.local.window=5", **OURS | {"head_dim": n_channels})
    torch.testing.assert_close(attended(ours, 0, weights), stock, rtol=0, atol=ATOL)


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
