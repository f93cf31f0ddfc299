"""`roundround bench`: what is run, what is taken, what is left, and what wrong words get."""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Done, assert_refused, shell

from roundround.analysis import repetition
from roundround.analysis.repetition import Runner
from roundround.analysis.standings import BETTER, EQUIVALENT, NO_CLEAR, NO_VALUE, WORSE
from roundround.distributed.child import VerbFailed
from roundround.report.bench import CODES, verdict_of
from roundround.verbs.bench import run as bench

SET = """\
parts: [copying, conduct]
train: [model.d_model=16, model.n_layers=1, model.n_heads=2, model.n_key_heads=2, model.d_mlp=16, batch_size=4]
rate: 3.0e-3
sizes: {default: []}
"""
COPYING = """\
question: Does it copy?
train: [data=copy, "data.train_lengths=[1,4]", data.validation_examples=8, schedule.warmup_steps=1,
  trainer.max_steps=4, validate_every=4, checkpoint_every=4]
looks: [[eval, "length=[4,8]", examples=16]]
keeps: {token_accuracy: each}
columns:
  copying: {number: token_accuracy@4, unit: share of symbols, better: higher}
  copying 2x: {number: token_accuracy@8, unit: share of symbols, better: higher}
"""
CONDUCT = """\
question: Does it compute the same?
measures: promises
model_of: copying
columns:
  promises: {number: kept, unit: of 5 promises are kept, better: none}
"""
HALF = """\
_target_: half.Half
theta: 10000.0
"""
HALF_PY = '''
from typing import final

import torch

from roundround.pe.rotary import RotaryEncoding, ladder


@final
class Half(RotaryEncoding):
    """RoPE at half its frequencies."""

    def frequencies(self, dtype=torch.float32, device="cpu"):
        return 0.5 * ladder(self.shape.head_dim // 2, self.shape.head_dim, self.theta, dtype, device)
'''


@pytest.fixture
def mine(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of one's own with a set of a second and an encoding."""
    monkeypatch.delitem(sys.modules, "half", raising=False)  # another test's
    folder = here / "mine"
    for name, text in {
        "bench/tiny.yaml": SET, "bench/tiny/copying.yaml": COPYING, "bench/tiny/conduct.yaml": CONDUCT,
        "pe/half.yaml": HALF, "half.py": HALF_PY,
    }.items():  # fmt: skip
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch, here: Path) -> list[list[str]]:
    """The verbs that were asked for; none runs. Accuracy falls with the length; nope and a rate of 0.01 raise it."""
    asked: list[list[str]] = []

    def answer(self: Runner, verb: str, *words: str) -> Path:
        asked.append([verb, *words])
        directory = here / f"{verb}-{len(asked)}"
        directory.mkdir()
        if verb == "train":
            if "pe=alibi" in words:
                raise VerbFailed("roundround train", 1)
            (directory / "choices").write_text(" ".join(words))
            return directory
        source = next(Path(word.removeprefix("run=")) for word in words if word.startswith("run="))
        choices = (source / "choices").read_text()
        share = 1.0 if "pe=nope" in choices else 0.5 if "optim.lr=0.01" in choices else 0.25
        records = [{"metric": "token_accuracy", "length": n, "value": share / n} for n in (4, 8)]
        (directory / "results.json").write_text(json.dumps(records))
        return directory

    monkeypatch.setattr(Runner, "__call__", answer)
    monkeypatch.setattr(bench.SetRunner, "measured", lambda self, part, trained, told: {"kept": 5.0})
    monkeypatch.setattr(bench, "origin", lambda trained: {"commit": "a commit", "machine": "a machine"})
    return asked


WORDS = ("set=tiny", "--config-dir", "mine")


