"""The families of the suite: small models in which every window, chunk, scaling and norm acts within the prompt.

Letters: T tokens, D model width, V vocabulary.

Tested by tests/engines/test_suite.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

WINDOW = 24  # tokens; a prompt has hundreds
TRAINED = 64  # tokens, the length before a scaling
N_BYTES = 256  # the vocabulary: a token for each byte, a pair of bytes, which some engines need, and special tokens
SPECIAL = ("<s>", "</s>", "<pad>", "<unk>", "<extra_0>", "<extra_1>", "<extra_2>")
GIVES_LOGITS = re.compile("q_norm|k_norm|q_proj|k_proj|q_b_proj|kv_b_proj|qkv_proj|query_key_value")
EMBEDS = re.compile("embed_tokens|embed_in|wte")
COMMON = {
    "vocab_size": N_BYTES + 1 + len(SPECIAL),
    "hidden_size": 128,  # of 4 heads of 32: many engines divide the width by the number of heads
    "intermediate_size": 48,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    "bos_token_id": 257,
    "eos_token_id": 258,
    "pad_token_id": 259,
}


def rope(rope_type: str = "default", rope_theta: float = 50_000.0, **others: Any) -> dict[str, Any]:
    """The `rope_parameters` of a family or of a kind of its layers."""
    return {"rope_type": rope_type, "rope_theta": rope_theta, **others}


LOCAL = rope(rope_theta=10_000.0)  # as in all published models of Gemma
YARN = rope("yarn", factor=8.0, original_max_position_embeddings=TRAINED, beta_fast=16.0, beta_slow=1.0)
LLAMA3 = rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=TRAINED)
PARTIAL = rope(partial_rotary_factor=0.5)
S, F, C = "sliding_attention", "full_attention", "chunked_attention"
EVERY_SECOND, EVERY_FOURTH, LAST = ([*kinds] for kinds in ((S, F, S, F, S, F), (S, S, S, F, S, S), (S, S, S, S, S, F)))
ANOTHER_ORDER = [S, S, F, S, S, F]  # in none of the published models: engines may have theirs in the code


def windowed(layer_types: list[str]) -> dict[str, Any]:
    """Windows in some layers."""
    return {"sliding_window": WINDOW, "layer_types": layer_types}


def longrope(n_pairs: int) -> dict[str, Any]:
    """LongRoPE with factors that grow from pair to pair, the long ones faster."""
    short, long = ([1 + slope * pair for pair in range(n_pairs)] for slope in (0.1, 0.9))
    return rope("longrope", original_max_position_embeddings=TRAINED, short_factor=short, long_factor=long)


FAMILIES: Mapping[str, tuple[str, dict[str, Any]]] = {  # case: model_type, and what its config has besides COMMON
    "llama": ("llama", {"rope_parameters": rope()}),
    "llama-linear": ("llama", {"rope_parameters": rope("linear", factor=4.0)}),
    "llama-dynamic": ("llama", {"rope_parameters": rope("dynamic", factor=4.0), "max_position_embeddings": TRAINED}),
    "llama-yarn": ("llama", {"rope_parameters": YARN}),
    "llama-llama3": ("llama", {"rope_parameters": LLAMA3}),
    "llama-longrope": ("llama", {"rope_parameters": {**longrope(16), "factor": 32.0}}),
    "qwen2": (
        "qwen2",
        {"rope_parameters": rope(), "use_sliding_window": True, "max_window_layers": 2, **windowed([F, F, S, S, S, S])},
    ),
    "qwen3": ("qwen3", {"rope_parameters": rope()}),
    "qwen3-yarn": ("qwen3", {"rope_parameters": YARN}),
    "qwen3_next": (
        "qwen3_next",
        {
            "rope_parameters": PARTIAL,
            "layer_types": [F] * 6,
            "intermediate_size": 24,
            "num_experts": 0,
            "mlp_only_layers": [*range(6)],
        },
    ),
    "mistral": ("mistral", {"rope_parameters": rope(), "sliding_window": WINDOW}),
    "ministral3": (
        "ministral3",
        {"rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.0, "llama_4_scaling_beta": 0.3}},
    ),
    "gemma2": (
        "gemma2",
        {
            "rope_parameters": rope(),
            "query_pre_attn_scalar": 16,
            "tie_word_embeddings": True,
            "attn_logit_softcapping": 4.0,
            "final_logit_softcapping": 8.0,
            **windowed(EVERY_SECOND),
        },
    ),
    "gemma3": (
        "gemma3_text",
        {
            "rope_parameters": {S: LOCAL, F: rope()},
            "query_pre_attn_scalar": 16,
            "tie_word_embeddings": True,
            **windowed(LAST),
        },
    ),
    "gemma3-order": (
        "gemma3_text",
        {
            "rope_parameters": {S: rope(rope_theta=1_000.0), F: rope()},
            "query_pre_attn_scalar": 16,
            "tie_word_embeddings": True,
            **windowed(ANOTHER_ORDER),
        },
    ),
    "gemma3-linear": (
        "gemma3_text",
        {
            "rope_parameters": {S: LOCAL, F: rope("linear", factor=8.0)},
            "query_pre_attn_scalar": 16,
            "tie_word_embeddings": True,
            **windowed(LAST),
        },
    ),
    "gemma4": (
        "gemma4_text",
        {
            "rope_parameters": {
                S: LOCAL,
                F: rope("proportional", partial_rotary_factor=0.25),
            },
            "vocab_size_per_layer_input": COMMON["vocab_size"],
            "hidden_size_per_layer_input": 0,
            "global_head_dim": 32,
            "num_kv_shared_layers": 0,
            "tie_word_embeddings": True,
            **windowed(LAST),
        },
    ),
    "phi3-longrope": (
        "phi3",
        {
            "rope_parameters": {**longrope(16), "partial_rotary_factor": 1.0},
            "original_max_position_embeddings": TRAINED,
        },
    ),
    "smollm3": ("smollm3", {"rope_parameters": rope(), "no_rope_layers": [1, 1, 1, 0, 1, 1]}),
    "smollm3-order": ("smollm3", {"rope_parameters": rope(), "no_rope_layers": [1, 1, 0, 1, 1, 0]}),
    "olmo2": ("olmo2", {"rope_parameters": rope()}),
    "olmo3": ("olmo3", {"rope_parameters": {S: rope(), F: YARN}, **windowed(EVERY_FOURTH)}),
    "gpt_oss": (
        "gpt_oss",
        {
            "rope_parameters": {**YARN, "truncate": False},
            "num_local_experts": 2,
            "num_experts_per_tok": 2,
            "intermediate_size": 16,
            **windowed(EVERY_SECOND),
        },
    ),
    "llama4": (
        "llama4_text",
        {
            "rope_parameters": rope(),
            "attention_chunk_size": WINDOW,
            "layer_types": [C, C, C, F, C, C],
            "no_rope_layers": [1, 1, 1, 0, 1, 1],
            "floor_scale": 32,
            "attn_scale": 0.4,
            "intermediate_size_mlp": 48,
            "num_local_experts": 1,
            "moe_layers": [],
        },
    ),
    "glm4": ("glm4", {"rope_parameters": PARTIAL}),
    "cohere2": ("cohere2", {"rope_parameters": rope(), "logit_scale": 0.25, **windowed(EVERY_FOURTH)}),
    "exaone4": ("exaone4", {"rope_parameters": rope(), "sliding_window_pattern": 4, **windowed(EVERY_FOURTH)}),
    "granite": (
        "granite",
        {
            "rope_parameters": rope(),
            "attention_multiplier": 0.5,
            "embedding_multiplier": 3.0,
            "logits_scaling": 0.7,
            "residual_multiplier": 0.8,
        },
    ),
    "helium": ("helium", {"rope_parameters": rope()}),
    "ernie4_5": ("ernie4_5", {"rope_parameters": rope()}),
    "seed_oss": ("seed_oss", {"rope_parameters": rope()}),
    "stablelm": ("stablelm", {"rope_parameters": PARTIAL, "qk_layernorm": True}),
    "gpt_neox": ("gpt_neox", {"rope_parameters": PARTIAL, "intermediate_size": 24}),
    "gptj": (
        "gptj",
        {"n_embd": 128, "n_head": 4, "n_layer": 6, "n_positions": 2048, "n_inner": 24, "rotary_dim": 16},
    ),
    "apertus": ("apertus", {"rope_parameters": LLAMA3}),
    "mimo_v2_flash": (
        "mimo_v2_flash",
        {
            "rope_parameters": {
                S: {**rope(rope_theta=1_000.0), "partial_rotary_factor": 0.5},
                F: PARTIAL,
            },
            "v_head_dim": 16,
            "mlp_layer_types": ["dense"] * 6,
            "n_routed_experts": 2,
            **windowed(ANOTHER_ORDER),
        },
    ),
    "deepseek_v3": (
        "deepseek_v3",
        {
            "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
            "first_k_dense_replace": 6,
            "q_lora_rank": 32,
            "kv_lora_rank": 32,
            "qk_rope_head_dim": 16,
            "qk_nope_head_dim": 16,
            "v_head_dim": 16,
            "num_key_value_heads": 4,
            "head_dim": 16,
        },
    ),
}


def config_of(case: str, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The values of a case's config.json, without the defaults of its class."""
    return {**COMMON, **FAMILIES[case][1], **(changes or {})}


