"""`roundround generate`: the text of transformers' own generation, the same for a seed, kept when it is stopped."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from conftest import STORIES, Done, assert_refused, typed
from helpers_hf import saved_llama
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
)

import roundround as rr
from roundround.asking import generation
from roundround.asking.generation import TextStream, next_tokens
from roundround.pe.rope import RoPE
from roundround.support.errors import Interrupted

PROMPT = "Once upon a time"
# of karpathy/tinyllamas stories260K, greedy, by transformers 5.23
GOLDEN = (
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. One day, she saw a "
    "big, red ball. She wanted to play with it, but it was too high.\nLily's mom said, \"Lily, let's go to the park.\""
)


def texts_of(done: Done) -> list[dict[str, Any]]:
    found = json.loads((done.directory / "texts.json").read_text())
    assert isinstance(found["texts"], list)
    return found["texts"]


def text_of(done: Done) -> str:
    (text,) = texts_of(done)
    return str(text["text"])


@pytest.fixture(scope="module")
def run(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run that has learnt a little, so that its text is no single letter."""
    from conftest import FAST

    folder = tmp_path_factory.mktemp("generate")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        words = ["trainer.max_steps=150", "optim.lr=0.03", "checkpoint_every=150", "validate_every=150"]
        done = typed("train", *FAST, "data=text", f"data.path={corpus}", *words)
        assert done.code == 0, done.err
        yield done.directory.absolute()


def test_greedy_text_is_the_golden_one(here: Path) -> None:
    done = typed("generate", "temperature=0", "length=90", "device=cpu")
    assert done.code == 0, done.err
    text = text_of(done)
    assert text.startswith(GOLDEN)
    assert done.out == f"{text}\n{done.directory}\n"
    assert "90 tokens in " in done.err
    assert [done.value("prompt_tokens"), done.value("tokens", text=1)] == [5, 90]
    assert done.value("tokens_per_second") > 0
    assert typed("report", str(done.directory)).code == 0
    assert "She loved to play outside in the park." in (done.directory / "report.html").read_text()


def test_greedy_text_is_transformers(here: Path) -> None:
    model, tokenizer = AutoModelForCausalLM.from_pretrained(STORIES), AutoTokenizer.from_pretrained(STORIES)
    prompt = "The dog was"
    ids = tokenizer(prompt, return_tensors="pt").input_ids
    expected = model.generate(ids, max_new_tokens=24, do_sample=False, pad_token_id=0)[0]
    done = typed("generate", f"prompt={prompt}", "temperature=0", "length=24", "device=cpu")
    assert text_of(done) == tokenizer.decode(expected, skip_special_tokens=True)


def test_text_beyond_the_original_length_of_longrope_is_transformers(tmp_path: Path) -> None:
    factors = {"short_factor": [1.0] * 6, "long_factor": [4.0] * 6}
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "factor": 4.0} | factors
    lengths = {"max_position_embeddings": 128, "original_max_position_embeddings": 32}
    folder = saved_llama(tmp_path / "phi", name="phi3", rope_parameters=rope, **lengths)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    ids = tokenizer("abcdefghijklmnopqrstuvw", return_tensors="pt").input_ids
    expected = model.generate(ids, max_new_tokens=60, do_sample=False, pad_token_id=0)[0]
    texts = rr.generate(model, tokenizer, "abcdefghijklmnopqrstuvw", length=60, temperature=0, n=2)
    assert texts == [tokenizer.decode(expected, skip_special_tokens=True)] * 2


@pytest.mark.usefixtures("checked_here")
def test_a_run_writes_what_its_export_writes(here: Path, run: Path) -> None:
    assert typed("export", f"run={run}", "to=model").code == 0
    words = ["prompt=The fox", "temperature=0", "length=30", "device=cpu"]
    own = typed("generate", f"run={run}", *words)
    assert own.code == 0, own.err
    model, tokenizer = AutoModelForCausalLM.from_pretrained("model"), AutoTokenizer.from_pretrained("model")
    ids = torch.tensor([[tokenizer.bos_token_id, *tokenizer("The fox").input_ids]])
    expected = model.generate(ids, max_new_tokens=30, do_sample=False)[0]
    assert text_of(own) == tokenizer.decode(expected, skip_special_tokens=True)
    assert len(text_of(own)) > len("The fox") + 10