def test_what_is_named_and_the_baseline_are_run_seed_by_seed_and_taken_the_next_time(
    roundround: Callable[..., Done], mine: Path, ran: list[list[str]]
) -> None:
    done = roundround("bench", *WORDS, "pe=nope", "seeds=2")
    assert [words[0] for words in ran] == ["train", "eval"] * 4
    assert "seed=2" in ran[2]
    assert "pe=nope" in ran[4]
    assert "optim.lr=0.003" in ran[4]
    assert "nope against rope" in done.out
    values = json.loads((done.directory / "values" / "pe=nope+softmax=softmax.json").read_text())
    assert values["seeds"] == [1, 2]
    assert values["numbers"]["copying"]["token_accuracy@4"] == [0.25, 0.25]
    assert roundround("bench", *WORDS, "pe=nope", "seeds=2").code == 0
    assert len(ran) == 8, "all of it was there"
    roundround("bench", *WORDS, "pe=nope", "seeds=3")
    assert len(ran) == 12, "the third seed of both"
    mixed = roundround("bench", *WORDS, "pe=nope,nape")
    assert "nape has seeds 1 and rope 1, 2, 3: the difference uses those of both" in mixed.err
    assert "nope has seeds" not in mixed.err


def test_each_variant_is_taken_at_the_better_of_two_learning_rates(
    roundround: Callable[..., Done], mine: Path, ran: list[list[str]]
) -> None:
    (mine / "bench/tiny.yaml").write_text(f"{SET}tuned_rate: 1.0e-2\n")
    done = roundround("bench", *WORDS, "pe=nope", "tune=true")
    rates = [word for words in ran if words[0] == "train" for word in words if word.startswith("optim.lr=")]
    assert rates == ["optim.lr=0.003", "optim.lr=0.01"] * 2
    assert "each part is at its better learning rate, 0.01 where a line says so" in done.err
    assert "rope: at a rate of 0.01: copying" in done.err
    assert "nope: at a rate" not in done.err, "it is the same at both rates: the first"
    rows = list(csv.DictReader((done.directory / "bench.csv").read_text().splitlines()))
    assert {(row["variant"], row["rate"]) for row in rows} == {("rope", "0.01"), ("nope", "0.003")}
    file = done.directory / "values" / "pe=rope+softmax=softmax+optim.lr=0.01.json"
    plain = roundround("bench", *WORDS, "pe=nope", str(file))
    assert "optim.lr" not in plain.out
    assert f"{file} has values at a learning rate of 0.01 (tune=true takes it), and is left out" in plain.err
    assert len(ran) == 8, "all of it was there"
    alone = roundround("bench", *WORDS, "baseline=pe=alibi", "tune=true")
    assert "baseline alibi has no values at both rates for seed 1; name a variant, and both are run" in alone.err


def test_a_board_of_many_names_the_parts_at_the_second_rate_too(roundround: Callable[..., Done]) -> None:
    done = roundround("bench", "tune=true", "seeds=3")
    assert "fox: at a rate of 0.01: language, " in done.err


def test_a_part_that_fails_has_a_remark_and_the_others_go_on(
    roundround: Callable[..., Done], mine: Path, ran: list[list[str]]
) -> None:
    done = roundround("bench", *WORDS, "pe=alibi,nope")
    assert done.code == 0
    assert "alibi, seed 1: copying failed" in done.err
    assert "no value in copying, copying 2x" in done.out
    assert "nope against rope" in done.out


def test_a_set_of_ones_own_has_no_stored_values_and_a_changed_one_is_marked(
    roundround: Callable[..., Done], mine: Path, ran: list[list[str]], here: Path
) -> None:
    done = roundround("bench", *WORDS, "pe=nope")
    file = done.directory / "values" / "pe=nope+softmax=softmax.json"
    (mine / "bench/tiny.yaml").write_text(SET.replace("batch_size=4", "batch_size=8"))
    again = roundround("bench", *WORDS, "pe=nope")
    assert "has values of another set (tiny, default, " in again.err
    assert again.code == 0
    for one in (done, again):
        assert "not the standard set" in (one.directory / "bench.md").read_text()
    file = file.rename(here / "sent.json")
    other = roundround("bench", str(file), "pe=rope")
    assert f"{file} has values of another set (tiny, default, " in other.err