def model_of(
    case: str, changes: Mapping[str, Any] | None = None, weights: Mapping[str, torch.Tensor] | None = None
) -> PreTrainedModel:
    """The model of a case in float32, with changed values of its config; random weights if none are given."""
    config = AutoConfig.for_model(FAMILIES[case][0], **config_of(case, changes))
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval().float()
    if weights is None:
        draw(model)
    else:
        model.load_state_dict(dict(weights))
    return model.requires_grad_(False)


@torch.no_grad()
def draw(model: PreTrainedModel, seed: int = 0) -> None:
    """Draw weights that make attention sharp; norms and sinks differ from their initial values.

    The weights are numbers of bfloat16, so that an engine may keep them in half precision.
    """
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if name.endswith("sinks"):
            value = 2 * noise
        elif parameter.dim() == 1:
            value = float((parameter == 1).all()) + 0.3 * noise  # gains start at 1, or at 0 where the code adds 1
            if model.config.model_type == "gemma4_text" and GIVES_LOGITS.search(name):
                value *= 0.6  # its logits have no other scale
        elif EMBEDS.search(name):
            value = (0.2 if model.config.tie_word_embeddings else 1.0) * noise  # Gemma multiplies it by the root of D
        else:
            gain = 2.0 if "lm_head" in name or "embed_out" in name else 1.2 if GIVES_LOGITS.search(name) else 1.0
            value = gain * parameter.shape[-1] ** -0.5 * noise
        parameter.copy_(value.bfloat16())
