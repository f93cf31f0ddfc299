"""The rotation that gives weights the lowest loss: a guess replaces the own one of a model, and the search finds it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Done, assert_refused
from helpers_hf import some_tokens, tiny
from transformers import AutoModelForCausalLM, BloomConfig, GPT2Config, MambaConfig

from roundround.asking import fitted_rotations as fitted
from roundround.asking.fitted_rotations import UNROTATED, Guess, declared_rotations, fitted_rotations, loss_of
from roundround.engines.cases import log_probs, prompt_of
from roundround.engines.families import model_of
from roundround.support.errors import NoVerdict, UserError
from roundround.support.packaged import model_path

ROTATING = ("llama", "llama-yarn", "gemma3-linear", "gemma4", "glm4", "smollm3", "cohere2", "qwen3_next", "deepseek_v3")


@pytest.mark.parametrize("name", ROTATING)
def test_the_declared_rotation_gives_the_loss_of_the_untouched_model(name: str) -> None:
    """Partial rotation, p-RoPE, factors, both pairings, layers without RoPE and one table for each kind of layers."""
    model, ids = model_of(name), prompt_of(name)[:200]
    own = -log_probs(model, ids)[-100:].mean()
    kinds, declared = declared_rotations(model)
    found = loss_of(model, kinds, declared, torch.tensor([ids]))
    assert float(found) == pytest.approx(float(own), abs=2e-4)
    kind = kinds[0]
    other = declared[kind]._replace(rope={**declared[kind].rope, "rope_theta": 500.0})
    assert abs(float(loss_of(model, kinds, {**declared, kind: other}, torch.tensor([ids]))) - float(own)) > 1e-3


def test_latent_attention_of_interleaved_channels_is_declared_so() -> None:
    model, texts = tiny("deepseek_v2"), some_tokens(2, 64)
    kinds, declared = declared_rotations(model)
    logits = model(texts, use_cache=False).logits[:, 31:-1]
    own = torch.nn.functional.cross_entropy(logits.mT, texts[:, 32:], reduction="none").mean(1)
    torch.testing.assert_close(loss_of(model, kinds, declared, texts), own, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["smollm3", "cohere2", "exaone4"])
def test_layers_without_rotation_can_be_asked_whether_they_want_one(name: str) -> None:
    model, texts = model_of(name), torch.tensor([prompt_of(name)[:200]])
    kinds, declared = declared_rotations(model)
    (unrotated,) = (kind for kind in declared if kind.endswith(UNROTATED))
    rotating = next(guess for kind, guess in declared.items() if kind != unrotated)
    with_rotation = loss_of(model, kinds, {**declared, unrotated: rotating}, texts)
    assert abs(float(with_rotation - loss_of(model, kinds, declared, texts))) > 1e-3


def test_layers_that_do_more_than_not_rotate_are_refused() -> None:
    with pytest.raises(UserError, match="cannot be replaced"):
        declared_rotations(model_of("llama4"))


@pytest.mark.parametrize("kind", [GPT2Config, BloomConfig, MambaConfig])
def test_a_model_without_rotation_is_refused(kind: Any) -> None:
    """GPT-2 has learnt positions, BLOOM a bias on logits, Mamba no attention."""
    model = AutoModelForCausalLM.from_config(kind(n_layer=1, hidden_size=32, n_head=2, vocab_size=9))
    with pytest.raises(UserError, match="has no rotary encoding"):
        declared_rotations(model)


@pytest.fixture
def shorter(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A text of random tokens for a search that is cut short."""
    monkeypatch.setattr(fitted, "ROUNDS", 1)
    return torch.randint(94, (fitted.TEXTS * 32,), generator=torch.Generator().manual_seed(0)).tolist()


def test_an_untrained_model_has_no_verdict(shorter: list[int]) -> None:
    with pytest.raises(NoVerdict, match="has not learnt this text"):
        fitted_rotations(model_of("llama"), shorter, length=32)


