"""The small models of the suite, whose configs are in families.yaml.

Letters: T tokens, D model width, V vocabulary.

Tested by tests/engines/test_suite.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import yaml
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

CONFIGS: Mapping[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
FAMILIES: Mapping[str, Mapping[str, Any]] = CONFIGS["cases"]
N_BYTES = 256  # the first tokens of the vocabulary
SPECIAL = ("<s>", "</s>", "<pad>", "<unk>", "<extra_0>", "<extra_1>", "<extra_2>")  # the last ones
GIVES_LOGITS = re.compile("q_norm|k_norm|q_proj|k_proj|q_b_proj|kv_b_proj|qkv_proj|query_key_value")
EMBEDS = re.compile("embed_tokens|embed_in|wte")


def model_of(
    case: str, changes: Mapping[str, Any] | None = None, weights: Mapping[str, torch.Tensor] | None = None
) -> PreTrainedModel:
    """The model of a case in float32, with changed values of its config; random weights if none are given."""
    config = AutoConfig.for_model(**{**config_of(case), **(changes or {})})
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval().float()
    if weights is None:
        draw(model)
    else:
        model.load_state_dict(dict(weights))
    return model.requires_grad_(False)


def config_of(case: str) -> dict[str, Any]:
    """The values of a case's config.json, without the defaults of its class."""
    return {**CONFIGS["common"], **FAMILIES[case]}


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
