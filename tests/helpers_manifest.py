"""The manifest of a run that never was, whole as `opened` writes it; a test changes what it is about."""

from __future__ import annotations

from typing import Any

CONFIG: dict[str, Any] = {
    "seed": 3,
    "model": {"_target_": "roundround.model.decoder.Decoder", "kind": "architecture", "train_length": 16},
    "pe": {"_target_": "roundround.pe.p_rope.PRoPE", "p": 0.75},
    "softmax": {"_target_": "roundround.softmax.softmax.Softmax"},
    "data": {"_target_": "roundround.data.local_texts.PyDoc"},
    "tokenizer": {"_target_": "roundround.data.tokenizers.Bytes"},
}
DATA = {
    "corpus_hash": "0" * 64,
    "tokenizer_hash": "1" * 64,
    "n_vocab": 257,
    "end_of_document": 256,
    "training_tokens": 100,
}


def a_manifest(**changes: Any) -> dict[str, Any]:
    """A finished run of train, with these fields in place of its own."""
    usual = {
        "roundround": "0.2.0",
        "verb": "train",
        "status": "done",
        "started": "2026-01-03T09:00:00.000000+00:00",
        "ended": None,
        "command": "roundround train",
        "overrides": [],
        "config": CONFIG,
        "seed": 3,
        "data": DATA,
        "variants": {},
        "facts": {},
        "headline": {},
        "wandb": None,
        "sweep": None,
        "choices": {"pe": "p_rope", "softmax": "softmax"},
    }
    return usual | changes
