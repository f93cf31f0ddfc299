"""Answers to length tests: a pretrained model's losses against transformers, what is written against RULER's rule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import STORIES, Done, assert_refused, typed
from transformers import AutoModelForCausalLM, AutoTokenizer

from roundround.asking.generation import AnsweringPretrained, DecoderWriter, PretrainedWriter, score_written
from roundround.config.build import build
from roundround.config.options import load_option
from roundround.data.tasks.base import Example, Examples, Task
from roundround.data.tasks.batches import same_length_batches
from roundround.data.tasks.length_tests import LengthTest
from roundround.hf.load import ProbedHuggingFaceModel
from roundround.hf.patching.patch import Patch
from roundround.model.scoring import score_answers
from roundround.trained.models import build_decoder

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def stories() -> Any:
    return AutoModelForCausalLM.from_pretrained(STORIES)


@pytest.fixture
def probed(stories: Any) -> Any:
    with Patch(stories):
        yield ProbedHuggingFaceModel("stories", stories, AutoTokenizer.from_pretrained(STORIES))


@pytest.fixture
def needle(probed: ProbedHuggingFaceModel) -> LengthTest:
    task = build(load_option("data", "needle"), Task)
    assert isinstance(task, LengthTest)
    return task.with_vocabulary(probed.vocabulary())


def continued(stories: Any, prompt: str, n: int) -> Example:
    """A prompt, and as its answer what the model writes: right from its first token to its last."""
    ids = AutoTokenizer.from_pretrained(STORIES)(prompt, return_tensors="pt").input_ids
    with torch.no_grad():
        tokens = stories.generate(ids, max_new_tokens=n, do_sample=False, pad_token_id=0)[0].numpy()
    return Example(tokens, np.arange(len(tokens)) >= ids.shape[1])


def test_losses_are_those_of_transformers(stories: Any) -> None:
    """Of answers that the model gives and of one with a wrong token in it, in one batch."""
    right = continued(stories, "The dog was", 9)
    wrong = Example(right.tokens.copy(), right.scored)
    wrong.tokens[-3] = 17
    with torch.no_grad():
        expected = [
            F.cross_entropy(
                stories(torch.from_numpy(e.tokens)[None]).logits[0, :-1][e.scored[1:]].double(),
                torch.from_numpy(e.tokens[e.scored]),
            )
            for e in (right, wrong)
        ]
    with Patch(stories):
        probed = ProbedHuggingFaceModel("stories", stories, AutoTokenizer.from_pretrained(STORIES))
        answering = AnsweringPretrained(probed)
        one, both = (
            score_answers(answering, same_length_batches([(e, 1) for e in some], 64), device=CPU)
            for some in ([right], [right, wrong])
        )
    assert one.values() == pytest.approx(
        {"exact_match": 1.0, "token_accuracy": 1.0, "nats_per_token": float(expected[0])}, rel=1e-5
    )
    assert both["exact"] == 1
    assert 9 < both["hits"] < 18
    assert both.values()["nats_per_token"] == pytest.approx(float(sum(expected)) / 2, rel=1e-5)


def test_what_is_written_is_scored_by_rulers_rule(
    stories: Any, probed: ProbedHuggingFaceModel, needle: LengthTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against transformers' own generation, 128 tokens long, and the rule written out."""
    examples = [Examples(needle, seed=0, split="test", length=200)[i] for i in range(3)]
    prompts = [torch.from_numpy(e.tokens[None, : int(e.scored.argmax())]) for e in examples]
    with torch.no_grad():
        texts = [
            AutoTokenizer.from_pretrained(STORIES).decode(
                stories.generate(p, max_new_tokens=128, do_sample=False, pad_token_id=0)[0, p.shape[1] :],
                skip_special_tokens=True,
            )
            for p in prompts
        ]
    words = [word for text in texts for word in text.split()[2:40:9]]
    references = [words[0], words[-1].upper(), "never-written", words[3]]
    monkeypatch.setattr(LengthTest, "references", lambda self, answer: references)
    scores = score_written(PretrainedWriter(probed), needle, [(e, 1) for e in examples])
    shares = [sum(r.lower() in text.lower() for r in references) / len(references) for text in texts]
    assert 0 < float(np.mean(shares)) < 1, "both kinds have been seen"
    assert scores.values() == pytest.approx({"exact_match": 0.0, "string_match": float(np.mean(shares))})


