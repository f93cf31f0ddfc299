"""The cases of the suite: what they hold, that each mistake shows, and the verdicts on answers."""

from __future__ import annotations

import itertools
import json
import math
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Done, assert_refused
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from roundround.engines.cases import (
    WRONG,
    Case,
    expectations,
    hash_of,
    log_probs,
    prompt_of,
    read_case,
    rms,
    write_case,
)
from roundround.engines.families import FAMILIES, N_BYTES, config_of, model_of
from roundround.engines.mistakes import AND, ORDER, mistakes_of
from roundround.engines.readers.transformers import Transformers
from roundround.engines.verdicts import AGREES, DIFFERS, MISSING, MISTAKE, REFUSED, judge

QUICK = ("llama-yarn", "gemma3-order", "llama4")  # the others are slow
CASES = [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in FAMILIES]
MISREAD = {"olmo3": "transformers 5.23 gives windowed layers its default base, and not that of the older form"}
OTHER_SHAPES = ("qwen3_next", "mimo_v2_flash")  # layers of another kind have weights of other shapes
SEEN = 0.05  # nats


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    folder = tmp_path_factory.mktemp("suite") / "llama-yarn"
    write_case("llama-yarn", folder)
    return read_case(folder)


def part_of(case: Case, prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): x for name, x in case.expected.items() if name.startswith(prefix)}


@pytest.mark.parametrize("name", CASES)
def test_each_mistake_shows_and_no_two_look_alike(name: str) -> None:
    """Beyond what bfloat16 moves. Those that do not show are named apart; tables in bfloat16 may look alike."""
    found, hidden = expectations(name, model_of(name), prompt_of(name))
    right, noise = found["right"], found["rounded/bfloat16"] - found["right"]
    mistakes = {key.removeprefix(WRONG): x for key, x in found.items() if key.startswith(WRONG)}
    assert mistakes
    for key, x in mistakes.items():
        assert (x - right).abs().max() > SEEN + noise.abs().median(), key
    pairs = itertools.combinations(mistakes, 2)
    alike = [pair for pair in pairs if rms(mistakes[pair[0]] - mistakes[pair[1]]) < rms(noise)]
    assert all("bfloat16" in one and "bfloat16" in other for one, other in alike), alike
    assert not {*hidden} & mistakes.keys()
    assert "positions start at one, or count padding" in [*hidden, *mistakes]
    singles = {one for one in mistakes_of(config_of(name), model_of(name)) if AND not in one}
    assert singles - {*hidden, *mistakes} == ({ORDER} if name in OTHER_SHAPES else set())


def test_mistakes_that_look_alike_are_named_together(case: Case) -> None:
    one = "the scaling is ignored"
    twin = replace(case, expected={**case.expected, f"{WRONG}its twin": case.expected[WRONG + one] + 1e-4})
    assert judge(twin, case.expected[WRONG + one]).words == f"{one} or its twin"


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
    for precision, answers in {"float32": case.right, **part_of(case, "rounded/")}.items():
        assert judge(case, answers, precision).kind == AGREES, precision


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_another_way_to_compute_attention_agrees_at_every_precision(case: Case, precision: str, tmp_path: Path) -> None:
    """Rounding that the expectations do not have."""
    engine = Transformers(precision=precision, attention="sdpa")
    answers = torch.as_tensor(engine.log_probs(case.forms[0], case.ids, tmp_path))
    assert precision == "float32" or not torch.equal(answers, case.expected[f"rounded/{precision}"])
    assert judge(case, answers, precision).kind == AGREES


def test_a_mistake_is_named_through_the_rounding_of_an_engine(case: Case) -> None:
    """The rounding of another engine is as large as that of transformers, and independent of it."""
    generator = torch.Generator().manual_seed(0)
    for precision in ("bfloat16", "float16"):
        noise = rms(case.expected[f"rounded/{precision}"] - case.right) * torch.randn(
            len(case.right), generator=generator
        )
        assert judge(case, case.right + noise, precision).kind == AGREES
        for name, answers in part_of(case, WRONG).items():
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
        (here / "answers" / f"{case.folder.name}.json").write_text(json.dumps(content))
        return roundround("check", f"suite={case.folder.parent}", "answers=answers")

    return judged


