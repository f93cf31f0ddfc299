"""Tasks of EleutherAI's harness: likelihoods and texts of transformers' own, the harness' numbers, what is refused."""

from __future__ import annotations

import json
import math
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import FAST, STORIES, Done, assert_refused, typed
from ranks import on_ranks
from transformers import AutoModelForCausalLM, AutoTokenizer

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("lm_eval", reason="needs EleutherAI's harness: pip install 'roundround[lm_eval]'")
    import lm_eval
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    from roundround.asking import harness
    from roundround.asking.generation import PretrainedWriter
    from roundround.asking.harness import HarnessModel
    from roundround.data.minimal_pairs import SAMPLES
    from roundround.hf.load import ProbedHuggingFaceModel
    from roundround.hf.patching.attention import installed
    from roundround.trained.models import TrainedRun

# Warstadt et al. 2020, BLiMP, arXiv:1912.00582 (github.com/alexwarstadt/blimp, CC BY 4.0): the first two pairs of
# regular_plural_subject_verb_agreement_1, anaphor_gender_agreement, determiner_noun_agreement_1, wh_vs_that_no_gap,
# irregular_past_participle_verbs and principle_A_case_1
PAIRS = [
    ("Paula references Robert.", "Paula reference Robert."),
    ("Most legislatures haven't disliked children.", "Most legislatures hasn't disliked children."),
    ("Katherine can't help herself.", "Katherine can't help himself."),
    ("Karla could listen to herself.", "Karla could listen to himself."),
    ("Raymond is selling this sketch.", "Raymond is selling this sketches."),
    ("Craig explored that grocery store.", "Craig explored that grocery stores."),
    (
        "Mark figured out that most governments appreciate Steve.",
        "Mark figured out who most governments appreciate Steve.",
    ),
    (
        "Danielle finds out that many organizations have alarmed Chad.",
        "Danielle finds out who many organizations have alarmed Chad.",
    ),
    ("The Borgias wore a lot of scarves.", "The Borgias worn a lot of scarves."),
    ("Teresa hid every senator.", "Teresa hidden every senator."),
    (
        "The teenagers explain that they aren't breaking all glasses.",
        "The teenagers explain that themselves aren't breaking all glasses.",
    ),
    (
        "Carl can't imagine that he complained about Lisa.",
        "Carl can't imagine that himself complained about Lisa.",
    ),
]
SENTENCES = [sentence for pair in PAIRS for sentence in pair]
# as lm_eval/tasks/blimp/_template_yaml has it: a space stands before each sentence, which is target_delimiter's default
YAML = """
task: pairs
dataset_path: json
dataset_kwargs:
  data_files:
    train: pairs.jsonl
output_type: multiple_choice
validation_split: train
doc_to_text: ""
doc_to_target: 0
doc_to_choice: "{{[sentence_good, sentence_bad]}}"
num_fewshot: 0
metric_list:
  - metric: acc
    aggregation: mean
    higher_is_better: true
metadata:
  version: 1.0
"""
WRITTEN = """
task: written
dataset_path: json
dataset_kwargs:
  data_files: {test: pairs.jsonl}
output_type: generate_until
test_split: test
doc_to_text: "{{sentence_good}}"
doc_to_target: "{{sentence_bad}}"
generation_kwargs: {until: ["."], max_gen_toks: 12}
metric_list:
  - {metric: exact_match, aggregation: mean, higher_is_better: true}
metadata: {version: 3}
"""
ROLLING = """
task: rolled
dataset_path: json
dataset_kwargs:
  data_files: {test: pairs.jsonl}
output_type: loglikelihood_rolling
test_split: test
doc_to_text: ""
doc_to_target: "{{sentence_good}}"
metric_list:
  - {metric: byte_perplexity, aggregation: weighted_perplexity, higher_is_better: false}
"""
SUM = 1e-4  # nats: float32 keeps 2e-6 of a logit of 30, and a sentence has about 20