@pytest.mark.parametrize(("file", "old", "new", "named"), [
    ("tiny/copying.yaml", "better: higher}\n", "better: higher, gate: copyin}\n", "gate: copyin"),
    ("tiny/copying.yaml", "better: higher}\n", "better: higher, gate: copying}\n", "gate: copying"),
    ("tiny/copying.yaml", "better: higher}\n", "better: higher, margin: abc}\n", "margin"),
    ("tiny/copying.yaml", "better: higher}\n", "better: higher, margin: -1}\n", "margin"),
    ("tiny/copying.yaml", "better: higher}\n", "better: higher, weight: 0}\n", "weight of copying"),
    ("tiny/copying.yaml", "better: higher}\n", "better: higher, weight: much}\n", "weight of copying"),
    ("tiny/copying.yaml", "better: higher}\n", "better: none, weight: 2}\n", "weight: copying is not judged"),
    ("tiny/copying.yaml", "question:", "name: other\nquestion:", "name"),
    ("tiny/copying.yaml", "token_accuracy@8", "token_accurracy@8", "token_accurracy@8"),
    ("tiny/copying.yaml", "token_accuracy@8", "token_accuracy@8 - ", "token_accuracy@8 - "),
    ("tiny.yaml", "rate:", "like: [rop]\nrate:", "like: rop"),
    ("tiny.yaml", "rate:", "tuned_rate: fast\nrate:", "fast"),
    ("tiny.yaml", "rate:", "tuned_rate: .nan\nrate:", "tuned_rate: nan"),
    ("tiny.yaml", "rate:", "tuned_rate: 3.0e-3\nrate:", "tuned_rate: 0.003"),
    ("tiny.yaml", "rate:", "decides: {column: copying, spread: abc, effects: [1]}\nrate:", "abc"),
])  # fmt: skip
def test_a_set_with_a_slip_is_refused(
    roundround: Callable[..., Done], mine: Path, file: str, old: str, new: str, named: str
) -> None:
    path = mine / "bench" / file
    path.write_text(new.join(path.read_text().split(old, 1)))
    assert_refused(roundround("bench", *WORDS, "pe=nope"), named)


def test_values_of_code_that_has_changed_since_are_made_again(
    roundround: Callable[..., Done], mine: Path, ran: list[list[str]]
) -> None:
    roundround("bench", *WORDS, "pe=half")
    n_ran = len(ran)
    (mine / "half.py").write_text(HALF_PY.replace("0.5 *", "0.9 *"))
    again = roundround("bench", *WORDS, "pe=half")
    assert "half, seed 1 was made with other code, and is left out" in again.err
    assert len(ran) == n_ran + 2, "half, and not rope"
    (mine / "pe" / "half.yaml").write_text(HALF.replace("10000.0", "100.0"))
    assert "half, seed 1 was made with other code" in roundround("bench", *WORDS, "pe=half").err
    assert len(ran) == n_ran + 4


def test_a_run_that_another_process_is_at_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    held = iter([True, True, False])
    statuses = iter(["running", "done"])
    monkeypatch.setattr(repetition, "all_runs", lambda *args: [(tmp_path, {"verb": "train", "status": next(statuses)})])
    monkeypatch.setattr(repetition, "has_same_numbers", lambda manifest, planned: True)
    monkeypatch.setattr(repetition, "is_held", lambda directory: next(held))
    monkeypatch.setattr(repetition, "SECONDS_BETWEEN_LOOKS", 0.0)
    assert Runner("outputs", None, "cpu", False).same("train", {}) == [(tmp_path, "done")]
    assert f"waits for {tmp_path}" in capsys.readouterr().err


def test_every_combination_is_a_job_of_a_sweep() -> None:
    from roundround.command_line.arguments import expand_words
    from roundround.verbs import verb_named

    verb = verb_named("bench")
    assert expand_words(["pe=a,b", "seeds=2"], verb, jobs=False) == ["seeds=2", "where=['pe=a,b']"]
    assert expand_words(["pe=a,b", "softmax=c", "hydra/launcher=joblib"], verb, jobs=True) == [
        "hydra/launcher=joblib", "where=choice(['pe=a','softmax=c'],['pe=b','softmax=c'])",
    ]  # fmt: skip


# -- the verdict for a program, and the tries of a search


