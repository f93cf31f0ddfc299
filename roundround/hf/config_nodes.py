"""A Hugging Face configuration as nodes of a run's config: the decoder that computes what its model does.

Llama, Gemma (the first), Qwen 3, SmolLM3, OLMo 3, Gemma 3 and Gemma 4's text models. Gemma's is Llama with GeGLU,
embeddings times sqrt(D), and norms whose weights are written one less; the others have patterns of layers.

Tested by tests/trained/test_pattern_models.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from transformers import (
    Gemma3TextConfig,
    Gemma4TextConfig,
    GemmaConfig,
    LlamaConfig,
    Olmo3Config,
    PreTrainedConfig,
    Qwen3Config,
    SmolLM3Config,
)

from roundround.model.decoder import Decoder
from roundround.model.qk_norm import RMSQueryKeyNorm
from roundround.pe.linear import LinearRoPE
from roundround.pe.llama3 import Llama3RoPE
from roundround.pe.longrope import LongRoPE
from roundround.pe.nope import NoPE
from roundround.pe.ntk_dynamic import DynamicNTK
from roundround.pe.p_rope import PRoPE, kept_pairs
from roundround.pe.partial_rope import PartialRoPE
from roundround.pe.rope import RoPE
from roundround.pe.yarn import YaRN
from roundround.support.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Family:
    """Models of one config class of transformers, and what their layers have.

    export: the class of transformers as which a decoder may be exported. norms: where they stand. normalised: what
    queries and keys are normalised over. one_less: norms keep what is added to one. windows: whether layers may have
    one; by_kind: whether these layers may then rotate otherwise. even_heads: head_dim is the width over the heads.
    """

    config: type[PreTrainedConfig]
    export: str | None = None
    norms: str = "before"
    normalised: str = "none"
    one_less: bool = False
    windows: bool = False
    by_kind: bool = False
    even_heads: bool = False


FAMILIES = {  # by the model_type of config.json
    "llama": Family(config=LlamaConfig, export="LlamaForCausalLM"),
    "gemma": Family(config=GemmaConfig, one_less=True),
    "qwen3": Family(config=Qwen3Config, export="Qwen3ForCausalLM", normalised="heads", windows=True),
    "smollm3": Family(config=SmolLM3Config, export="SmolLM3ForCausalLM", even_heads=True),
    "olmo3": Family(
        config=Olmo3Config,
        export="Olmo3ForCausalLM",
        norms="after",
        normalised="across heads",
        windows=True,
        by_kind=True,
        even_heads=True,
    ),
    "gemma3_text": Family(
        config=Gemma3TextConfig,
        export="Gemma3ForCausalLM",
        norms="both",
        normalised="heads",
        one_less=True,
        windows=True,
        by_kind=True,
    ),
    "gemma4_text": Family(config=Gemma4TextConfig, norms="both", normalised="heads", windows=True, by_kind=True),
}
SWIGLU, GEGLU = "silu", "gelu_pytorch_tanh"
KINDS = {"sliding_attention": "local", "full_attention": "global"}
# parts of these models that the decoder has not, and the value with which they do nothing
WITHOUT = {
    "mlp_bias": False,
    "use_bidirectional_attention": None,
    "final_logit_softcapping": None,
    "attn_logit_softcapping": None,
    "hidden_size_per_layer_input": 0,
    "attention_k_eq_v": False,
    "num_kv_shared_layers": 0,
    "enable_moe_block": False,
    "use_double_wide_mlp": False,
}

Node = dict[str, Any]  # a class and its arguments, as they stand in a config


@dataclass(frozen=True, kw_only=True)
class DecoderNodes:
    """The nodes that a configuration stands for, and the size of its vocabulary. others: `pattern`, `qk_norm`."""

    model: Node
    pe: Node | None
    n_vocab: int
    others: dict[str, Node] = field(default_factory=dict)


def decoder_nodes(config: PreTrainedConfig) -> DecoderNodes:
    """The decoder that computes what this configuration does. UserError naming what it cannot represent."""
    kind, family = config.model_type, FAMILIES[config.model_type]
    for name, nothing in WITHOUT.items():
        if getattr(config, name, nothing) not in (nothing, None, False):
            value = getattr(config, name)
            raise UserError(f"{name} is {'true' if value is True else value}, and the decoder has no such part")
    if config.attention_dropout:
        raise UserError(f"attention_dropout is {config.attention_dropout}, and the decoder has no dropout")
    activation = config.hidden_activation if kind.endswith("_text") else config.hidden_act
    if activation not in (SWIGLU, GEGLU):
        raise UserError(f"hidden_act is {activation}, and the decoder has {SWIGLU} and {GEGLU}")
    model = {
        "kind": "architecture",
        "_target_": target(Decoder),
        "d_model": config.hidden_size,
        "n_layers": config.num_hidden_layers,
        "n_heads": config.num_attention_heads,
        "n_key_heads": own_config(config, 0).num_key_value_heads,
        "head_dim": head_dim_of(config, 0),
        "d_mlp": config.intermediate_size,
        "train_length": config.max_position_embeddings,
        "tied_embeddings": config.tie_word_embeddings,
        "geglu": activation == GEGLU,
        "scaled_embeddings": kind.startswith("gemma"),
        "norm_eps": config.rms_norm_eps,
        "initializer_range": config.initializer_range,
        "norms": family.norms,
        "attention_bias": bool(config.attention_bias),
    }
    others: dict[str, Node] = {}
    if family.normalised != "none":
        others["qk_norm"] = {
            "_target_": target(RMSQueryKeyNorm),
            "gain": True,
            "after_rotation": False,
            "across_heads": family.normalised == "across heads",
            "values": kind == "gemma4_text",
            "eps": config.rms_norm_eps,
        }
    layers = [layer_kind(config, layer) for layer in range(config.num_hidden_layers)]
    kinds = dict(layers)
    if len(kinds) == 1:
        [only] = kinds.values()
        if set(only) == {"pe"}:
            return DecoderNodes(model=model, pe=only["pe"], n_vocab=config.vocab_size, others=others)
    pattern = {"order": [name for name, _ in layers], "last": None, "whole": False, **kinds}
    return DecoderNodes(model=model, pe=None, n_vocab=config.vocab_size, others={**others, "pattern": pattern})


def layer_kind(config: PreTrainedConfig, layer: int) -> tuple[str, Node]:
    """The name of a layer's kind, and what the kind does otherwise than the whole model."""
    layer_type = (getattr(config, "layer_types", None) or ["full_attention"] * (layer + 1))[layer]
    if layer_type not in KINDS:
        raise UserError(f"layer_types has {layer_type}, and the decoder has {' and '.join(KINDS)}")
    name = KINDS[layer_type]
    node: Node = {}
    head_dim = head_dim_of(config, layer)
    rope = config.rope_parameters.get(layer_type, config.rope_parameters)
    node["pe"] = encoding_node(rope, head_dim, config.max_position_embeddings)
    if config.model_type == "smollm3" and not config.no_rope_layers[layer]:  # 1 where RoPE is used
        name, node["pe"] = f"{name}_nope" if name == "local" else "nope", {"_target_": target(NoPE)}
    if layer_type == "sliding_attention" and config.sliding_window:
        node["window"] = config.sliding_window
    if config.model_type == "gemma3_text" and config.query_pre_attn_scalar != head_dim:
        node["logit_scale"] = config.query_pre_attn_scalar**-0.5
    if config.model_type == "gemma4_text":
        node |= {"head_dim": head_dim, "n_key_heads": own_config(config, layer).num_key_value_heads, "logit_scale": 1.0}
    return name, node


