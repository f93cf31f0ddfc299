"""The configuration and the weights with which a class of transformers computes exactly the same as a decoder.

The classes are Llama, SmolLM3 (if some layers have no positions), three with normalised queries and keys: Qwen 3,
OLMo 3 (norms after attention and MLP) and Gemma 3 (norms before and after), and two with other layers: Qwen3-Next
(Gated DeltaNet, and attention with a gate) and DeepSeek V3 (latent attention), both without experts. The frequencies of
RoPE in roundround equal the frequencies in these classes to the last bit; tests compare them.

Tested by tests/trained/test_stock.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import nextafter
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import DeepseekV3Config, PreTrainedConfig, Qwen3NextConfig

from roundround.hf.checkpoint import FAMILIES, GEGLU, SWIGLU, Family
from roundround.model.block import Attention, AttentionLayer, Block
from roundround.model.decoder import Decoder
from roundround.model.gate import InputGate
from roundround.model.gated_deltanet import GatedDeltaNet
from roundround.model.latent_attention import LatentAttention
from roundround.model.mix import TokenMix
from roundround.model.qk_norm import RMSQueryKeyNorm
from roundround.pe.nope import NoPE
from roundround.pe.p_rope import PRoPE
from roundround.pe.p_rope_reversed import PRoPEReversed
from roundround.pe.partial_rope import PartialRoPE
from roundround.pe.rope import RoPE
from roundround.pe.rope_random import RoPERandom
from roundround.softmax.softmax import Softmax
from roundround.softmax.temperature import Temperature
from roundround.support.errors import UserError

BEYOND = ("other_biases", "embedding_norm", "logit_cap")  # options of the decoder that none of the classes has
NO_LAYERS = 4096  # tokens: the window in a configuration whose layers have none
EXPORTED_ONLY = {  # by the model_type of config.json; a run cannot start from these
    "qwen3_next": Family(config=Qwen3NextConfig, export="Qwen3NextForCausalLM", normalised="heads", one_less=True),
    "deepseek_v3": Family(config=DeepseekV3Config, export="DeepseekV3ForCausalLM"),
}
LATENT_EPS = 1e-6  # of the norms of latents in DeepSeek V3, which no option changes
# a matrix of Qwen3-Next -> ours, whose rows it holds head by head
OF_LINEAR = {"in_proj_qkvz": ("q_proj", "k_proj", "v_proj", "g_proj"), "in_proj_ba": ("b_proj", "a_proj")}
OF_GATED = {"q_proj": ("q_proj", "gate.proj")}
RENAMED = {"conv": "conv1d.weight", "o_norm.weight": "norm.weight", "o_proj.weight": "out_proj.weight"}
Rope = dict[str, Any]


class NoStockClass(UserError):
    """Says why no class of transformers computes a decoder. It is an error only with `stock=true`."""


def stock_config(decoder: Decoder, sizes: Mapping[str, Any]) -> PreTrainedConfig | None:
    """The configuration with which a class of transformers computes the same as this decoder; None if no class does.

    `sizes` are the decoder's arguments. If the decoder scales its embeddings, the configuration does not tie them to
    the output matrix, except for Gemma 3: see `stock_weights`.
    """
    try:
        return fitting_config(decoder, sizes)
    except NoStockClass:
        return None


def fitting_config(decoder: Decoder, sizes: Mapping[str, Any]) -> PreTrainedConfig:
    """As `stock_config`, but raises NoStockClass if no class fits. The error names a part that the classes lack."""
    each = [cast("Block", block).self_attn for block in decoder.layers]
    linear = [own for own in each if isinstance(own, GatedDeltaNet)]
    latent = [own for own in each if isinstance(own, LatentAttention)]
    others = {type(own).__name__ for own in each if not isinstance(own, Attention | GatedDeltaNet | LatentAttention)}
    mixes = {type(layer.mix).__name__ for layer in decoder.layers} - {TokenMix.__name__}
    refuse(
        None,
        (bool(others), " and ".join(others)),
        (bool(mixes), " and ".join(mixes)),
        (0 < len(latent) < len(each), "LatentAttention in only some of its layers"),
        # Qwen3-Next's cache counts the tokens in layers of attention
        (len(linear) == len(each), "GatedDeltaNet in all layers, without attention"),
    )
    layers = [layer for layer, own in enumerate(each) if not isinstance(own, GatedDeltaNet)]
    attentions = cast("list[Attention | LatentAttention]", [each[layer] for layer in layers])
    normalised = check_parts(decoder, attentions, sizes)
    gated = bool(linear) or any(attention.gate is not None for attention in attentions)
    ropes = [rope_of(decoder, layer, partial=gated) for layer in layers]
    norms = sizes.get("norms", "before")
    several = len({str(rope) for rope in ropes}) > 1 and (norms, normalised) == ("before", "none")
    fitting = (f for f in FAMILIES.values() if f.export and (f.norms, f.normalised) == (norms, normalised))
    family = FAMILIES["smollm3"] if several else next(fitting, None)
    if gated or latent:
        family = EXPORTED_ONLY["qwen3_next" if gated else "deepseek_v3"]
        refuse(family.export, (norms != family.norms, f"model.norms={norms}"))
    if family is None:
        raise NoStockClass(f"no class has model.norms={norms} with queries and keys normalised over {normalised}")
    is_gemma = family is FAMILIES["gemma3_text"]
    shape = attentions[0].encoding_shape
    options: dict[str, Any] = {
        "vocab_size": decoder.embed_tokens.num_embeddings,
        "hidden_size": shape.d_model,
        "intermediate_size": sizes["d_mlp"],
        "num_hidden_layers": len(decoder.layers),
        "num_attention_heads": shape.n_heads,
        "num_key_value_heads": shape.n_key_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": shape.train_length,
        "initializer_range": min(sizes["initializer_range"], 1.0),  # the limit of transformers; only for fresh weights
        "rms_norm_eps": sizes["norm_eps"],
        "tie_word_embeddings": decoder.lm_head is None and (decoder.embedding_scale is None or is_gemma),
        "attention_bias": sizes.get("attention_bias", False),
        "architectures": [family.export],
        "dtype": "float32",
    }
    options["hidden_activation" if is_gemma else "hidden_act"] = GEGLU if sizes["geglu"] else SWIGLU
    scales = [float(attention.shape.scale) for attention in attentions]
    scalar = round(scales[0] ** -2) if is_gemma else attentions[0].shape.head_dim  # Gemma 3 takes a whole number
    of_heads = shape.n_heads * shape.head_dim == shape.d_model
    refuse(
        family.export,
        (any(scale != scalar**-0.5 for scale in scales), "logits other than q . k / sqrt(head_dim) in its layers"),
        (family is FAMILIES["llama"] and shape.d_model % shape.n_heads != 0, "a width that n_heads does not divide"),
        (family.even_heads and not of_heads, "heads that are not of d_model / n_heads channels"),
        (is_gemma and decoder.embedding_scale is None, "embeddings that are not scaled"),
    )
    options |= {"query_pre_attn_scalar": scalar} if is_gemma else {}
    options |= layers_of(family, ropes, [decoder.kinds[layer].window for layer in layers])
    if gated:
        options |= qwen3_next_options(each, normalised, sizes, options["rope_parameters"])
    elif latent:
        options |= deepseek_v3_options(latent)
    return family.config(**options)


def qwen3_next_options(
    each: Sequence[AttentionLayer], normalised: str, sizes: Mapping[str, Any], rope: Rope
) -> dict[str, Any]:
    """The options of the configuration that only Qwen3-Next has; its MLPs are dense, without experts.

    each: the attention of each layer, or Gated DeltaNet in its place. Raises NoStockClass if the class lacks a part.
    """
    attentions = [own for own in each if isinstance(own, Attention)]
    gates = [own.gate for own in attentions if isinstance(own.gate, InputGate)]
    linear = [own for own in each if isinstance(own, GatedDeltaNet)]
    forms = [
        {
            "linear_num_key_heads": own.shape.n_key_heads,
            "linear_num_value_heads": own.shape.n_heads,
            "linear_key_head_dim": own.shape.head_dim,
            "linear_value_head_dim": own.value_dim,
            "linear_conv_kernel_dim": own.conv.shape[-1],
        }
        for own in linear
    ]
    refuse(
        "Qwen3NextForCausalLM",
        (normalised != "heads", "attention without qk_norm=rms"),
        (len(gates) < len(attentions), "attention without gate=channel"),
        (
            any((gate.proj.bias is not None) != sizes.get("attention_bias", False) for gate in gates),
            "gates and projections of which only one has biases: gate.bias other than model.attention_bias",
        ),
        (any(form != forms[0] for form in forms), "GatedDeltaNet of several sizes"),
        (
            any(own.o_norm.eps != sizes["norm_eps"] for own in linear),
            "GatedDeltaNet with another norm_eps than the model",
        ),
        # the activation of the MLPs is that of the convolutions too
        (bool(linear) and sizes["geglu"], "GeGLU beside GatedDeltaNet"),
    )
    return {
        "layer_types": ["linear_attention" if isinstance(own, GatedDeltaNet) else "full_attention" for own in each],
        **(forms[0] if forms else {}),
        "num_experts": 0,
        "rope_parameters": {"partial_rotary_factor": 1.0} | rope,  # the class has another default
    }


def deepseek_v3_options(latent: Sequence[LatentAttention]) -> dict[str, Any]:
    """The options of the configuration that only DeepSeek V3 has; its MLPs are dense, without experts.

    latent: the attention of each layer. Raises NoStockClass if the class lacks a part.
    """
    forms = [
        {
            "num_key_value_heads": own.shape.n_heads,
            "kv_lora_rank": own.kv_b_proj.in_features,
            "q_lora_rank": own.q_a_proj.out_features if "q_a_proj" in own.of_queries else None,
            "qk_nope_head_dim": own.sizes[0],
            "v_head_dim": own.sizes[0],
            "qk_rope_head_dim": own.sizes[1],
        }
        for own in latent
    ]
    norms = [norm for own in latent for norm in own.children() if isinstance(norm, nn.RMSNorm)]
    refuse(
        "DeepseekV3ForCausalLM",
        (any(form != forms[0] for form in forms), "latents of several sizes"),
        (
            any(norm.eps != LATENT_EPS for norm in norms),
            f"latents normalised with a norm_eps other than {LATENT_EPS:g}",
        ),
    )
    return {**forms[0], "rope_interleave": False, "first_k_dense_replace": len(latent), "num_mtp_layers": 0}


def refuse(of: str | None, *parts: tuple[bool, str]) -> None:
    """Raises NoStockClass if the decoder has one of the given parts; the error names the first.

    of: the name of the class that lacks the parts; None if all classes lack them. parts: for each part, a pair
    (whether the decoder has the part, the part's name).
    """
    for has, part in parts:
        if has:
            raise NoStockClass(f"no class has {part}" if of is None else f"{of} has no {part}")


def check_parts(decoder: Decoder, attentions: Sequence[Attention | LatentAttention], sizes: Mapping[str, Any]) -> str:
    """The normalisation of queries and keys: "none", "heads" (of each head by itself) or "across heads".

    Raises NoStockClass if the decoder has a part that all classes lack.
    """
    others = [
        type(softmax).__name__
        for softmax in (attention.softmax for attention in attentions)
        if not isinstance(softmax, Softmax) and not (isinstance(softmax, Temperature) and softmax.temperature == 1)
    ]
    beyond = [f"model.{name}={sizes[name]}" for name in BEYOND if sizes.get(name)]
    norms = [attention.qk_norm for attention in attentions if isinstance(attention, Attention)]
    gates = [
        f"{type(own.gate).__name__} with these arguments behind its {type(own).__name__}"
        for own in attentions
        if own.gate is not None
        and not (
            isinstance(own, Attention)
            and isinstance(own.gate, InputGate)
            and (own.gate.n_of_head, own.gate.activate) == (own.shape.head_dim, torch.sigmoid)
        )
    ]
    plain = all(
        norm is None
        or (
            isinstance(norm, RMSQueryKeyNorm)
            and not (norm.after_rotation or norm.values)
            and norm.q_norm.weight is not None
            and norm.eps == sizes["norm_eps"]
        )
        for norm in norms
    )
    normalised = {
        "none" if norm is None else "across heads" if getattr(norm, "across_heads", False) else "heads"
        for norm in norms
    }
    refuse(
        None,
        (any(kind.chunk is not None for kind in decoder.kinds), "chunks"),
        (bool(others), f"{', '.join(dict.fromkeys(others))} in its attention"),
        (bool(gates), ", ".join(dict.fromkeys(gates))),
        (
            len({(own.shape.n_key_heads, own.shape.head_dim) for own in attentions}) > 1,
            "heads of another number or size in some of its layers",
        ),
        (bool(beyond), ", ".join(beyond)),
        (sizes.get("mlp", "gated") != "gated" or not sizes["d_mlp"], "MLPs without gates, or none"),
        (not plain, "queries and keys normalised otherwise than by qk_norm=rms or rms_across with model.norm_eps"),
        (len(normalised) > 1, "queries and keys that only some layers normalise"),
    )
    return normalised.pop() if normalised else "none"  # latent attention normalises neither


def layers_of(family: Family, ropes: Sequence[Rope], windows: Sequence[int | None]) -> dict[str, Any]:
    """The options of the configuration that give layers different windows or RoPE.

    Raises NoStockClass if the layers differ in a way that the class does not support.
    """
    given = sorted({window for window in windows if window is not None})
    refuse(family.export, (bool(given) and not family.windows, "windows"), (len(given) > 1, "windows of several sizes"))
    types = ["full_attention" if window is None else "sliding_attention" for window in windows]
    options: dict[str, Any] = {}
    if family.windows:
        none = NO_LAYERS if family.by_kind else None  # these make a window mask even if no layer uses it
        options = {"layer_types": types, "sliding_window": given[0] if given else none}
    if family is FAMILIES["qwen3"]:
        options |= {"use_sliding_window": bool(given), "max_window_layers": 0}
    if family is FAMILIES["smollm3"]:
        rotates = [rope.get("partial_rotary_factor") != 0 for rope in ropes]
        options["no_rope_layers"] = [int(does) for does in rotates]  # 1: RoPE is used
        ropes = [rope if does else ropes[rotates.index(True)] for rope, does in zip(ropes, rotates, strict=True)]
    by_kind: dict[str, Rope] = {}
    for kind, rope in zip(types if family.by_kind else ["all"] * len(ropes), ropes, strict=True):
        other = by_kind.setdefault(kind, rope) != rope
        refuse(family.export, (other, "rotation that differs by layer" + " of a kind" * family.by_kind))
    if not family.by_kind:
        return {**options, "rope_parameters": by_kind["all"]}
    kinds, some = ("full_attention", "sliding_attention"), next(iter(by_kind.values()))
    return {**options, "rope_parameters": {kind: dict(by_kind.get(kind, some)) for kind in kinds}}


def rope_of(decoder: Decoder, layer: int, *, partial: bool) -> Rope:
    """Llama's `rope_parameters` for a layer. Raises NoStockClass if they cannot express the layer's encoding.

    partial: whether the class can rotate the first channels of a head alone.
    """
    encoding = decoder.all_encodings[decoder.encoding_of_layer[layer]]
    match encoding:
        case NoPE() if encoding.shape.head_dim % 2 == 0:
            # no pair rotates, so any theta will do
            return {"rope_type": "proportional", "partial_rotary_factor": 0.0, "rope_theta": 10_000.0}
        case RoPE() if encoding.log_factor_P is not None:  # learned frequencies
            pass
        case RoPE() | RoPERandom():  # transformers uses consecutive positions; the export says so
            return {"rope_type": "default", "rope_theta": encoding.theta}
        case PRoPE():
            return {"rope_type": "proportional", "partial_rotary_factor": encoding.p, "rope_theta": encoding.theta}
        case PRoPEReversed() | PartialRoPE() if encoding.n_kept == encoding.shape.head_dim // 2:  # p = 1
            return {"rope_type": "default", "rope_theta": encoding.theta}
        case PartialRoPE() if partial:
            width, share = encoding.shape.head_dim, 2 * encoding.n_kept / encoding.shape.head_dim
            share = share if int(width * share) == 2 * encoding.n_kept else nextafter(share, 1.0)  # theirs rounds down
            return {"rope_type": "default", "partial_rotary_factor": share, "rope_theta": encoding.theta}
    raise NoStockClass(f"no class has {type(encoding).__name__} with these arguments as its positional encoding")


def stock_weights(decoder: Decoder, config: PreTrainedConfig) -> dict[str, Tensor]:
    """The weights, under the names that they have in the configuration's class.

    Gemma 3 scales its embeddings itself. For the other classes the scale of the embeddings is multiplied into the input
    matrix, which is then separate from the output matrix. Gemma 3 and Qwen3-Next store the weights of norms minus 1,
    except of the norm in Gated DeltaNet.
    """
    weights = {
        re.sub(r"\.self_attn\.qk_norm\.([qk]_norm)\.", r".self_attn.\1.", name): tensor
        for name, tensor in weights_by_llama_name(decoder).items()
    }
    if decoder.embedding_scale is not None and config.model_type != "gemma3_text":
        embeddings = weights["model.embed_tokens.weight"]
        weights.setdefault("lm_head.weight", embeddings)
        weights["model.embed_tokens.weight"] = embeddings * decoder.embedding_scale
    if config.model_type == "qwen3_next":
        weights = qwen3_next_weights(decoder, weights)
    if (FAMILIES | EXPORTED_ONLY)[config.model_type].one_less:
        return {
            name: tensor - 1 if name.endswith("norm.weight") and ".linear_attn." not in name else tensor
            for name, tensor in weights.items()
        }
    return weights


def qwen3_next_weights(decoder: Decoder, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights with the matrices of each layer joined as in Qwen3-Next.

    One matrix has, for each head, its queries and its gate. Another has, for each key head of Gated DeltaNet, its
    queries, keys, values and gates; a third has its betas and its decays.
    """
    made = dict(weights)
    for layer, block in enumerate(decoder.layers):
        own, start = cast("Block", block).self_attn, f"model.layers.{layer}.self_attn."
        is_linear = isinstance(own, GatedDeltaNet)
        n_heads = own.shape.n_key_heads if is_linear else own.shape.n_heads
        for joined, parts in (OF_LINEAR if is_linear else OF_GATED).items():
            for kind in ("weight", "bias"):
                if f"{start}{parts[0]}.{kind}" in made:
                    rows = [torch.unflatten(made.pop(f"{start}{part}.{kind}"), 0, (n_heads, -1)) for part in parts]
                    made[f"{start}{joined}.{kind}"] = torch.cat(rows, 1).flatten(0, 1)
        for name in [name for name in made if is_linear and name.startswith(start)]:
            last = name.removeprefix(start)
            made[f"model.layers.{layer}.linear_attn.{RENAMED.get(last, last)}"] = made.pop(name)
    return made


def weights_by_llama_name(decoder: Decoder) -> dict[str, Tensor]:
    """The decoder's weights, unchanged, under Llama's names; weights that Llama lacks are named in the same way."""
    return {
        name if name.startswith("lm_head.") else f"model.{name}": tensor
        for name, tensor in decoder.state_dict().items()
    }