def test_a_seed_decides_the_texts(here: Path, run: Path) -> None:
    words = ["generate", f"run={run}", "prompt=The", "length=20", "device=cpu", "top_k=40"]
    one, again, other = (texts_of(typed(*words, "n=3", f"seed={seed}")) for seed in (1, 1, 2))
    assert one == again
    assert one != other
    assert len({text["text"] for text in one}) == 3
    assert text_of(typed(*words, "seed=1")) == one[0]["text"], "the first text is the same however many there are"


def test_encoding_and_normaliser_are_replaced_at_inference(here: Path, run: Path) -> None:
    words = ["generate", f"run={run}", "prompt=The stork number", "length=60", "temperature=1", "device=cpu"]
    own, nope, sharp = (typed(*words, *more) for more in ([], ["pe=nope"], ["softmax=hard"]))
    assert [done.code for done in (own, nope, sharp)] == [0, 0, 0]
    assert len({text_of(done) for done in (own, nope, sharp)}) == 3
    assert nope.results[0]["pe"] == "nope"
    assert sharp.results[0]["softmax"] == "hard"


def test_what_is_typed_goes_on_with_the_text(here: Path, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the model writes behind it is what it writes to the whole text at once."""
    monkeypatch.setattr(sys, "stdin", io.StringIO(" and the crow\n"))
    words = ["generate", f"run={run}", "temperature=0", "length=6", "device=cpu"]
    first = text_of(typed(*words, "prompt=The fox"))
    whole = typed(*words, "prompt=The fox", "interactive=true")
    assert whole.code == 0, whole.err
    assert texts_of(whole)[0]["tokens"] <= 12, "what is typed is not written"
    assert text_of(whole) == text_of(typed(*words, f"prompt={first} and the crow"))


@pytest.mark.parametrize("stop", [Interrupted(2), KeyboardInterrupt()])
def test_what_is_written_is_kept(here: Path, monkeypatch: pytest.MonkeyPatch, stop: BaseException) -> None:
    calls = iter(range(100))
    chosen = generation.next_tokens

    def stopping(*args: Any, **options: Any) -> list[int]:
        if next(calls) == 12:
            raise stop
        return chosen(*args, **options)

    monkeypatch.setattr(generation, "next_tokens", stopping)
    done = typed("generate", "temperature=0", "device=cpu")
    assert done.code == 130
    (texts,) = Path("outputs/generate").glob("*/*/texts.json")
    kept = json.loads(texts.read_text())["texts"][0]
    assert kept["tokens"] == 12
    assert len(kept["text"]) > len(PROMPT)
    assert GOLDEN.startswith(kept["text"])
    assert json.loads((texts.parent / "run.json").read_text())["status"] == "interrupted"


def test_a_model_whose_logits_are_no_numbers_leaves_no_run(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        generation, "next_tokens", Mock(side_effect=ValueError("the model's logits are no finite numbers"))
    )
    done = typed("generate", "temperature=0", "device=cpu")
    assert (done.code, [path for path in Path("outputs").rglob("*") if path.is_file()]) == (2, [])
    assert "logits are no finite numbers" in done.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["temperature=-1"], "temperature=-1 must be a finite number, 0 or above"),
        (["prompt="], "prompt= is empty"),
        (["n=2", "interactive=true"], "interactive=true continues one text"),
        (["run=last", "model=stories260k"], "not both"),
        (["run=last"], "no finished train run"),
        (["model=tiny"], "which has no weights of its own"),
    ],
)
def test_wrong_options_are_one_line(here: Path, words: list[str], says: str) -> None:
    assert_refused(typed("generate", *words), says)


def test_a_task_takes_its_symbols_alone(roundround: Callable[..., Done]) -> None:
    from conftest import FAST

    of_text = ("tokenizer", "validation_tokens", "model.train_length")
    words = [word for word in FAST if not word.startswith(of_text)]
    run = roundround("train", *words, "data=copy")
    assert run.code == 0, run.err
    done = typed("generate", f"run={run.directory}", "prompt=hello")
    assert done.code == 2
    assert "the task has no symbol 'hello', which the prompt has" in done.err
    looked = typed("probe", f"run={run.directory}", "prompt='Once upon'", "logger=none", "device=cpu")
    assert looked.code == 2
    assert "the task has no symbol 'Once', which the prompt has" in looked.err


def test_an_encoding_that_cannot_be_cached_is_refused(here: Path, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RoPE, "prepare_layer", lambda *args: args[2], raising=False)
    done = typed("generate", f"run={run}", "prompt=The fox")
    assert_refused(
        done, "cannot write: RoPE cannot be used with a cache: its method prepare_layer reads the input of a layer"
    )


def test_a_prompt_that_spells_the_first_token_has_it_once(tmp_path: Path) -> None:
    folder = saved_llama(tmp_path / "model")
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    plain, spelt, twice = (rr.attention(model, tokenizer, text).tokens for text in ("a b", "<s>a b", "<s><s>a b"))
    assert plain == spelt == [1, *plain[1:]]
    assert twice == [1, *plain]


def test_layers_of_a_hybrid_keep_their_numbers(here: Path, tmp_path: Path) -> None:
    folder = saved_llama(tmp_path / "hybrid", name="lfm2", layer_types=["conv", "full_attention"] * 2)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    weights = rr.attention(model, tokenizer, "a fox")
    assert (len(weights), weights.numbers) == (2, [1, 3])
    assert torch.equal(weights[3], weights[-1])
    assert {axis.get_title().partition(".")[0] for axis in rr.plot(weights).axes} == {"1", "3"}
    assert "layer 3, head 1" in rr.plot(weights, "3.1").get_suptitle()
    with pytest.raises(IndexError, match=r"layer 0 of .* has no attention"):
        weights[0]


def test_only_the_likeliest_are_drawn() -> None:
    logits, generators = torch.tensor([[0.0, 3.0, 2.0, 1.0]]), [torch.Generator().manual_seed(0)]
    drawn = {next_tokens(logits, temperature=5.0, top_k=2, generators=generators)[0] for _ in range(60)}
    assert drawn == {1, 2}
    assert next_tokens(logits, temperature=0, top_k=None, generators=generators) == [1]
    with pytest.raises(ValueError, match="no finite numbers"):
        next_tokens(logits * torch.nan, temperature=1.0, top_k=None, generators=generators)


def test_a_temperature_divides_the_logits() -> None:
    """Shares of 4,000 draws within five standard deviations of softmax(logits / temperature)."""
    logits, generators, n = torch.tensor([[0.0, 1.0, 2.0]]), [torch.Generator().manual_seed(0)], 4000
    drawn = [next_tokens(logits, temperature=0.5, top_k=None, generators=generators)[0] for _ in range(n)]
    for token, expected in enumerate((2 * logits[0]).softmax(-1).tolist()):
        assert abs(drawn.count(token) / n - expected) < 5 * (expected * (1 - expected) / n) ** 0.5


class Bytes:
    """Decodes bytes as a tokenizer does."""

    def decode(self, tokens: list[int]) -> str:
        return bytes(tokens).decode(errors="replace")


def test_a_stream_shows_no_half_of_a_character() -> None:
    tokens = list("a\u20ac b".encode())
    stream = TextStream(Bytes(), tokens[:1])  # type: ignore[arg-type]
    assert [stream.add(token) for token in tokens[1:]] == ["", "", "\u20ac", " ", "b"]