def test_answers_in_files_are_judged(case: Case, answered: Callable[[Any], Done]) -> None:
    done = answered([None, *case.right.tolist()])
    assert (done.code, done.results[0]["verdict"]) == (0, AGREES)
    done = answered(
        {"log_probs": case.expected[f"{WRONG}the scaling is ignored"].tolist(), "sha256": hash_of(case.ids)}
    )
    assert (done.code, done.results[0]["words"]) == (1, "the scaling is ignored")


def test_files_that_no_case_has_are_named(case: Case, answered: Callable[[Any], Done], here: Path) -> None:
    (here / "answers").mkdir()
    (here / "answers" / "lama-yarn.json").write_text("[]")
    assert "no case has this name: lama-yarn.json" in answered(case.right.tolist()).err


BAD: list[tuple[Callable[[Tensor], Any], str]] = [
    (lambda right: right.tolist()[:-1], "has 318 numbers"),
    (lambda right: [*right.tolist()[:6], None, *right.tolist()[7:]], "has no finite number for token 7"),
    (lambda right: [*right.tolist()[:6], -(10**400), *right.tolist()[7:]], "has no finite number for token 7"),
    (lambda right: (right / math.log(10)).tolist(), "base 10"),
    (lambda right: {"log_probs": right.tolist(), "dtype": "float16"}, "the unknown key dtype"),
    (lambda right: right.exp().tolist(), "holds probabilities"),
    (lambda right: (right / math.log(2)).tolist(), "base 2"),
    (lambda right: [math.nan, *right.tolist()[1:]], "has no finite number"),
    (lambda right: "text", "must be a list of numbers"),
    (lambda right: {"log_probs": right.tolist(), "sha256": "0"}, "another prompt"),
    (lambda right: {"log_probs": right.tolist(), "precision": "int2"}, "precision is int2"),
]


@pytest.mark.parametrize(("change", "message"), BAD, ids=[message for _, message in BAD])
def test_wrong_answers_cost_one_line(
    case: Case, answered: Callable[[Any], Done], change: Callable[[Tensor], Any], message: str
) -> None:
    assert_refused(answered(change(case.right)), message)


def test_every_wrong_file_is_named_before_anything_is_judged(roundround: Callable[..., Done], case: Case) -> None:
    for name in ("one", "two", "three"):
        shutil.copytree(case.folder, Path("c", name))
    Path("answers").mkdir()
    Path("answers/one.json").write_text("[" * 100_000)
    Path("answers/two.json").write_text("[")
    Path("answers/three.json").write_text(json.dumps(case.right.tolist()))
    done = roundround("check", "suite=c", "answers=answers")
    assert_refused(done, "two.json", "(and 1 more, above)")
    assert "one.json" in done.err
    assert "three" not in done.err
    assert_refused(roundround("check", "suite=c", "answers="), "answers is empty")


def test_damaged_cases_are_named(roundround: Callable[..., Done], case: Case, here: Path) -> None:
    """A suite with one broken case, whatever is broken, is refused before an engine is asked."""
    weights = (case.forms[0] / "model.safetensors").read_bytes()
    prompt = json.loads((case.folder / "prompt.json").read_text())
    short = {"right": case.right[:-1]}
    about = {"format": "roundround case 1", "prompt": prompt["sha256"]}
    damages: list[Callable[[Path], Any]] = [
        lambda folder: (folder / "prompt.json").write_text(json.dumps(prompt["ids"])),
        lambda folder: (folder / "prompt.json").write_text("null"),
        lambda folder: save_file(short, folder / "expected.safetensors", metadata=about),
        lambda folder: (folder / "expected.safetensors").unlink(),
        lambda folder: [shutil.rmtree(form) for form in read_case(folder).forms],
        lambda folder: (folder / "transformers4" / "config.json").unlink(),
        lambda folder: (folder / "transformers5" / "model.safetensors").write_bytes(weights[:-9]),
    ]
    for n, damage in enumerate(damages):
        shutil.copytree(case.folder, here / "c" / f"number{n}")
        damage(here / "c" / f"number{n}")
    done = roundround("check", "suite=c", "engine=transformers")
    assert_refused(done, "is not a case of a suite", f"(and {len(damages) - 1} more, above)")
    assert all(f"number{n}" in done.err for n in range(len(damages)))


