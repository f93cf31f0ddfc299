"""Traps that were found once, each in a test of its own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from stopping import RESTLESS, TRAIN, Bench, contents, runs_in, text_in


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
