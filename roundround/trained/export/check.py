"""A script that `export` runs in a process of its own: it computes with an exported folder, without roundround.

python -I check.py FOLDER QUESTION.safetensors ANSWER.safetensors trust|stock

`trust` executes code of the folder; `stock` loads a class of transformers. The question file holds `tokens` [B, T],
the numbers `rows` [R] of the rows whose logits are wanted, and a text. The answer file gets `logits` [B, R, V] and, as
json, `facts` from the folder's tokenizer: the ids of the text, the id of the token that begins a document, and the id
of the token that ends a document.

Tested by tests/trained/test_export_command.py.
"""

from __future__ import annotations

import json
import sys

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer


@torch.no_grad()
def main(folder: str, question: str, answer: str, code: str) -> None:
    """Compute the answer and write it. An error that occurs while the folder is loaded is not caught."""
    sys.modules["roundround"] = None  # type: ignore[assignment]  # from here on importing it fails
    with safe_open(question, framework="pt") as file:
        tokens_BT, rows, text = file.get_tensor("tokens"), file.get_tensor("rows"), file.metadata()["text"]
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=code == "trust")
    logits_BRV = model(input_ids=tokens_BT, logits_to_keep=rows).logits
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=code == "trust")
    facts = {
        "ids": tokenizer(text).input_ids,
        "first_token": tokenizer.bos_token_id,
        "end_of_document": tokenizer.eos_token_id,
    }
    save_file({"logits": logits_BRV.contiguous()}, answer, metadata={"facts": json.dumps(facts)})


if __name__ == "__main__":
    main(*sys.argv[1:])