@pytest.fixture(autouse=True)
def quick_hub(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No network; data sets are prepared in a cache of the session's; of lm_eval's own tasks only two folders are read,
    not all 14,000 files."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.getbasetemp() / "datasets")
    own = [Path(lm_eval.__file__).parent / "tasks" / name for name in ("arc", "humaneval")]
    real = harness.TaskManager

    def manager(include_path: Path | None = None, include_defaults: bool = True) -> Any:
        folders = [*(own if include_defaults else []), *([] if include_path is None else [include_path])]
        return real(include_path=folders, include_defaults=False)

    monkeypatch.setattr(harness, "TaskManager", manager)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Tasks of a dozen pairs."""
    made = tmp_path / "tasks"
    made.mkdir()
    rows = (json.dumps({"sentence_good": good, "sentence_bad": bad}) for good, bad in PAIRS)
    (made / "pairs.jsonl").write_text("\n".join(rows))
    for name, text in {"pairs": YAML, "written": WRITTEN, "rolled": ROLLING}.items():
        (made / f"{name}.yaml").write_text(text)
    return made


@pytest.fixture(scope="module")
def run(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run that has learnt a little."""
    place = tmp_path_factory.mktemp("harness")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        words = ["trainer.max_steps=150", "optim.lr=0.03", "checkpoint_every=150", "validate_every=150"]
        done = typed("train", *FAST, "data=text", f"data.path={corpus}", *words, "model.train_length=96")
        assert done.code == 0, done.err
        yield done.directory.absolute()


@pytest.fixture
def export(run: Path, checked_here: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The run as a folder for transformers, made once."""
    place = run.parents[3]
    if not (place / "export").exists():
        monkeypatch.chdir(place)
        done = typed("export", f"run={run}", "to=export")
        assert done.code == 0, done.err
    return place / "export"


def of_run(run: Path, **options: Any) -> HarnessModel:
    """The model of `run=DIR`."""
    trained = TrainedRun(run, trust=False)
    options = {"longest": int(trained.config.model.train_length), "batch_tokens": 8192, **options}
    return HarnessModel.of_run(trained, trained.decoder("best"), **options)


def of_folder(path: Path, **options: Any) -> HarnessModel:
    """A model of transformers, read by the tokenizer beside it."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(path), AutoTokenizer.from_pretrained(path)
    with installed(model):
        writer = PretrainedWriter(ProbedHuggingFaceModel("model", model, tokenizer))
    options = {"longest": 512, "batch_tokens": 100, "one_by_one": False, **options}
    return HarnessModel(writer, model, tokenizer, first=tokenizer.bos_token_id or tokenizer.eos_token_id, **options)


def requests(kind: str, arguments: list[tuple[Any, ...]]) -> list[Instance]:
    return [Instance(request_type=kind, doc={}, arguments=own, idx=i) for i, own in enumerate(arguments)]


def naive(model: Any, ids: list[int], n: int) -> tuple[float, bool]:
    """ln p of the last n of a text's tokens by transformers, and whether each is the likeliest."""
    with torch.no_grad():
        log_p_TV = model(torch.tensor([ids])).logits[0].double().log_softmax(-1)
    places = range(len(ids) - n, len(ids))
    total = sum(float(log_p_TV[i - 1, ids[i]]) for i in places)
    return total, all(int(log_p_TV[i - 1].argmax()) == ids[i] for i in places)


# -- likelihoods


def test_likelihoods_of_a_pretrained_model_are_transformers() -> None:
    model, tokenizer = AutoModelForCausalLM.from_pretrained(STORIES), AutoTokenizer.from_pretrained(STORIES)
    pairs = [("", f" {text}") for text in SENTENCES] + [("Once upon a time", ", there was"), ("Once", " upon a cat")]
    found = of_folder(STORIES).loglikelihood(requests("loglikelihood", pairs))
    for (context, continuation), (log_p, likeliest) in zip(pairs, found, strict=True):
        plain = tokenizer(context + continuation, add_special_tokens=False).input_ids
        n_context = len(tokenizer(context, add_special_tokens=False).input_ids)
        expected, argmax = naive(model, [tokenizer.bos_token_id, *plain], len(plain) - n_context)
        assert log_p == pytest.approx(expected, abs=SUM)
        assert likeliest == argmax
    assert [likeliest for _, likeliest in found[-2:]] == [True, False]


def test_likelihoods_of_a_run_are_those_of_its_export(run: Path, export: Path) -> None:
    model, tokenizer = AutoModelForCausalLM.from_pretrained(export), AutoTokenizer.from_pretrained(export)
    end = tokenizer.eos_token_id  # which stood before each document in training
    own = of_run(run)
    found = own.loglikelihood(requests("loglikelihood", [("", f" {text}") for text in SENTENCES]))
    for text, (log_p, _) in zip(SENTENCES, found, strict=True):
        ids = tokenizer(f" {text}", add_special_tokens=False).input_ids
        assert ids == list(f" {text}".encode())
        assert log_p == pytest.approx(naive(model, [end, *ids], len(ids))[0], abs=SUM)
    assert own.max_length == 96
    assert own.n_cut == 0


def test_of_a_long_text_the_beginning_is_cut_and_counted() -> None:
    model, tokenizer = AutoModelForCausalLM.from_pretrained(STORIES), AutoTokenizer.from_pretrained(STORIES)
    ours = of_folder(STORIES, longest=6)
    context, continuation = "Once upon a time, there was a little", " girl named"
    n = len(tokenizer(context + continuation).input_ids) - len(tokenizer(context).input_ids)
    [(log_p, _)] = ours.loglikelihood(requests("loglikelihood", [(context, continuation)]))
    ids = tokenizer(context + continuation).input_ids[-7:]  # six are read, and the last one is a target alone
    assert log_p == pytest.approx(naive(model, ids, n)[0], abs=SUM)
    assert ours.n_cut == 1


def test_a_rolling_likelihood_has_each_token_once(run: Path, export: Path) -> None:
    model, tokenizer = AutoModelForCausalLM.from_pretrained(export), AutoTokenizer.from_pretrained(export)
    text, longest = "The fox number 1 ran home and met the hare. The crow slept.", 16
    ids, expected = [tokenizer.eos_token_id, *text.encode()], 0.0
    for begin in range(1, len(ids), longest):  # the last window ends with the text and is as long as the others
        end = min(begin + longest, len(ids))
        expected += naive(model, ids[max(0, end - longest - 1) : end], end - begin)[0]
    [found] = of_run(run, longest=longest).loglikelihood_rolling(requests("loglikelihood_rolling", [(text,)]))
    assert found == pytest.approx(expected, abs=SUM)
    theirs = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=4, max_length=longest)
    [hf] = theirs.loglikelihood_rolling(requests("loglikelihood_rolling", [(text,)]), disable_tqdm=True)
    assert found == pytest.approx(hf, abs=SUM)


def test_where_nothing_begins_a_text_its_first_token_is_not_scored(export: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(export)
    ours = of_folder(export)
    ours.first = None
    [(log_p, _)] = ours.loglikelihood(requests("loglikelihood", [("", "The fox")]))
    assert log_p == pytest.approx(naive(model, list(b"The fox"), 6)[0], abs=SUM)


# -- texts


def test_texts_are_transformers(run: Path, export: Path) -> None:
    model, tokenizer = AutoModelForCausalLM.from_pretrained(export), AutoTokenizer.from_pretrained(export)
    prompts, options = ["The fox", "The ass", "The crow number 7"], {"until": [" met", "\n"], "max_gen_toks": 30}
    expected = []
    for prompt in prompts:
        ids = torch.tensor([[tokenizer.eos_token_id, *prompt.encode()]])
        new = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=30, do_sample=False, pad_token_id=0
        )
        text = tokenizer.decode(new[0, ids.shape[1] :], skip_special_tokens=True)
        expected.append(text.split(" met")[0].split("\n")[0])
    found = of_run(run).generate_until(requests("generate_until", [(prompt, dict(options)) for prompt in prompts]))
    assert found == expected
    assert any(expected)


def test_a_pretrained_model_writes_what_the_harness_own_class_has_it_write() -> None:
    model, tokenizer = AutoModelForCausalLM.from_pretrained(STORIES), AutoTokenizer.from_pretrained(STORIES)
    asked = requests("generate_until", [("Once upon a time", {"until": ["."], "max_gen_toks": 40})])
    tokenizer.pad_token_id = 0
    expected = HFLM(pretrained=model, tokenizer=tokenizer).generate_until(asked, disable_tqdm=True)
    assert of_folder(STORIES).generate_until(asked) == expected == [", there was a little girl named Lily"]


# -- the verb


@pytest.fixture
def evaluated(here: Path, folder: Path) -> Callable[..., Done]:
    return lambda *words: typed("eval", "logger=none", "device=cpu", f"tasks_path={folder}", *words)


def expected_accuracy(path: Path) -> float:
    model, tokenizer = AutoModelForCausalLM.from_pretrained(path), AutoTokenizer.from_pretrained(path)
    first = tokenizer.bos_token_id or tokenizer.eos_token_id

    def log_p(text: str) -> float:
        ids = tokenizer(f" {text}", add_special_tokens=False).input_ids
        return naive(model, [first, *ids], len(ids))[0]

    return sum(log_p(good) > log_p(bad) for good, bad in PAIRS) / len(PAIRS)


def test_a_pretrained_model_is_asked_a_task(evaluated: Callable[..., Done]) -> None:
    done = evaluated("model=stories260k", "tasks=lm_eval:pairs")
    assert done.code == 0, done.err
    [record] = done.results
    share = expected_accuracy(STORIES)
    assert 0 < share < 1
    assert record["value"] == share
    assert record["stderr"] == pytest.approx(math.sqrt(share * (1 - share) / 11))  # of a mean over a dozen
    assert record["value"] - record["low"] == pytest.approx(2.200985 * record["stderr"])  # Student's t, 11 degrees
    assert record["high"] == min(1.0, 2 * record["value"] - record["low"])  # a share
    facts = {"task": "pairs", "version": 1.0, "lm_eval": lm_eval.__version__, "examples": 12, "of": 12, "shots": 0}
    assert record.items() >= {**facts, "length": 512, "first_token": "<s>", "metric": "acc"}.items()
    assert f"lm_eval {lm_eval.__version__}, task versions: pairs 1.0" in done.err
    assert "a context of at most 512 tokens, <s> before it" in done.err
    assert "no text was cut" in done.err
    assert "12 (few)" in done.err
    assert done.out == f"{done.directory}\n"


def test_a_run_its_export_and_a_patched_model_are_asked(
    evaluated: Callable[..., Done], run: Path, export: Path
) -> None:
    share = expected_accuracy(export)
    for words in ([f"run={run}"], ["model=hf", f"model.path={export}"]):
        done = evaluated(*words, "tasks=lm_eval:pairs,rolled")
        assert done.code == 0, done.err
        assert done.value("acc", task="pairs") == share
        assert done.results[0]["length"] == 96
    bits, _patched = done.value("byte_perplexity", task="rolled"), []
    for words in ([f"run={run}"], ["model=hf", f"model.path={export}"]):
        changed = evaluated(*words, "tasks=lm_eval:rolled", "pe=nope", "softmax=adaptive_temperature")
        assert changed.code == 0, changed.err
        assert changed.value("byte_perplexity") != pytest.approx(bits, rel=1e-4)
        assert changed.results[0]["pe"] == "nope"
        assert changed.results[0]["value"] == pytest.approx(
            evaluated(
                *words, "tasks=lm_eval:rolled", "pe=nope", "softmax=adaptive_temperature", "batch_tokens=1"
            ).results[0]["value"],
            rel=1e-5,
        )


def test_the_first_examples_are_taken_and_texts_written(evaluated: Callable[..., Done], run: Path) -> None:
    done = evaluated(f"run={run}", "tasks=[lm_eval:written,lm_eval:pairs]", "examples=5", "length=80")
    assert done.code == 0, done.err
    assert {(r["task"], r["metric"], r["examples"], r["of"], r["length"]) for r in done.results} == {
        ("written", "exact_match", 5, 12, 80),
        ("pairs", "acc", 5, 12, 80),
    }
    assert done.manifest["config"]["examples"] == 5
    assert done.manifest["tasks"] == {"written": 3, "pairs": 1.0}
    assert evaluated(f"run={run}", "tasks=lm_eval:*ed", "length=80").code == 0
    again = typed("rerun", str(done.directory), "logger=none")
    assert again.code == 0, again.err
    assert "6 numbers: 6 equal" in again.err  # of the second its standard error and its interval too
    assert all(0 <= r.get("low", 0) <= r.get("high", 1) <= 1 for r in done.results)


def test_a_group_of_a_folder_may_hold_tasks_of_lm_eval(folder: Path) -> None:
    (folder / "both.yaml").write_text("group: both\ntask: [pairs, arc_easy]\n")
    with pytest.raises(Exception, match="arc"):  # which is found, and has no data here
        harness.opened_tasks(["both"], str(folder), trust=False)
    (folder / "both.yaml").write_text("group: both\ntask: [pairs, written]\n")
    assert {*harness.opened_tasks(["both"], str(folder), trust=False)["tasks"]} == {"pairs", "written"}


class TwoPeers:
    """What a model asks of the processes of its run, over gloo."""

    def __init__(self, mesh: Any) -> None:
        self.rank, self.n = mesh.get_rank(), mesh.size()

    def gather(self, value: Any) -> list[Any]:
        found = [None] * self.n
        torch.distributed.all_gather_object(found, value)
        return found


def accuracy_of_a_rank(mesh: Any, folder: Path) -> dict[str, Any]:
    model = of_folder(STORIES, peers=TwoPeers(mesh))
    loaded = harness.opened_tasks(["pairs"], str(folder), trust=False)
    found = harness.asked(model, loaded, examples=11, trust=False)
    return {
        "acc": found["results"]["pairs"]["acc,none"],
        "examples": found["results"]["pairs"]["sample_len"],
    }


def test_processes_share_the_questions(folder: Path, tmp_path: Path) -> None:
    alone = of_folder(STORIES)
    loaded = harness.opened_tasks(["pairs"], str(folder), trust=False)
    expected = harness.asked(alone, loaded, examples=11, trust=False)["results"]["pairs"]["acc,none"]
    found = on_ranks(2, tmp_path, accuracy_of_a_rank, folder)
    assert [(one["acc"], one["examples"]) for one in found] == [(expected, 11)] * 2


# -- what is refused, in one line


def test_what_is_no_task_is_refused(evaluated: Callable[..., Done], here: Path) -> None:
    model = "model=stories260k"
    assert_refused(evaluated(model, "tasks=lm_eval:arc_eazy"), "has no task 'arc_eazy'; did you mean 'arc_easy'?")
    assert_refused(evaluated(model, "tasks=pairs"), "give tasks=lm_eval:pairs")
    assert_refused(evaluated(model), "no task is named; give tasks=lm_eval:NAME")
    assert_refused(evaluated(model, "tasks=lm_eval:pairs", "tasks_path=nowhere"), "tasks_path=nowhere is no folder")
    assert_refused(evaluated(model, "tasks=lm_eval:pairs", "length=32,64"), "give a single length")
    for word in ("stride=8", "data=pydoc"):
        assert_refused(evaluated(model, "tasks=lm_eval:pairs", word), f"{word.partition('=')[0]}= is for text")


def test_a_task_that_needs_the_network_is_refused(
    evaluated: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness, "hub_is_reachable", lambda: False)
    done = evaluated("model=stories260k", "tasks=lm_eval:arc_easy")
    assert_refused(done, "tasks=lm_eval:arc_easy cannot be read", "Hub")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("task: bad\nmetric_list: [acc\nother: 1\n", ["pairs.yaml cannot be read", "line 3"]),
        (YAML.replace("pairs.jsonl", "lost.jsonl"), ["pairs cannot be read: ", "lost.jsonl"]),
        (YAML.replace("target: 0", "target: !function code.target"), ["pairs.yaml", "trust=true"]),
        (YAML.replace("kwargs:", "kwargs:\n  trust_remote_code: true"), ["Python script", "trust=true"]),
        (YAML.replace("metric: acc", "metric: ./evil.py"), ["Python script", "trust=true"]),
        ("%TAG !x! !fun\n---" + YAML.replace(": 0", ": !x!ction code.target"), ["calls a", "trust=true"]),
        (YAML.replace("target: 0", "target: evil"), ["answer of 12 of 12 examples is none"]),
        (
            YAML.replace('text: ""', "text: \"{{ ''.__class__.__mro__[1].__subclasses__() }}\""),
            ["cannot be read", "unsafe"],
        ),
    ],
)
def test_a_broken_folder_and_one_that_runs_code_are_refused(
    evaluated: Callable[..., Done], folder: Path, text: str, parts: list[str]
) -> None:
    (folder / "pairs.yaml").write_text(text)
    (folder / "code.py").write_text("raise SystemExit('run')\n")
    assert_refused(evaluated("model=stories260k", "tasks=lm_eval:pairs"), *parts)