def test_missing_weights_are_a_fault_of_the_case(roundround: Callable[..., Done], case: Case, here: Path) -> None:
    shutil.copytree(case.folder, here / "c" / case.folder.name)
    file = here / "c" / case.folder.name / "transformers5" / "model.safetensors"
    renamed = {name.replace("q_proj", "query"): x for name, x in load_file(file).items()}
    save_file(renamed, file, metadata={"format": "pt"})
    assert_refused(roundround("check", "suite=c", "engine=transformers"), "is not a case of a suite")


def test_a_folder_that_cannot_be_made_is_refused_before_the_work(roundround: Callable[..., Done], here: Path) -> None:
    (here / "file").write_text("")
    assert_refused(roundround("check", "suite=llama", "to=file"), "is there already")
    assert_refused(roundround("check", "suite=llama", "to=file/c"), "cannot be made")
    assert_refused(roundround("check", "suite=llama", "to=none/c"), "No such file")


def test_options_without_effect_on_a_suite_are_refused(roundround: Callable[..., Done], case: Case) -> None:
    for option in ("device=cpu", "trust=true"):
        command = ("check", f"suite={case.folder.parent}", "engine=transformers", option)
        assert_refused(roundround(*command), f"{option.split('=')[0]}= has no effect")


def test_a_wrong_suite_costs_one_line(roundround: Callable[..., Done], case: Case, here: Path) -> None:
    assert_refused(roundround("check", "suite=all,lama", "to=c"), "did you mean 'llama'?")
    assert_refused(roundround("check", "suite=.", "engine=transformers"), "has no cases")
    done = roundround("check", f"suite={case.folder}", "engine=transformers")
    assert_refused(done, f"is a case; give suite={case.folder.parent}")
    assert_refused(roundround("check", f"suite={case.folder.parent}"), "suite=; give suite=all with to=DIR")
    given = ("engine=transformers", "engine.attention=spda")
    assert_refused(roundround("check", f"suite={case.folder.parent}", *given), "engine.attention=spda")
    for engine in ("mlx_lm", "ctranslate2", "onnxruntime_genai"):
        assert_refused(roundround("check", f"suite={case.folder.parent}", f"engine={engine}"), "pip install")
    given = ("engine=transformers", "engine.precision=float8")
    assert_refused(roundround("check", f"suite={case.folder.parent}", *given), "engine.precision=float8 must be one of")
    given = ("engine=llama_cpp", "engine.source=none")
    assert_refused(roundround("check", f"suite={case.folder.parent}", *given), "convert_hf_to_gguf.py")
    (here / "empty").mkdir()
    assert roundround("check", f"suite={case.folder.parent}", "answers=empty").code == 3


def test_transformers_answers_the_suite(roundround: Callable[..., Done], here: Path) -> None:
    assert roundround("check", "suite=llama,mistral,llama", "to=c").code == 0
    done = roundround("check", "suite=c", "engine=transformers")
    assert (done.code, {r["verdict"] for r in done.results}, len(done.results)) == (0, {AGREES}, 4)
    for form in ("transformers5", "transformers4"):  # a changed config stands for an engine that misreads it
        path = here / "c" / "mistral" / form / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "sliding_window": 25}))
    done = roundround("check", "suite=c", "engine=transformers", "engine.attention=sdpa")
    assert done.code == 1
    assert "the window is one token too long" in done.out + done.err


def test_a_case_with_code_is_refused(roundround: Callable[..., Done], case: Case, here: Path) -> None:
    shutil.copytree(case.folder, here / "c" / case.folder.name)
    (here / "c" / case.folder.name / "transformers5" / "modeling.py").write_text("")
    assert_refused(roundround("check", "suite=c", "engine=transformers"), "is code")