def test_a_passkey_costs_as_much_and_is_found_where_its_digits_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a decoder of this project writes of itself is right, and with another last digit wrong."""
    task, read = build(load_option("data", "passkey"), Task), []
    torch.manual_seed(0)
    sizes = load_option("model", "tiny", d_model=16, n_layers=1, n_heads=2, n_key_heads=1)
    vocabulary = task.vocabulary()
    decoder = build_decoder(sizes, load_option("pe", "rope"), load_option("softmax", "softmax"), vocabulary.size).eval()
    writer, hidden = DecoderWriter("small", decoder, vocabulary), decoder.hidden
    writer.ends = set()
    drawn = Examples(task, seed=0, split="test", length=90)[0]
    tokens = torch.from_numpy(drawn.tokens[:85])[None]
    with torch.no_grad():
        for _ in range(5):
            tokens = torch.cat([tokens, decoder(tokens)[:, -1:].argmax(-1)], 1)
    monkeypatch.setattr(decoder, "hidden", lambda x, **options: read.append(x.shape[1]) or hidden(x, **options))
    right = Example(tokens[0].numpy(), drawn.scored)
    assert score_written(writer, task, [(right, 1)]).values() == {"exact_match": 1.0, "string_match": 1.0}
    assert read == [85, 1, 1, 1, 1]
    wrong = Example(np.append(right.tokens[:-1], (right.tokens[-1] + 1) % vocabulary.size), drawn.scored)
    assert score_written(writer, task, [(wrong, 1)]).values() == {"exact_match": 0.0, "string_match": 0.0}


def test_a_pretrained_model_is_asked_at_each_length_and_depth(here: Path) -> None:
    words = ["eval", "model=stories260k", "data=needle", "length=120,160", "examples=5", "logger=none", "device=cpu"]
    for more in ([], ["by=generation"]):
        done = typed(*words, *more)
        assert done.code == 0, done.err
        found = [r for r in done.results if r["metric"] == "exact_match"]
        assert [(r["length"], r["examples"], r["distinct"]) for r in found if "depth" not in r] == [
            (120, 5, 5),
            (160, 5, 5),
        ]
        parts = [(r["depth"], r["length"], r["examples"]) for r in found if "depth" in r]
        assert parts == [(depth, length, 1) for depth in (0, 0.25, 0.5, 0.75, 1) for length in (120, 160)]
        assert all(r["low"] <= r["value"] <= r["high"] for r in found)
        assert "exact match by depth" in done.err
        assert (done.directory / "figures" / "accuracy.svg").exists()
        metrics = {r["metric"] for r in done.results}
        assert ("string_match" in metrics) == bool(more) == ("nats_per_token" not in metrics)
    assert typed("report", str(done.directory)).code == 0
    assert "Exact match by depth" in (done.directory / "report.html").read_text()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["data=copy"], "data=copy has symbols of its own, which a pretrained model does not know"),
        (["data=needle", "length=20"], "20 tokens are too few for an example of this test"),
        (["data=needle", "data.haystack=hay"], "haystack is 'hay'"),
        (["data=needle", "stride=4"], "stride= is for text, and this is a task"),
        (["by=generation"], "by= is for a task, and"),
        (["examples=3"], "examples= is for a task, and"),
    ],
)
def test_what_a_pretrained_model_is_not_asked(here: Path, words: list[str], says: str) -> None:
    assert_refused(typed("eval", "model=stories260k", "logger=none", "device=cpu", *words), says)


def test_a_run_on_text_is_asked_and_a_run_learns_it(train: Any, here: Path) -> None:
    """What was trained on text is asked in its own tokens; a run can also be trained on a length test."""
    asked = ["logger=none", "length=500", "examples=1", "data=variable_tracking"]
    run: Done = train()
    done = typed("eval", f"run={run.directory}", *asked, "by=generation")
    assert done.code == 0, done.err
    assert done.results[0]["data"] == "variable_tracking"
    assert "Lengths in training: 32 to 32" in done.err
    words = ["data=needle", "data.train_lengths=[220,240]", "data.validation_examples=4", "tokenizer.vocab_size=400"]
    learnt = typed("train", *SMALL, *words)
    assert learnt.code == 0, learnt.err
    assert learnt.manifest["config"]["model"]["train_length"] == 240
    done = typed("eval", f"run={learnt.directory}", "logger=none", "examples=5")
    assert done.code == 0, done.err
    assert {r["length"] for r in done.results} == {240, 480, 960}


SMALL = [
    *("logger=none", "model.d_model=16", "model.n_layers=1", "model.n_heads=2", "model.n_key_heads=1"),
    *("model.d_mlp=24", "batch_size=4", "trainer.max_steps=2", "trainer.accelerator=cpu", "trainer.devices=1"),
    *("validate_every=2", "checkpoint_every=2"),
]
