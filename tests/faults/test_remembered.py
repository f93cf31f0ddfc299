"""Traps that were found once, each in a test of its own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from stopping import EVAL, RESTLESS, TRAIN, Bench, contents, runs_in, text_in


@pytest.mark.faults
def test_a_run_killed_while_its_logger_starts_keeps_its_choices_and_its_card(bench: Bench, tmp_path: Path) -> None:
    args = [*TRAIN, *RESTLESS, *text_in(tmp_path), "logger=wandb", "pe=alibi", "softmax=ssmax"]
    assert bench.run(args, tmp_path, kill_before="/wandb").code == -9
    (run,) = runs_in(tmp_path)
    right = {"pe": "alibi", "softmax": "ssmax", "model": "tiny"}
    manifest = json.loads((run / "run.json").read_text())
    assert {key: manifest["choices"][key] for key in right} == right
    ended = bench.run(["train", f"resume={run}", "logger=none"], tmp_path)
    assert ended.code == 0, ended.err
    assert "tiny model, pe=alibi, softmax=ssmax" in ended.err
    records = json.loads((run / "results.json").read_text())
    assert {key: records[0][key] for key in right} == right
    assert bench.run(["export", f"run={run}", "to=exported"], tmp_path, timeout=200).code == 0
    card = (tmp_path / "exported" / "README.md").read_text()
    tags = card.split("---")[1]
    assert ("None" in tags, "alibi" in tags, "ssmax" in tags) == (False, True, True), tags


FOREIGN: dict[str, Any] = {
    "started is a word": {"started": "yesterday"},
    "started has no time zone": {"started": "2026-01-01T00:00:00"},
    "started is a number": {"started": 5},
    "config is a list": {"config": []},
    "status is a list": {"status": []},
    "verb is null": {"verb": None},
}


@pytest.mark.faults
@pytest.mark.parametrize("name", [*FOREIGN, "no json", "nested", "a list", "not UTF-8", "a folder"])
def test_last_means_the_same_run_whatever_lies_beside_it(name: str, bench: Bench, tmp_path: Path) -> None:
    assert bench.run([*TRAIN, *RESTLESS, *text_in(tmp_path), "trainer.max_steps=2"], tmp_path).code == 0
    (run,) = runs_in(tmp_path)
    path = tmp_path / "outputs" / "train" / "2026-01-01" / "01-01-01" / "run.json"
    path.parent.mkdir(parents=True)
    texts = {"no json": b"{", "nested": b"[" * 100_000, "a list": b"[]", "not UTF-8": b"\xff\xfe{}"}
    usual = {"verb": "train", "status": "done", "started": "2026-01-01T00:00:00+00:00", "config": {}}
    if name == "a folder":
        path.mkdir()
    else:
        path.write_bytes(texts.get(name) or json.dumps(usual | FOREIGN[name]).encode())
    for args in (["eval", "run=last", *EVAL], ["train", "resume=last", "logger=none"]):
        ended = bench.run(args, tmp_path)
        assert ended.code == 0, ended.err
    manifest = json.loads((run / "run.json").read_text())
    assert manifest["status"] == "done"
    assert manifest.get("resumed") is not None


@pytest.mark.faults
def test_a_damaged_newest_checkpoint_is_named_and_the_one_before_taken_once_it_is_deleted(
    bench: Bench, tmp_path: Path
) -> None:
    args = [*TRAIN, *RESTLESS, *text_in(tmp_path)]
    assert bench.run(args, tmp_path, kill_before="mkdir .*/.step-00000008").code == -9
    (run,) = runs_in(tmp_path)
    newest = sorted((run / "checkpoints").glob("step-*"))[-1]
    weights = newest / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    ended = bench.run(["train", f"resume={run}", "logger=none"], tmp_path)
    assert (ended.code, len(ended.err.splitlines())) == (2, 1), ended.err
    assert str(newest) in ended.err
    shutil.rmtree(newest)
    assert bench.run(["train", f"resume={run}", "logger=none"], tmp_path).code == 0
    reference = tmp_path / "never-stopped"
    reference.mkdir()
    assert bench.run(args, reference).code == 0
    last = "train/checkpoints/step-00000008/model.safetensors"
    assert contents(tmp_path)[last] == contents(reference)[last]


@pytest.mark.faults
def test_a_metrics_file_torn_in_the_middle_of_a_line_is_whole_after_a_resume(bench: Bench, tmp_path: Path) -> None:
    args = [*TRAIN, *RESTLESS, *text_in(tmp_path)]
    assert bench.run(args, tmp_path, kill_before="mkdir .*/.step-00000006").code == -9
    (run,) = runs_in(tmp_path)
    metrics = run / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes() + b'{"step": 5, "lo')
    assert bench.run(["train", f"resume={run}", "logger=none"], tmp_path).code == 0
    steps = [json.loads(line)["step"] for line in metrics.read_text().splitlines()]
    assert steps == sorted(steps)
    assert steps[-1] == 8
