"""The model card of an exported folder: what the run knows about the model, and how to load it.

The run may be somebody else's, and a card is shown as a web page: what comes from the run passes `shown` or `code`.

Tested by tests/trained/test_card.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from roundround.model.decoder import Decoder, n_parameters
from roundround.model.scoring import perplexity
from roundround.support.errors import escaped
from roundround.trained.patterns import layer_lines

NOT_MEASURED = "not measured at this step"
LONGEST = 2000  # characters of a command, or of anything else, that are shown
AS_IN_HTML = str.maketrans({"`": "&#96;", "|": "&#124;", "<": "&lt;", ">": "&gt;"})


@dataclass(frozen=True, kw_only=True)
class Question:
    """An example of the task that a run learns: what it is asked, the right answer, and its number of tokens.

    train_lengths: the shortest and the longest length in training. of_text: it is text, not the task's words.
    """

    prompt: str
    answer: str
    n_tokens: int
    train_lengths: tuple[int, int]
    of_text: bool = False


@dataclass(frozen=True, kw_only=True)
class Card:
    """What the card says that the decoder does not know.

    manifest: the run's run.json. checkpoint: its name. step: optimizer steps of the checkpoint. measured: what was
    measured on held-out data at that step, by name; empty where nothing was. question: of a run that learns a task,
    None where it is text.
    """

    name: str
    manifest: dict[str, Any]
    checkpoint: str
    step: int
    measured: Mapping[str, float]
    question: Question | None = None


def card_of(
    manifest: dict[str, Any], name: str, checkpoint: str, state: dict[str, Any], question: Question | None = None
) -> Card:
    """The content of the model card; the loss is the one measured at the checkpoint's own step."""
    known = [state[name] for name in ("best", "validated") if name in state]
    measured: dict[str, Any] = next((m for m in known if m["step"] == state["step"]), {})
    return Card(
        name=name, manifest=manifest, checkpoint=checkpoint, step=state["step"], measured=measured, question=question
    )


def model_card(card: Card, decoder: Decoder, *, stock: str | None, needs: list[str]) -> str:
    """The text of README.md. The licence is left to whoever publishes the model.

    `stock` is the class of transformers that it is, None where the folder has code of its own. `needs` are packages
    beside torch and transformers that this code imports.
    """
    choices = card.manifest.get("choices", {})
    names = [str(choices.get(name) or "") for name in ("pe", "softmax")]
    tags = ["roundround", *(name for name in names if re.fullmatch(r"[\w./-]{1,100}", name))]
    rows = "\n".join(f"| {name} | {value} |" for name, value in facts(card, decoder).items())
    separate = bool(card.manifest["data"].get("separate_documents"))
    has_mlps = any(".mlp." in name for name, _ in decoder.named_parameters())
    kind = "a Llama-type decoder" if has_mlps else "a Llama-type decoder without MLPs,"
    required = f"\nBeside torch and transformers it needs: pip install {' '.join(needs)}." if needs else ""
    return f"""---
library_name: transformers
pipeline_tag: text-generation
tags: {json.dumps(tags, ensure_ascii=False)}
# license: yours to choose before you publish
---

# {shown(card.name)}

A small language model trained with roundround: {kind} with {code(f"pe={choices.get('pe')}")} as
positional encoding and {code(f"softmax={choices.get('softmax')}")} in its attention.

{STOCK.format(stock) if stock else OWN_CODE + required}
{usage(card.question, stock=stock is not None)}
{about_texts(card.question, separate=separate, stock=stock is not None)}

| | |
|---|---|
{rows}
"""


OF_TEXT = (
    "The tokenizer adds no token by itself. Documents were joined by one end-of-document token, which is both `bos`\n"
    "and `eos` here, so a text that starts afresh begins with `tokenizer.bos_token_id`."
)
OF_DOCUMENTS = (
    "The tokenizer adds no token by itself. In training documents in one window did not see each other: attention was\n"
    "masked at their ends, positions began at 0 in each, and nothing stood before a document (`separate_documents` in\n"
    "config.json). One document a row, as `generate` reads it, is what the model knows."
)
PACKED_STOCK = (
    "Several documents in one row see each other in transformers, which does not read that key, unless they are told\n"
    "apart: give `position_ids` that begin at 0 in each document, `use_cache=False` and no `attention_mask`\n"
    "(`DataCollatorWithFlattening` makes such `position_ids`)."
)
PACKED_OWN = "Give it one document a row: the code of this folder lets all tokens of a row see each other."
OF_A_TASK = (
    "It answers questions of one task. The tokenizer adds no token by itself, and its words have spaces between them:\n"
    "a question is written out as above, its `bos` token first."
)
OF_A_TEXT_TASK = (
    "It answers questions of one task. The tokenizer adds no token by itself, and in training each question stood\n"
    "behind the token that ends a document, or the one that its tokenizer puts first."
)
STOCK = "It is a stock `{}`; no code from this folder is needed."
OWN_CODE = (
    "No class of transformers computes it, so the folder carries the model's source files:\n"
    "`modeling_roundround.py` and the small files that it imports. Read them before you trust them. `generate`\n"
    "takes the dynamic cache of transformers (its default), beam search and batches that are padded on the left."
)