MINE = """
from roundround.engines.engine import Engine
from roundround.engines.readers.transformers import Transformers


class Mine(Engine):
    def log_probs(self, checkpoint, ids, folder):
        if checkpoint.name == "transformers4":
            raise SystemExit("this form is too old")
        answers = Transformers(attention="eager").log_probs(checkpoint, ids, folder).tolist()
        if checkpoint.parent.name == "bad":
            answers[9] = float("nan")
        return [None, *answers]
"""


def test_an_engine_of_a_users_own(roundround: Callable[..., Done], case: Case, here: Path) -> None:
    (here / "mine" / "engine").mkdir(parents=True)
    (here / "mine" / "my_engine.py").write_text(MINE)  # not mine.py: another test's package has that name
    (here / "mine" / "engine" / "mine.yaml").write_text("_target_: my_engine.Mine\n")
    for name in ("bad", "good"):
        shutil.copytree(case.folder, here / "c" / name)
    done = roundround("check", "--config-dir", "mine", "suite=c", "engine=mine")
    assert done.code == 0
    old = (REFUSED, "this form is too old")
    bad = (REFUSED, "it has no finite number for token 10")
    assert [(r["verdict"], r["words"]) for r in done.results] == [bad, old, (AGREES, ""), old]
    shutil.rmtree("outputs")
    given = ("engine=mine", "engine.precision=float16")
    assert_refused(roundround("check", "--config-dir", "mine", "suite=c", *given), "+engine.precision=")


@pytest.fixture
def server(case: Case) -> Iterator[tuple[str, dict[str, Any]]]:
    """A server of the OpenAI protocol, and what it answers; its model is the newer form of the case."""
    says: dict[str, Any] = {"models": {"data": [{"id": f"x/{case.folder.name}/transformers5"}]}}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            said = says.get(self.path.rpartition("/")[2])
            self.send_response(400 if said is None else 200)
            self.end_headers()
            self.wfile.write(b"too long" if said is None else json.dumps(said).encode())

        def do_POST(self) -> None:
            says["asked"] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.do_GET()

        def log_message(self, *words: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as served:
        threading.Thread(target=served.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{served.server_port}", says
        served.shutdown()


def test_a_server_is_asked(
    roundround: Callable[..., Done], case: Case, server: tuple[str, dict[str, Any]], here: Path
) -> None:
    url, says = server
    command = ("check", f"suite={case.folder.parent}", "engine=openai", f"engine.url={url}/v1")
    done = roundround(*command)
    assert (done.code, done.results[0]["words"]) == (3, f"{url}/v1/completions answers with status 400: too long")
    says["completions"] = {"choices": [{"logprobs": {"token_logprobs": [None, *case.right.tolist(), -1.0]}}]}
    done = roundround(*command)
    assert (done.code, [r["verdict"] for r in done.results]) == (0, [AGREES, MISSING])
    assert done.results[1]["words"] == f"the server has x/{case.folder.name}/transformers5"
    assert says["asked"]["prompt"] == case.ids
    says["models"] = {"data": [{"id": case.folder.name}]}
    done = roundround(*command)
    assert [(r["verdict"], r["form"]) for r in done.results] == [(AGREES, "")]
    says["completions"] = {"choices": [{"text": "without", "logprobs": None}]}
    assert "gives no log-probabilities of the prompt" in roundround(*command).results[0]["words"]
    says["completions"] = {"detail": "no"}
    assert "does not speak the OpenAI protocol" in roundround(*command).results[0]["words"]
    shutil.rmtree("outputs")
    says["models"] = ["llama"]
    assert_refused(roundround(*command), f"{url}/v1/models does not speak the OpenAI protocol")
    says["models"] = None
    assert_refused(roundround(*command), f"{url}/v1/models answers with status 400")
    assert_refused(roundround(*command[:3], "engine.url=http://127.0.0.1:9"), "/v1/models does not answer")
    assert_refused(roundround(*command[:3], "engine.url=127.0.0.1:9"), "unknown url type")
    assert_refused(roundround(*command, "engine.timeout=0"), "does not answer (timeout 0 s)")