def test_right_answers_that_are_no_choices_are_counted(evaluated: Callable[..., Done], folder: Path) -> None:
    target = "{{0 if 'K' in sentence_good else 'evil'}}"
    (folder / "pairs.yaml").write_text(YAML.replace("target: 0", f'target: "{target}"'))
    done = evaluated("model=stories260k", "tasks=lm_eval:pairs", "examples=4")
    n_kept = sum("K" in good for good, _ in PAIRS[:4])
    assert 0 < n_kept < 4
    assert f"the right answer of {4 - n_kept} of 4 examples is none of its choices" in done.err
    assert done.code == 0


def test_code_that_a_file_includes_is_seen_and_run_where_it_is_trusted(
    evaluated: Callable[..., Done], folder: Path
) -> None:
    (folder / "below").mkdir()
    (folder / "below" / "shared").write_text(YAML.replace("doc_to_target: 0", "doc_to_target: !function code.target"))
    (folder / "below" / "code.py").write_text("def target(doc):\n    return 1\n")
    (folder / "pairs.yaml").write_text("include: below/shared\ntask: pairs\n")
    done = evaluated("model=stories260k", "tasks=lm_eval:pairs")
    assert_refused(done, "below/shared cannot be read", "calls a Python function")
    done = evaluated("model=stories260k", "tasks=lm_eval:pairs", "trust=true")
    assert done.code == 0, done.err
    assert done.value("acc") == 1 - expected_accuracy(STORIES)


