"""The cases of the suite: what they hold, that each mistake shows, and the verdicts on answers."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Done, assert_refused
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from roundround.engines.cases import Case, expectations, log_probs, prompt_of, read_case, rms, write_case
from roundround.engines.families import FAMILIES, N_BYTES, model_of
from roundround.engines.verdicts import AGREES, DIFFERS, MISTAKE, judge

QUICK = ("llama-yarn", "gemma3-linear", "llama4")  # the others are slow
CASES = [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in FAMILIES]
MISREAD = {"olmo3": "transformers 5.23 gives windowed layers its default base, and not that of the older form"}
SEEN = 0.05  # nats


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    folder = tmp_path_factory.mktemp("suite") / "llama-yarn"
    write_case("llama-yarn", folder)
    return read_case(folder)


@pytest.mark.parametrize("name", CASES)
def test_each_mistake_shows_and_no_two_look_alike(name: str) -> None:
    """Beyond what bfloat16 moves; those that do not show are named."""
    found, hidden = expectations(name, model_of(name), prompt_of(name))
    right, noise = found["right"], found["rounded/bfloat16"] - found["right"]
    mistakes = {key: x for key, x in found.items() if key.startswith("mistake/")}
    assert mistakes
    for key, x in mistakes.items():
        assert (x - right).abs().max() > SEEN + noise.abs().median(), key
    alike = [(a, b) for a, b in itertools.combinations(mistakes, 2) if rms(mistakes[a] - mistakes[b]) < rms(noise)]
    assert all("bfloat16" in a and "bfloat16" in b for a, b in alike), alike
    assert not {*hidden} & {key.removeprefix("mistake/") for key in mistakes}


@pytest.mark.parametrize("name", CASES)
def test_transformers_reads_both_forms_as_one_model(name: str, tmp_path: Path) -> None:
    write_case(name, tmp_path / name)
    case = read_case(tmp_path / name)
    assert sum(file.stat().st_size for file in case.forms[0].iterdir()) < 2e6
    for form in case.forms:
        model = AutoModelForCausalLM.from_pretrained(form, attn_implementation="eager").eval()
        verdict = judge(case, log_probs(model, case.ids))
        assert (verdict.kind == AGREES) == (form.name == "transformers5" or name not in MISREAD), verdict


def test_the_tokenizer_has_exactly_the_vocabulary_of_the_model(case: Case) -> None:
    tokenizer = AutoTokenizer.from_pretrained(case.forms[0])
    assert len(tokenizer) == json.loads((case.forms[0] / "config.json").read_text())["vocab_size"]
    text = "Où? 中\n"
    assert tokenizer.decode(tokenizer(text).input_ids) == text
    assert max(case.ids) < N_BYTES


def test_untouched_answers_agree_at_every_precision(case: Case) -> None:
    for precision, answers in {"float32": case.right, **case.rounded}.items():
        assert judge(case, answers, precision).kind == AGREES, precision


def test_a_mistake_is_named_through_the_rounding_of_an_engine(case: Case) -> None:
    """The rounding of another engine is as large as that of transformers, and independent of it."""
    generator = torch.Generator().manual_seed(0)
    for precision in ("bfloat16", "float16"):
        noise = rms(case.rounded[precision] - case.right) * torch.randn(len(case.right), generator=generator)
        assert judge(case, case.right + noise, precision).kind == AGREES
        for name, answers in case.mistakes.items():
            verdict = judge(case, answers + noise, precision)
            if "bfloat16" not in name:  # an engine in bfloat16 may round angles too
                assert (verdict.kind, verdict.words) == (MISTAKE, name)


def test_what_no_mistake_explains_differs_from_its_first_token_on(case: Case) -> None:
    answers = case.right.clone()
    answers[99:] -= 1
    verdict = judge(case, answers)
    assert verdict.kind == DIFFERS
    assert verdict.words.startswith("from token 100 on")
    assert verdict.difference == pytest.approx(1, abs=1e-6)


@pytest.fixture
def answered(case: Case, here: Path, roundround: Callable[..., Done]) -> Callable[[Any], Done]:
    """Judges the content of the file of answers to the case."""

    def judged(content: Any) -> Done:
        (here / "answers").mkdir(exist_ok=True)
        (here / "answers" / f"{case.name}.json").write_text(json.dumps(content))
        return roundround("check", f"suite={case.folder.parent}", "answers=answers")

    return judged


def test_answers_in_files_are_judged(case: Case, answered: Callable[[Any], Done]) -> None:
    done = answered([None, *case.right.tolist()])
    assert (done.code, done.results[0]["verdict"]) == (0, AGREES)
    done = answered({"log_probs": case.mistakes["the scaling is ignored"].tolist(), "sha256": case.sha256})
    assert (done.code, done.results[0]["words"]) == (1, "the scaling is ignored")


WRONG: list[tuple[Callable[[Tensor], Any], str]] = [
    (lambda right: right.tolist()[:-1], "has 318 numbers"),
    (lambda right: right.exp().tolist(), "holds probabilities"),
    (lambda right: (right / math.log(2)).tolist(), "base 2"),
    (lambda right: [math.nan, *right.tolist()[1:]], "is not a finite number"),
    (lambda right: "text", "must be a list of numbers"),
    (lambda right: {"log_probs": right.tolist(), "sha256": "0"}, "another prompt"),
    (lambda right: {"log_probs": right.tolist(), "precision": "int2"}, "precision is int2"),
]


@pytest.mark.parametrize(("change", "message"), WRONG, ids=[message for _, message in WRONG])
def test_wrong_answers_cost_one_line(
    case: Case, answered: Callable[[Any], Done], change: Callable[[Tensor], Any], message: str
) -> None:
    assert_refused(answered(change(case.right)), message)


def test_a_wrong_suite_costs_one_line(roundround: Callable[..., Done], case: Case, here: Path) -> None:
    assert_refused(roundround("check", "suite=lama", "to=c"), "did you mean 'llama'?")
    assert_refused(roundround("check", "suite=.", "engine=transformers"), "has no cases")
    assert_refused(roundround("check", f"suite={case.folder.parent}"), "give one of")
    assert_refused(roundround("check", f"suite={case.folder.parent}", "engine=mlx_lm"), "pip install")
    (here / "empty").mkdir()
    assert roundround("check", f"suite={case.folder.parent}", "answers=empty").code == 3


def test_transformers_answers_the_suite(roundround: Callable[..., Done], here: Path) -> None:
    assert roundround("check", "suite=llama,mistral", "to=c").code == 0
    done = roundround("check", "suite=c", "engine=transformers")
    assert (done.code, {r["verdict"] for r in done.results}, len(done.results)) == (0, {AGREES}, 4)
    for form in ("transformers5", "transformers4"):  # a changed config stands for an engine that misreads it
        path = here / "c" / "mistral" / form / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "sliding_window": 25}))
    done = roundround("check", "suite=c", "engine=transformers", "engine.attention=sdpa")
    assert done.code == 1
    assert "the window is one token too long" in done.out + done.err
