"""`roundround bench`: what is run, what is taken, what is left, and what wrong words get."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from conftest import Done, assert_refused, shell

from roundround.analysis import repetition
from roundround.analysis.repetition import Runner
from roundround.distributed.child import VerbFailed
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
    """The verbs that were asked for, of which none runs: accuracy falls with the length and is best with nope."""
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
        good = "pe=nope" in (source / "choices").read_text()
        records = [{"metric": "token_accuracy", "length": n, "value": (1.0 if good else 0.25) / n} for n in (4, 8)]
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


@pytest.mark.parametrize(("words", "parts"), [
    (["optim.lr=1"], ["the set fixes everything except pe, softmax"]),
    (["set=v9"], ["no set=v9"]),
    (["size=huge"], ["no size=huge"]),
    (["seeds=0"], ["seeds=0 must be at least 1"]),
    (["baseline=pe=pope"], ["baseline pope has no values"]),
    (["nothing.json"], ["nothing.json"]),
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