def own_config(config: PreTrainedConfig, layer: int) -> Any:
    """The configuration of a layer, where its sizes may be others than the model's."""
    return config.per_layer_config[layer] if config.model_type == "gemma4_text" else config


def head_dim_of(config: PreTrainedConfig, layer: int) -> int:
    own = getattr(own_config(config, layer), "head_dim", None)
    return int(config.hidden_size // config.num_attention_heads if own is None else own)


def encoding_node(rope: Mapping[str, Any], head_dim: int, longest: int) -> Node:
    """The encoding of `rope_parameters`; `longest` is the model's max_position_embeddings. UserError for another."""
    kind, theta = rope.get("rope_type", "default"), float(rope["rope_theta"])
    p = float(rope.get("partial_rotary_factor", 1.0))
    if kind == "default":
        whole = kept_pairs(p, head_dim) == head_dim // 2
        return {"_target_": target(RoPE), "theta": theta} if whole else partial(PartialRoPE, p, theta)
    if kind == "proportional" and rope.get("factor", 1.0) == 1.0:
        n_kept = kept_pairs(p, head_dim)
        if n_kept == 0:
            return {"_target_": target(NoPE)}
        whole = n_kept == head_dim // 2
        return {"_target_": target(RoPE), "theta": theta} if whole else partial(PRoPE, p, theta)
    if kind not in SCALED or p != 1:
        scaled = f"{kind} with factor {rope['factor']:g}" if "factor" in rope else kind
        raise UserError(f"rope_type is {scaled}, and the decoder has {', '.join(['default', 'proportional', *SCALED])}")
    of, names = SCALED[kind]
    original = rope.get("original_max_position_embeddings") or longest
    return {
        "_target_": target(of),
        "theta": theta,
        "original_length": original,
        "length": longest,
        "factor": rope.get("factor") or longest / original,
        **{name: rope.get(name, default) for name, default in names.items()},
    }


def partial(of: type, p: float, theta: float) -> Node:
    return {"_target_": target(of), "p": p, "theta": theta}


SCALED: dict[str, tuple[type, dict[str, Any]]] = {  # rope_type -> its class, and its numbers with their defaults
    "linear": (LinearRoPE, {}),
    "dynamic": (DynamicNTK, {}),
    "yarn": (
        YaRN,
        {
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": True,
            "attention_factor": None,
            "mscale": None,
            "mscale_all_dim": None,
        },
    ),
    "llama3": (Llama3RoPE, {"low_freq_factor": 1.0, "high_freq_factor": 4.0}),
    "longrope": (LongRoPE, {"short_factor": None, "long_factor": None, "attention_factor": None}),
}


def target(of: type) -> str:
    """A class by the name that a config gives it."""
    return f"{of.__module__}.{of.__qualname__}"