@pytest.mark.parametrize(("words", "code", "verdict"), [
    (["pe=xpos"], 0, "better"), (["pe=p_rope"], 3, "no clear difference"), (["pe=nope"], 4, "worse"),
    (["pe=xpos,p_rope"], 3, "no clear difference"), (["pe=xpos,p_rope,nope"], 4, "worse"),
    (["pe=rope"], 3, "no clear difference"),
])  # fmt: skip
def test_a_program_gets_one_document_and_its_verdict_as_the_exit_code(
    roundround: Callable[..., Done], words: Sequence[str], code: int, verdict: str
) -> None:
    done = roundround("bench", *words, "seeds=3", "format=json")
    assert done.code == code, done.err
    document = json.loads(done.out)
    assert document["verdict"] == verdict
    assert document["run"] == done.err.splitlines()[-1]
    run = Path(document["run"])
    assert {"bench.csv", "bench.md", "results.json"} <= {path.name for path in run.iterdir()}
    assert json.loads((run / "run.json").read_text())["status"] == "done"
    names = words[0].removeprefix("pe=").split(",")
    assert {one["name"] for one in document["variants"]} == {*names} - {"rope"}
    records = json.loads((run / "results.json").read_text())
    for one in document["variants"]:
        assert one["seeds"] == document["baseline"]["seeds"] == [1, 2, 3], "not all of RoPE's twelve"
        assert one["commits"] != ["None"]
        assert len(one["numbers"]) == 22
        for number in one["numbers"]:
            [record] = [r for r in records if (r["variant"], r["metric"]) == (one["name"], number["metric"])]
            same = ("difference", "difference_low", "difference_high", "p", "p_holm", "n_pairs", "unit")
            assert {key: number[key] for key in same} == {key: record[key] for key in same}
            assert number["verdict"] == (record["verdict"] or None)


@pytest.mark.pages
def test_the_page_begins_with_the_sentence_and_has_the_judged_numbers_and_the_costs_first(
    roundround: Callable[..., Done],
) -> None:
    done = roundround("bench", "pe=nope", "format=json")
    assert done.code == 4, "a worse variant has a page too"
    run = Path(json.loads(done.out)["run"])
    page = (run / "report.html").read_text()
    assert page.index("nope against rope: better in rise 8x") < page.index("Standings")
    assert re.findall(r'colspan="(\d+)">([^<]*)<', page) == [
        ("8", "judged"), ("4", "cost"), ("4", "within the trained lengths"), ("6", "described"),
    ]  # fmt: skip
    titles = re.findall(r"<figcaption>(.*?)</figcaption>", page)
    assert len(titles) > 5
    assert len({*titles}) == len(titles)


def test_an_earlier_version_of_the_set_stays_readable_and_is_marked(roundround: Callable[..., Done]) -> None:
    done = roundround("bench", "set=v1", "pe=nape", "format=json")
    document = json.loads(done.out)
    assert len(document["variants"][0]["numbers"]) == 24
    assert any("set v1 is an earlier version" in remark for remark in document["remarks"])


def test_what_could_not_be_measured_is_no_verdict(
    roundround: Callable[..., Done], mine: Path, ran: list[list[str]]
) -> None:
    done = roundround("bench", *WORDS, "pe=alibi", "format=json")
    assert done.code == 3
    document = json.loads(done.out)
    [one] = document["variants"]
    verdicts = {number["metric"]: number["verdict"] for number in one["numbers"]}
    assert verdicts == {"copying": "no value", "copying 2x": "no value", "promises": None}
    assert document["standard"] is False
    assert any("copying" in remark for remark in document["remarks"])


def test_a_variant_with_a_failed_part_is_not_better_and_of_several_the_worst_decides() -> None:
    records = [{"verdict": verdict} for verdict in (BETTER, EQUIVALENT, "")]
    assert [verdict_of(records), verdict_of([*records, {"verdict": NO_VALUE}])] == [BETTER, NO_CLEAR]
    assert verdict_of([*records, {"verdict": NO_VALUE}, {"verdict": WORSE}]) == WORSE
    assert [*CODES] == [BETTER, EQUIVALENT, NO_CLEAR, WORSE]


def test_without_format_json_the_exit_code_says_only_that_it_is_done(roundround: Callable[..., Done]) -> None:
    assert roundround("bench", "pe=nape", "seeds=3").code == 0


