"""Patterns of layers as they are shipped: with the same weights, logits equal Hugging Face's own code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging

from roundround.config.options import load_option
from roundround.hf.checkpoint import FAMILIES, read_checkpoint
from roundround.model.decoder import Decoder
from roundround.support.errors import UserError
from roundround.trained.models import build_decoder

SIZES = {
    "vocab_size": 61, "hidden_size": 48, "intermediate_size": 56, "num_hidden_layers": 6, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "initializer_range": 0.3, "head_dim": 12,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
WINDOW = {"sliding_window": 5}  # shorter than the text
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}
PLAIN = {"rope_type": "default", "rope_theta": 1e4}
MODELS: dict[str, dict[str, Any]] = {
    "qwen3": {},
    "qwen3 with biases": {"attention_bias": True},
    "smollm3": {},
    "olmo3": WINDOW,
    "olmo3 with YaRN": WINDOW | {"rope_parameters": {"full_attention": YARN, "sliding_attention": PLAIN}},
    "gemma3_text": WINDOW | {"query_pre_attn_scalar": 20},
    "gemma4_text": WINDOW | {"global_head_dim": 24, "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0},
    "llama with Llama 3's scaling": {
        "rope_parameters": YARN | {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    },
    "llama with longer factors": {
        "rope_parameters": YARN | {"rope_type": "longrope", "short_factor": [1.0] * 6, "long_factor": [2.0] * 6}
    },
}


@pytest.fixture(autouse=True)
def quiet_transformers() -> None:
    logging.set_verbosity_error()


def random_model(name: str) -> PreTrainedModel:
    """Of this type, with norms away from one."""
    torch.manual_seed(0)
    config = FAMILIES[name.partition(" ")[0]].config(**(SIZES | MODELS[name]))
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.3 * torch.randn(parameter.shape))
    return model


def decoder_from(model: PreTrainedModel, folder: Path) -> Decoder:
    """What is read of the model saved there."""
    model.save_pretrained(folder)
    words = {f"w{i}": i for i in range(model.config.vocab_size)}
    Tokenizer(WordLevel(words, unk_token="w0")).save(str(folder / "tokenizer.json"))
    checkpoint = read_checkpoint(f"hf:{folder}")
    nodes = checkpoint.nodes
    others = {name: OmegaConf.create(node) for name, node in nodes.others.items()}
    pe = None if nodes.pe is None else OmegaConf.create(nodes.pe)
    softmax = load_option("softmax", "softmax")
    decoder = build_decoder(OmegaConf.create(nodes.model), pe, softmax, nodes.n_vocab, **others)
    checkpoint.load_into(decoder)
    return decoder.eval()


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_hugging_faces(name: str, tmp_path: Path) -> None:
    model = random_model(name)
    decoder = decoder_from(model, tmp_path)
    tokens = torch.randint(61, (2, 40), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        theirs, ours = model(tokens).logits, decoder(tokens)
    assert float(theirs.std()) > 0.1
    torch.testing.assert_close(ours, theirs, atol=2e-5 * float(theirs.abs().max()), rtol=0)


def test_smollm3s_fourth_layer_has_no_position(tmp_path: Path) -> None:
    """`no_rope_layers[i] == 1` means that RoPE is used; many copies have it reversed."""
    model = random_model("smollm3")
    assert model.config.no_rope_layers == [1, 1, 1, 0, 1, 1]
    decoder = decoder_from(model, tmp_path)
    assert [kind.name for kind in decoder.kinds] == ["global", "global", "global", "nope", "global", "global"]


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("gemma4_text", {"hidden_size_per_layer_input": 8}, "does not support hidden_size_per_layer_input=8"),
        ("gemma3_text", {"final_logit_softcapping": 30.0}, "does not support final_logit_softcapping=30.0"),
        ("qwen3", {"attention_dropout": 0.1}, "attention_dropout=0.1"),
    ],
)
def test_what_the_decoder_has_not_is_named(name: str, change: dict[str, Any], message: str, tmp_path: Path) -> None:
    config = FAMILIES[name].config(**(SIZES | MODELS[name] | change))
    config.save_pretrained(tmp_path)
    save_file({"model.embed_tokens.weight": torch.zeros(61, 48)}, tmp_path / "model.safetensors")
    Tokenizer(WordLevel({"w0": 0}, unk_token="w0")).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(UserError, match=message):
        read_checkpoint(f"hf:{tmp_path}")