def about_texts(question: Question | None, *, separate: bool, stock: bool) -> str:
    """How a text is written."""
    if question is None:
        return f"{OF_DOCUMENTS}\n{PACKED_STOCK if stock else PACKED_OWN}" if separate else OF_TEXT
    return OF_A_TEXT_TASK if question.of_text else OF_A_TASK


def usage(question: Question | None, *, stock: bool) -> str:
    trust = "" if stock else ", trust_remote_code=True"
    prompt, n_tokens = ("Once upon a time", 50) if question is None else (question.prompt, question.n_tokens)
    answer = "" if question is None else f"  # right: {escaped(question.answer)}"
    begins = question is not None and question.of_text  # with a token that the tokenizer does not put there
    first = "import torch\n" if begins else ""
    as_tensor = "" if begins else ', return_tensors="pt"'
    given = "torch.tensor([[tokenizer.bos_token_id, *tokens.input_ids]])" if begins else "**tokens"
    return f"""
```python
{first}from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(folder{trust})
model = AutoModelForCausalLM.from_pretrained(folder{trust})
tokens = tokenizer({json.dumps(prompt)}{as_tensor})
print(tokenizer.decode(model.generate({given}, max_new_tokens={n_tokens})[0])){answer}
```
"""


def facts(card: Card, decoder: Decoder) -> dict[str, str]:
    """The rows of the card's table."""
    manifest, shape = card.manifest, decoder.encoding.shape
    data, choices = manifest["data"], manifest.get("choices", {})
    return {
        "parameters": f"{n_parameters(decoder):,}",
        "layers, width, heads, key heads": f"{len(decoder.layers)}, {shape.d_model}, {shape.n_heads}, "
        f"{shape.n_key_heads}",
        "training context length": f"{shape.train_length:,} tokens",
        "steps": f"{card.step:,} (checkpoint {card.checkpoint})",
        **measured_and_learnt(card, data),
        "positional encoding": shown(with_arguments(choices.get("pe"), manifest["config"]["pe"]))
        + ("; measured at drawn positions, here at consecutive positions" if decoder.draws_positions else ""),
        "softmax": shown(with_arguments(choices.get("softmax"), manifest["config"]["softmax"])),
        **({"layers": shown("; ".join(layer_lines(decoder)))} if len(set(decoder.kinds)) > 1 else {}),
        "corpus": shown(data["corpus_hash"][:16]),
        "vocabulary": f"{data['n_vocab']:,}",
        "seed": str(manifest["seed"]),
        "command": code(manifest["command"]),
        "roundround": shown(manifest["roundround"]),
    }


def measured_and_learnt(card: Card, data: dict[str, Any]) -> dict[str, str]:
    """What was measured at the step of the checkpoint, and of what data."""
    found, choice = card.measured, card.manifest.get("choices", {}).get("data")
    if card.question is None:
        what, learnt = "held-out perplexity", f"{shown(str(choice))}, {data['training_tokens']:,} training tokens"
        numbers = "{:.3f} ({:.4f} nats per token)"
        values = [perplexity(found["nats_per_token"]), found["nats_per_token"]] if found else []
        return {what: numbers.format(*values) if values else NOT_MEASURED, "data": learnt}
    shortest, longest = card.question.train_lengths
    numbers = "{exact_match:.3f} (token accuracy {token_accuracy:.3f}, loss {nats_per_token:.4f} nats per scored token)"
    return {
        "exact match on validation examples": numbers.format(**found) if found else NOT_MEASURED,
        "task": shown(with_arguments(choice, card.manifest["config"]["data"])),
        "lengths in training": f"{shortest:,} to {longest:,}",
    }


def with_arguments(choice: str | None, node: dict[str, Any] | None) -> str:
    """An option and its numbers, such as `p_rope (p=0.75, theta=10000.0)`; None: each kind of layer has its own."""
    if node is None:
        return "of each kind of layer its own"
    numbers = ", ".join(f"{name}={value}" for name, value in node.items() if name != "_target_" and value is not None)
    return f"{choice} ({numbers})" if numbers else str(choice)


def shown(text: str) -> str:
    """Text as a page shows it: as it is where nothing in it means anything to Markdown or HTML, otherwise as code."""
    harmless = re.fullmatch(r"[\w .,=+()\[\]-]+", text) and "](" not in text and "www." not in text.lower()
    return text if harmless and len(text) <= LONGEST else code(text)


def code(text: str) -> str:
    """Text as inline code of one line, from which nothing leads out: not of the code, of a table's cell or into HTML.

    What a terminal would obey is written as Python escapes it. A backtick, a bar, < and > are written as in HTML, and
    a page shows that, because inside code there is no other way to keep a table whole.
    """
    text = escaped(text)
    short = text if len(text) <= LONGEST else f"{text[:LONGEST]} ..."
    return f"`{short.translate(AS_IN_HTML) or ' '}`"
