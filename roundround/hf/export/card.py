"""The model card of an exported folder: what the run knows of the model, and how to load it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from roundround.model.decoder import Decoder, n_parameters


@dataclass(frozen=True, kw_only=True)
class Card:
    """What the card tells that the decoder does not know.

    manifest: the run's run.json. checkpoint: its name. step: optimizer steps of the checkpoint. nats_per_token: its
    held-out loss, None where that step was not measured.
    """

    name: str
    manifest: dict[str, Any]
    checkpoint: str
    step: int
    perplexity: float | None
    nats_per_token: float | None


def model_card(card: Card, decoder: Decoder, *, stock: bool, needs: list[str]) -> str:
    """The text of README.md. The licence is left to whoever publishes the model.

    `needs` are packages beside torch and transformers that the folder's own code imports.
    """
    choices = card.manifest.get("choices", {})
    rows = "\n".join(f"| {name} | {value} |" for name, value in facts(card, decoder).items())
    return f"""---
library_name: transformers
pipeline_tag: text-generation
tags: [roundround, {choices.get("pe")}, {choices.get("softmax")}]
# license: yours to choose before you publish
---

# {card.name}

A small language model trained with roundround: a Llama-type decoder with `pe={choices.get("pe")}` as positional
encoding and `softmax={choices.get("softmax")}` in its attention.

{STOCK if stock else OWN_CODE + required(needs)}
{usage(stock)}
The tokenizer adds no token by itself. Documents were joined by one end-of-document token, which is both `bos` and `eos`
here, so a text that starts afresh begins with `tokenizer.bos_token_id`.

| | |
|---|---|
{rows}
"""


STOCK = "It is a stock `LlamaForCausalLM`; no code from this folder is needed."
OWN_CODE = (
    "Llama's own code would compute something else, so the folder carries the model's source files:\n"
    "`modeling_roundround.py` and the small files that it imports. Read them before you trust them. There is no cache\n"
    "of keys and values, so each new token costs a pass over all tokens before it."
)


def required(needs: list[str]) -> str:
    return f"\nBeside torch and transformers it needs: pip install {' '.join(needs)}." if needs else ""


def usage(stock: bool) -> str:
    trust = "" if stock else ", trust_remote_code=True"
    return f"""
```python
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(folder{trust})
model = AutoModelForCausalLM.from_pretrained(folder{trust})
tokens = tokenizer("Once upon a time", return_tensors="pt")
print(tokenizer.decode(model.generate(**tokens, max_new_tokens=50)[0]))
```
"""


def facts(card: Card, decoder: Decoder) -> dict[str, str]:
    """The rows of the card's table."""
    manifest, shape = card.manifest, decoder.encoding.shape
    data, choices = manifest["data"], manifest.get("choices", {})
    measured = "not measured at this step"
    if card.perplexity is not None:
        measured = f"{card.perplexity:.3f} ({card.nats_per_token:.4f} nats per token)"
    return {
        "parameters": f"{n_parameters(decoder):,}",
        "layers, width, heads, key heads": f"{len(decoder.layers)}, {shape.d_model}, {shape.n_heads}, "
        f"{shape.n_key_heads}",
        "training context length": f"{shape.train_length:,} tokens",
        "steps": f"{card.step:,} (checkpoint {card.checkpoint})",
        "held-out perplexity": measured,
        "positional encoding": with_arguments(choices.get("pe"), manifest["config"]["pe"]),
        "softmax": with_arguments(choices.get("softmax"), manifest["config"]["softmax"]),
        "data": f"{choices.get('data')}, {data['training_tokens']:,} training tokens",
        "corpus": str(data["corpus_hash"])[:16],
        "vocabulary": f"{data['n_vocab']:,}",
        "seed": str(manifest["seed"]),
        "command": f"`{manifest['command']}`",
        "roundround": str(manifest["roundround"]),
    }


def with_arguments(choice: str | None, node: dict[str, Any]) -> str:
    """An option and its numbers, such as `p_rope (p=0.75, theta=10000.0)`."""
    numbers = ", ".join(f"{name}={value}" for name, value in node.items() if name != "_target_")
    return f"{choice} ({numbers})" if numbers else str(choice)