def test_a_try_is_kept_or_not_and_recognised_when_it_comes_again(roundround: Callable[..., Done], here: Path) -> None:
    words = ("bench", "pe=nape,p_rope", "seeds=3", "history=tries.jsonl")
    done = roundround(*words)
    assert done.code == 0
    sentences = [line for line in done.out.splitlines() if ": kept, e" in line or ": not kept, e" in line]
    assert len(sentences) == 2
    assert "\n".join(sentences) in (ROOT / "docs/howto/search.md").read_text()
    lines = (here / "tries.jsonl").read_text().splitlines()
    assert [(json.loads(line)["variant"], json.loads(line)["kept"]) for line in lines] == [
        ("nape", True), ("p_rope", False),
    ]  # fmt: skip
    assert "nape: kept" in (done.directory / "bench.md").read_text()
    again = roundround(*words, "format=json")
    tried = {one["name"]: one["history"] for one in json.loads(again.out)["variants"]}
    assert {name: (one["kept"], one["same_as"]) for name, one in tried.items()} == {
        "nape": (True, 1), "p_rope": (False, 2),
    }  # fmt: skip
    assert "p_rope: not kept" in again.err
    assert "tried before, as p_rope, and adds no evidence" in again.err
    assert (here / "tries.jsonl").read_text().splitlines() == lines


def test_another_seed_is_the_first_of_several(
    roundround: Callable[..., Done], mine: Path, ran: list[list[str]]
) -> None:
    roundround("bench", *WORDS, "pe=nope", "seed=7", "seeds=2")
    assert [word for words in ran if words[0] == "train" for word in words if word.startswith("seed=")] == [
        "seed=7", "seed=8", "seed=7", "seed=8",
    ]  # fmt: skip


def test_a_seed_that_is_named_compares_no_other_seeds(
    roundround: Callable[..., Done], mine: Path, ran: list[list[str]]
) -> None:
    roundround("bench", *WORDS, "pe=nope", "seeds=2")
    for words, seeds in ((["pe=nope"], [1, 2]), (["pe=nope", "seed=7"], [7]), (["seed=2"], [2])):
        document = json.loads(roundround("bench", *WORDS, *words, "format=json").out)
        assert [one["seeds"] for one in [document["baseline"], *document["variants"]]] == [seeds, seeds], words