def test_without_the_harness_the_extra_is_named(
    evaluated: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith(("roundround.asking.harness", "lm_eval"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    monkeypatch.delattr("roundround.asking.harness")
    assert_refused(evaluated("model=stories260k", "tasks=lm_eval:pairs"), "pip install 'roundround[lm_eval]'")


@pytest.mark.parametrize("of", ["run", "model"])
def test_data_blimp_counts_as_right_what_the_harness_counts(here: Path, folder: Path, run: Path, of: str) -> None:
    some = (SAMPLES / "blimp" / "pairs.jsonl").read_text().splitlines()[::7]
    (folder / "pairs.jsonl").write_text("\n".join(some))
    words = ["eval", f"run={run}" if of == "run" else "model=stories260k", "logger=none", "device=cpu"]
    harness_ = typed(*words, "tasks=lm_eval:pairs", f"tasks_path={folder}", "length=256")
    ours = typed(*words, "data=blimp", f"data.path=[{folder / 'pairs.jsonl'}]", "data.before=' '")
    assert (harness_.code, ours.code) == (0, 0), harness_.err + ours.err
    right = sum(round(r["value"] * r["pairs"]) for r in ours.results if "phenomenon" in r)
    assert 0 < right < len(some)
    assert right == round(harness_.value("acc") * len(some))