def test_a_model_whose_logits_are_no_numbers_has_no_verdict(shorter: list[int]) -> None:
    model = model_of("llama")
    model.get_output_embeddings().weight[0, 0] = torch.nan
    with pytest.raises(NoVerdict, match="its best loss is nan"):
        fitted_rotations(model, shorter, length=32)


def test_a_text_of_one_repeated_token_says_nothing(shorter: list[int]) -> None:
    with pytest.raises(NoVerdict, match="the text says nothing"):
        fitted_rotations(model_of("llama"), [7] * len(shorter), length=32)


def test_the_command_names_each_guess_that_cannot_be_told_apart(
    roundround: Callable[..., Done], shorter: list[int], text: Path
) -> None:
    """In whole lines, however many there are; the best guess of the table is the last word."""
    done = roundround("check", "model=stories260k", "weights=true", f"text={text}")
    alike = done.results[0]["alike"].split("; ")
    lines = [line.split("from the best: ")[1] for line in done.err.splitlines() if "no clear difference" in line]
    assert lines == alike
    assert len(alike) > 1


def test_a_guess_in_words() -> None:
    assert str(Guess({"rope_theta": 1e6, "rope_type": "default"}, "half-split")) == (
        "rope_theta=1e+06, rope_type=default, half-split"
    )
    assert str(Guess({"rope_type": "proportional", "partial_rotary_factor": 0.0}, "half-split")) == "no rotation"


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from roundround.probing.texts import texts_of

    file = tmp_path_factory.mktemp("text") / "text.txt"
    file.write_text("\n\n".join(texts_of("shakespeare")) * 9)
    return file


@pytest.mark.slow
def test_weights_contradict_a_wrong_base_and_agree_with_the_right_one(
    roundround: Callable[..., Done], here: Path, text: Path
) -> None:
    done = roundround("check", "model=stories260k", "weights=true", f"text={text}")
    assert (done.code, done.results[0]["verdict"]) == (0, "as declared")
    shutil.copytree(model_path("package:stories260k"), here / "wrong")
    config = here / "wrong" / "config.json"
    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0}}
    config.write_text(json.dumps(json.loads(config.read_text()) | rope))
    done = roundround("check", "model=hf", "model.path=wrong", "weights=true", f"text={text}")
    assert (done.code, done.results[0]["verdict"]) == (1, "differs")
    base = float(done.results[0]["best"].split(",")[0].removeprefix("rope_theta="))
    assert 5_000 < base < 20_000


def test_wrong_words_about_weights_cost_one_line(roundround: Callable[..., Done], here: Path) -> None:
    (here / "short.txt").write_text("Too short. " * 9)
    assert_refused(roundround("check", "model=stories260k", "weights=true"), "go together")
    assert_refused(roundround("check", "model=stories260k", "text=short.txt"), "go together")
    assert_refused(roundround("check", "pe=rope", "to=x", "weights=true", "text=short.txt"), "go together")
    assert_refused(roundround("check", "model=stories260k", "weights=true", "text=short.txt"), "are needed")


def test_the_first_token_is_put_in_front_where_it_lowers_the_loss() -> None:
    model = model_of("llama")
    kinds, declared = declared_rotations(model)
    texts_BT = torch.randint(94, (2, 32), generator=torch.Generator().manual_seed(0))
    assert torch.equal(fitted.begun_with(None, model, kinds, declared, texts_BT), texts_BT)
    begun = {first: fitted.begun_with(first, model, kinds, declared, texts_BT) for first in range(8)}
    plain = float(loss_of(model, kinds, declared, texts_BT).mean())
    for first, chosen_BT in begun.items():
        put_BT = texts_BT.clone()
        put_BT[:, 0] = first
        lower = float(loss_of(model, kinds, declared, put_BT).mean()) < plain
        assert torch.equal(chosen_BT, put_BT if lower else texts_BT)
    assert {torch.equal(chosen, texts_BT) for chosen in begun.values()} == {True, False}, "both happen"