def test_a_part_that_failed_is_run_again_where_its_variant_is_named(
    roundround: Callable[..., Done], mine: Path, ran: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    fails = Runner.__call__
    first = roundround("bench", *WORDS, "pe=alibi,nope", "seeds=2")

    def mended(self: Runner, verb: str, *words: str) -> Path:
        return fails(self, verb, *(word for word in words if word != "pe=alibi"))

    monkeypatch.setattr(Runner, "__call__", mended)
    n = len(ran)
    shown = roundround("bench", *WORDS)
    assert (len(ran), "n/a" in shown.out) == (n, True)
    again = roundround("bench", *WORDS, "pe=alibi,nope", "seeds=2")
    assert [words[0] for words in ran[n:]] == ["train", "eval"] * 2
    assert ("no value" in first.out, "no value" in again.out) == (True, False)
    assert "n/a" not in roundround("bench", *WORDS).out
    assert len(ran) == n + 4, "the later values count"


def test_a_change_of_the_code_is_another_variant(
    roundround: Callable[..., Done], mine: Path, ran: list[list[str]], here: Path
) -> None:
    decides = "decides: {column: copying, spread: 0.01, effects: [0.1]}\n"
    (mine / "bench/tiny.yaml").write_text(SET + decides)
    words = ("bench", *WORDS, "pe=half", "history=tries.jsonl")
    roundround(*words)
    (mine / "half.py").write_text(HALF_PY.replace("0.5 *", "0.9 *"))
    assert roundround(*words, "seed=2").code == 0
    tried = [json.loads(line) for line in (here / "tries.jsonl").read_text().splitlines()]
    assert [[*one["differences"]] for one in tried] == [["1"], ["2"]]
    assert tried[0]["source"] != tried[1]["source"]


def test_a_set_may_prefer_a_higher_number(
    roundround: Callable[..., Done], mine: Path, ran: list[list[str]], here: Path
) -> None:
    (mine / "bench/tiny.yaml").write_text(SET + "decides: {column: copying, spread: 0.01, effects: [0.1]}\n")
    assert "nope: kept" in roundround("bench", *WORDS, "pe=nope", "seeds=3", "history=tries.jsonl").out
    words = ("pe=rope", "baseline=pe=nope", "seeds=3", "history=worse.jsonl")
    assert "rope: not kept, e-value 0" in roundround("bench", *WORDS, *words).out


@pytest.mark.parametrize(("text", "words"), [
    ("variant,loss\n", ["pe=nape"]), ('{"set": "v2"}\n', ["pe=nape"]), (None, []), (None, ["pe=rope"]),
    (None, ["pe=nape", "size=small"]), (None, ["pe=nape", "history=."]),
    (None, ["pe=nape", "history=nowhere/tries.jsonl"]), (None, ["pe=nape", "history=s3://bucket/tries"]),
])  # fmt: skip
def test_a_history_that_cannot_be_kept_is_refused_before_anything_is_trained(
    roundround: Callable[..., Done], ran: list[list[str]], here: Path, text: str | None, words: Sequence[str]
) -> None:
    if text is not None:
        (here / "tries.jsonl").write_text(text)
    named = [] if any(word.startswith("history=") for word in words) else ["history=tries.jsonl"]
    assert_refused(roundround("bench", *words, *named, "seed=4"), "history")
    assert ran == []
    assert sorted(path.name for path in here.glob("tries*")) == ([] if text is None else ["tries.jsonl"])


def test_one_document_is_not_for_a_sweep(roundround: Callable[..., Done]) -> None:
    done = roundround("bench", "-m", "pe=nape,p_rope", "format=json")
    assert (done.code, done.out) == (2, "")
    assert "format=json prints one document" in done.err


@pytest.mark.parametrize(("words", "parts"), [
    (["optim.lr=1"], ["the set fixes everything except pe, softmax", "write a set of your own"]),
    (["tun=true"], ["the set fixes everything except pe, softmax", "did you mean 'tune'?"]),
    (["set=v9"], ["no set=v9"]),
    (["size=huge"], ["no size=huge"]),
    (["format=yaml"], ["no format=yaml (choices: table, json)"]),
    (["seeds=0"], ["seeds=0 must be at least 1"]),
    (["baseline=pe=xpos,softmax=beam"], ["baseline xpos + beam has no values"]),
    (["pe="], ["pe= is no setting; write pe=NAME"]),
    (["baseline=nope"], ["nope is no setting; write pe=nope"]),
    (["baseline=pe=rope,cope"], ["baseline=pe=rope,cope names several variants"]),
    (["nothing.json"], ["nothing.json"]),
    (["seed=99"], ["baseline rope has no values for seed 99; name a variant, and both are run"]),
    (["tune=null"], ["tune has no value; give tune=..."]),
    (["set=v1", "tune=true"], ["tune=true needs a second learning rate, and set=v1 has none"]),
    (["pe=nape", "tune=true", "history=tries.jsonl"], ["give history= or tune=true"]),
    (["pe=nape", "history="], ["history is empty; give a file or folder of this machine"]),
])  # fmt: skip
def test_wrong_words_get_one_line(roundround: Callable[..., Done], words: Sequence[str], parts: Sequence[str]) -> None:
    assert_refused(roundround("bench", *words), *parts)


@pytest.mark.slow
def test_an_encoding_of_ones_own_goes_through_a_set_and_is_resumed(mine: Path, here: Path) -> None:
    words: list[Any] = ["bench", *WORDS, "pe=half", "device=cpu"]
    first = shell(*words, cwd=here)
    assert first.code == 0, first.err
    assert "failed" not in first.err
    [file] = here.glob("outputs/bench/*/*/values/pe=half*.json")
    values = json.loads(file.read_text())
    assert set(values["numbers"]["copying"]) == {"token_accuracy@4", "token_accuracy@8"}
    assert values["numbers"]["conduct"]["kept"] == [5.0], values["remarks"]
    runs = sorted(here.glob("outputs/train/*/*"))

    def once_more() -> Done:
        for values in here.glob("outputs/bench/*/*/values/*.json"):
            values.unlink()
        again = shell(*words, cwd=here)
        assert again.code == 0, again.err
        assert "failed" not in again.err
        return again

    once_more()
    assert sorted(here.glob("outputs/train/*/*")) == runs, "finished runs are taken"
    for run in runs:
        manifest = json.loads((run / "run.json").read_text())
        (run / "run.json").write_text(json.dumps(manifest | {"status": "interrupted"}))
    once_more()
    assert sorted(here.glob("outputs/train/*/*")) == runs, "stopped runs are resumed, of a class from outside too"
    (mine / "half.py").write_text(HALF_PY.replace("0.5 *", "0.9 *"))
    once_more()
    assert len(list(here.glob("outputs/train/*/*"))) == len(runs) + 1, "other code, another run"
