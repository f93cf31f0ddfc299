"""Tiny random instances of the architectures that a probe must understand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from roundround.hf.patching.frequencies import rotary_tables

N_VOCAB, WINDOW = 97, 5
SIZES = {
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": N_VOCAB,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
ALTERNATING = ["sliding_attention", "full_attention"] * 2
LATENT = {  # 8 of 24 channels rotate, the last; values have 12
    **{"qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 12, "q_lora_rank": 24, "kv_lora_rank": 16},
    **{"num_key_value_heads": 4, "n_routed_experts": 2, "num_experts_per_tok": 1, "n_shared_experts": 1, "n_group": 1},
    **{"topk_group": 1, "moe_intermediate_size": 16, "first_k_dense_replace": 3},
}
INDEXER = {"index_n_heads": 2, "index_head_dim": 16, "index_topk": 20}
HYBRIDS: dict[str, dict[str, Any]] = {  # only layer 3 or layer 2 has attention
    "kimi_linear": {**LATENT, "q_lora_rank": None, "linear_num_heads": 2, "linear_head_dim": 8, "num_experts": 2},
    "qwen3_5_text": {"head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 8},
    "olmo_hybrid": {},
    "lfm2": {"layer_types": ["conv", "conv", "full_attention", "conv"]},
    "jamba": {"attn_layer_period": 4, "attn_layer_offset": 3, "num_experts": 1, "use_mamba_kernels": False},
}
for _name in ("kimi_linear", "qwen3_5_text", "olmo_hybrid"):
    HYBRIDS[_name]["layer_types"] = ["linear_attention"] * 3 + ["full_attention"]
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "gemma": {"head_dim": 16},
    "gemma2": {"head_dim": 16, "sliding_window": WINDOW, "query_pre_attn_scalar": 16, "attn_logit_softcapping": 2.0},
    "gemma3_text": {"head_dim": 16, "sliding_window": WINDOW, "layer_types": ALTERNATING},
    "gemma4_text": {
        "head_dim": 16,
        "global_head_dim": 32,
        "sliding_window": WINDOW,
        "layer_types": ALTERNATING,
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": N_VOCAB,
        "num_kv_shared_layers": 2,
    },
    "llama": {"head_dim": 16},
    "mistral": {"head_dim": 16, "sliding_window": WINDOW},
    "qwen3": {"head_dim": 16},
    "olmo2": {},
    "gpt_neox": {"rotary_pct": 0.5},
    "phi3": {},
    "cohere": {},
    "gpt_oss": {"head_dim": 16, "num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": WINDOW},
    "smollm3": {"head_dim": 16, "no_rope_layers": [1, 0, 1, 0]},
    "deepseek_v2": {**LATENT, "topk_method": "greedy"},
    "deepseek_v3": LATENT,
    "llama4_text": {
        "head_dim": 16,
        "attention_chunk_size": WINDOW,
        "intermediate_size_mlp": 64,
        "num_local_experts": 2,
        "no_rope_layers": [1, 1, 1, 0],
    },
    "inkling_text": {  # no RoPE: its logits have a bias from relative positions
        **{"head_dim": 16, "swa_head_dim": 16, "swa_num_attention_heads": 4, "swa_num_key_value_heads": 2, "d_rel": 8},
        **{"rel_extent": 16, "sliding_window": WINDOW, "n_routed_experts": 2, "num_experts_per_tok": 1},
        "layer_types": ["hybrid_sliding", "hybrid"] * 2,
    },
}
FAMILIES = [  # models whose layers are handed their cosines
    *(name for name in ARCHITECTURES if name != "inkling_text"),
    *("apertus", "arcee", "aria_text", "bitnet", "cohere2", "cohere2_moe", "cwm", "ernie4_5", "exaone4", "flex_olmo"),
    *("glm", "glm4", "granite", "granite_swa", "granitemoe", "hyperclovax", "internlm3", "jais2", "lfm2", "minimax"),
    *("ministral3", "mixtral", "nemotron", "olmo", "olmo3", "persimmon", "phi", "qwen2", "seed_oss", "starcoder2"),
    "vaultgemma",
]
SCALED = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
SCALED_ROPE = {"rope_parameters": {**SCALED, "original_max_position_embeddings": 64}}


def tiny(name: str, **changes: Any) -> PreTrainedModel:
    """A random model with weights large enough that its heads differ from uniform ones."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(name, **{**SIZES, **ARCHITECTURES.get(name, {}), **changes})
    if "moe_intermediate_size" in config.to_dict():
        config._experts_implementation = "eager"  # the default has no float64
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if parameter.ndim > 1 or "sinks" in path:
                parameter.normal_(0, 0.25 if parameter.ndim > 1 else 1.0)
    return model.requires_grad_(False)


def frequency_tables(model: PreTrainedModel) -> list[torch.Tensor]:
    """The buffers from which the decoder's rotary modules compute their angles, radians per token; not copies."""
    return [table.frequencies_P for table in rotary_tables(model)]


def some_tokens(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(3, N_VOCAB, shape, generator=torch.Generator().manual_seed(seed))


def saved_llama(path: Path, *, begins_texts: bool = True, name: str = "llama", **changes: Any) -> Path:
    """A folder with a tiny random Llama and a byte tokenizer, which puts <s> before every text or nothing."""
    tiny(name, vocab_size=260, **changes).save_pretrained(path)
    letters = {c: i + 3 for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = Tokenizer(models.BPE({"<unk>": 0, "<s>": 1, "</s>": 2, **letters}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    if begins_texts:
        backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>").save_pretrained(path)
    return path


class Words:
    """A tokenizer as far as a prompt needs one."""

    bos_token_id = None

    def decode(self, tokens: list[int]) -> str:
        return f"w{tokens[0]}"
