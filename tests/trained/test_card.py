"""The model card of a run of somebody else's: its strings are shown, and mean nothing to Markdown, HTML or YAML."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import yaml
from helpers_export import CARD, MANIFEST, SMALL
from omegaconf import OmegaConf

from roundround.config.options import load_option
from roundround.model.decoder import Decoder
from roundround.trained.export.card import model_card
from roundround.trained.models import build_decoder

HOSTILE = [
    "<script>alert(1)</script>\x1b[31m",
    "[link](http://evil.example)",
    "a | b\n\n# heading",
    "`code` ``more``",
    "]\nlicense: mit\ntags: [x",
    "",
]


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    model = OmegaConf.merge(load_option("model", "tiny"), SMALL)
    return build_decoder(model, load_option("pe", "rope"), load_option("softmax", "softmax"), n_vocab=257)  # type: ignore[arg-type]


def card_with(text: str, decoder: Decoder) -> str:
    manifest = {
        **MANIFEST,
        "roundround": text,
        "command": text,
        "choices": {"pe": text, "softmax": text, "data": text},
        "config": {"pe": {"_target_": text, text: text}, "softmax": {"_target_": text, "k": [text]}},
        "data": {**MANIFEST["data"], "corpus_hash": text},
    }
    return model_card(replace(CARD, manifest=manifest), decoder, stock="LlamaForCausalLM", needs=[])


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_what_comes_from_a_run_leads_nowhere(text: str, decoder: Decoder) -> None:
    card = card_with(text, decoder)
    _, head, body = card.split("---\n", 2)
    assert yaml.safe_load(head)["tags"][0] == "roundround"
    assert yaml.safe_load(head).keys() == {"library_name", "pipeline_tag", "tags"}
    assert all(line.isprintable() for line in card.split("\n"))
    prose = body.split("```python")[0] + body.split("```")[2]
    outside_of_code = re.sub(r"`[^`\n]*`", "", prose)
    for mark in ("<", "`", "](", "http", "www.", "&lt;img"):
        assert mark not in outside_of_code, outside_of_code
    assert not re.search(r"<\w", card)
    assert "http" not in head
    table = [line for line in prose.split("\n") if line.startswith("|")]
    assert {line.count("|") for line in table} == {3}
    assert len(table) == 15
    assert [line for line in prose.split("\n") if line.startswith("#")] == [prose.strip().split("\n")[0]]


def test_a_step_that_was_not_measured_has_no_perplexity(decoder: Decoder) -> None:
    measured = {"step": 2, "nats_per_token": 1.0}
    for state in ({"step": 4}, {"step": 4, "best": measured, "validated": measured}):
        text = model_card(replace(CARD, state=state), decoder, stock=None, needs=[])
        assert "| held-out perplexity | not measured at this step |" in text
