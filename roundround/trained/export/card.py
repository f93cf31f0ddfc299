"""The model card of an exported folder: what the run knows about the model, and how to load it.

The run may be somebody else's, and a card is shown as a web page: `code` escapes every text from the run.

Tested by tests/trained/test_card.py.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from roundround.model.decoder import Decoder, n_parameters
from roundround.model.gated_deltanet import GatedDeltaNet
from roundround.model.scoring import perplexity
from roundround.support.errors import escaped
from roundround.trained.patterns import layer_lines

AS_IN_HTML = str.maketrans({"`": "&#96;", "|": "&#124;", "<": "&lt;", ">": "&gt;"})


@dataclass(frozen=True, kw_only=True)
class Card:
    """The facts that a model card needs besides the decoder.

    name: the name of the exported folder. manifest: the content of the run's run.json. checkpoint: the name of the
    checkpoint. state: the numbers that the checkpoint stores, such as its step.
    """

    name: str
    manifest: dict[str, Any]
    checkpoint: str
    state: dict[str, Any]

    @property
    def of_a_task(self) -> bool:
        return "train_examples" in self.manifest["data"]


def model_card(card: Card, decoder: Decoder, *, stock: str | None, needs: list[str]) -> str:
    """The text of README.md. The licence is left to whoever publishes the model.

    stock: the class of transformers that loads the folder; None if the folder has code of its own. needs: the packages
    that this code imports besides torch and transformers.
    """
    choices = card.manifest.get("choices", {})
    names = [name for part in ("pe", "softmax") if (name := str(choices.get(part) or "")).isidentifier()]
    rows = "\n".join(f"| {name} | {value} |" for name, value in facts(card, decoder).items())
    packs = stock is not None and not any(isinstance(module, GatedDeltaNet) for module in decoder.modules())
    trust = "" if stock else ", trust_remote_code=True"
    prompt = "a question of the task" if card.of_a_task else "Once upon a time"
    required = f"\nBeside torch and transformers it needs: pip install {' '.join(needs)}." if needs else ""
    return f"""---
library_name: transformers
pipeline_tag: text-generation
tags: {json.dumps(["roundround", *names])}
# license: yours to choose before you publish
---

# {card.name}

A small language model trained with roundround: a Llama-type decoder with {code(f"pe={choices.get('pe')}")} as
positional encoding and {code(f"softmax={choices.get('softmax')}")} in its attention.

{STOCK.format(stock) if stock else OWN_CODE + required}

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(folder{trust})
model = AutoModelForCausalLM.from_pretrained(folder{trust})
tokens = tokenizer("{prompt}", return_tensors="pt")
print(tokenizer.decode(model.generate(**tokens, max_new_tokens=50)[0]))
```

{about_texts(card, packs=packs)}

| | |
|---|---|
{rows}
"""


STOCK = "It is a stock `{}`; no code from this folder is needed."
OWN_CODE = (
    "No class of transformers computes it, so the folder carries the model's source files:\n"
    "`modeling_roundround.py` and the small files that it imports. Read them before you trust them. `generate`\n"
    "takes the dynamic cache of transformers (its default), beam search and batches that are padded on the left."
)


def about_texts(card: Card, *, packs: bool) -> str:
    """How to write a text for the model. packs: whether transformers can keep the documents of a row apart."""
    alone = "The tokenizer adds no token by itself."
    if card.of_a_task:
        return f"{alone} The model answers questions of one task. In training each question followed the `bos` token."
    if not card.manifest["data"].get("separate_documents"):
        return (
            f"{alone} Documents were joined by one end-of-document token, which is both `bos`\n"
            "and `eos` here, so a text that starts afresh begins with `tokenizer.bos_token_id`."
        )
    packed = (
        "In transformers several documents in one row see each other, unless you\n"
        "give `position_ids` that begin at 0 in each document, `use_cache=False` and no `attention_mask`\n"
        "(see `DataCollatorWithFlattening`)."
    )
    return (
        f"{alone} In training documents in one window did not see each other, positions began at 0 in each, and\n"
        "nothing stood before a document (`separate_documents` in config.json). Give it one document a row.\n"
    ) + (packed if packs else "")


def facts(card: Card, decoder: Decoder) -> dict[str, str]:
    """The rows of the card's table; measured numbers are those at the checkpoint's own step."""
    manifest, shape, state = card.manifest, decoder.encoding.shape, card.state
    data, choices, config = manifest["data"], manifest.get("choices", {}), manifest["config"]
    known = [state[name] for name in ("best", "validated") if name in state]
    found = next((measured for measured in known if measured["step"] == state["step"]), None)
    if not card.of_a_task:
        numbers, what = "{perplexity:.3f} ({nats_per_token:.4f} nats per token)", "held-out perplexity"
        found = found and {**found, "perplexity": perplexity(found["nats_per_token"])}
        learnt = {"data": f"{code(str(choices.get('data')))}, {data['training_tokens']:,} training tokens"}
    else:
        numbers = (
            "{exact_match:.3f} (token accuracy {token_accuracy:.3f}, loss {nats_per_token:.4f} nats per scored token)"
        )
        what = "exact match on validation examples"
        learnt = {"task": code(with_arguments(choices.get("data"), config["data"]))}
    drawn = "; measured at random positions, here at consecutive positions" if decoder.draws_positions else ""
    return {
        "parameters": f"{n_parameters(decoder):,}",
        "layers, width, heads, key heads": f"{len(decoder.layers)}, {shape.d_model}, {shape.n_heads}, "
        f"{shape.n_key_heads}",
        "training context length": f"{shape.train_length:,} tokens",
        "steps": f"{state['step']:,} (checkpoint {card.checkpoint})",
        what: numbers.format(**found) if found else "not measured at this step",
        **learnt,
        "positional encoding": code(with_arguments(choices.get("pe"), config["pe"])) + drawn,
        "softmax": code(with_arguments(choices.get("softmax"), config["softmax"])),
        **({"layers": code("; ".join(layer_lines(decoder)))} if len(set(decoder.kinds)) > 1 else {}),
        "corpus": code(data["corpus_hash"][:16]),
        "vocabulary": f"{data['n_vocab']:,}",
        "seed": str(manifest["seed"]),
        "command": code(manifest["command"]),
        "roundround": code(manifest["roundround"]),
    }


def with_arguments(choice: str | None, node: dict[str, Any] | None) -> str:
    """An option and its numbers, such as `p_rope (p=0.75, theta=10000.0)`.

    node: the option's part of the config; None if each kind of layer has its own option.
    """
    if node is None:
        return "each kind of layer has its own"
    numbers = ", ".join(f"{name}={value}" for name, value in node.items() if name != "_target_" and value is not None)
    return f"{choice} ({numbers})" if numbers else str(choice)


def code(text: str) -> str:
    """Text as inline code of one line. The text cannot end the code or a table's cell, and cannot become HTML.

    Control characters are escaped as in Python. A backtick, a bar, < and > become HTML entities, because no other
    escape works for code inside a table. A page shows the entity, such as &lt;, instead of the character.
    """
    return f"`{escaped(text).translate(AS_IN_HTML) or ' '}`"
