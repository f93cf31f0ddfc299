"""How a sweep ends, and `run=` of a sweep, a folder or a pattern: a job for each finished run."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import FAST, Done, assert_refused, typed
from helpers_compare import write_train

from roundround.command_line.launch import Job
from roundround.report.sweep import write_sweep_page

Command = Callable[..., Done]


def rows_of(text: str, first: str) -> list[list[str]]:
    """The rows of the last table whose header begins with this word."""
    lines = text.splitlines()
    start = max(n for n, line in enumerate(lines) if line.split()[:1] == [first])
    rows = [line.split() for line in lines[start + 2 :]]
    return rows[: next(n for n, row in enumerate(rows) if not row)]


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory, corpus: Path, drawing: dict[str, Any]) -> tuple[Path, Done]:
    """A folder with a sweep of two encodings and two seeds, pages included, and what it printed."""
    folder = tmp_path_factory.mktemp("swept")
    words = [*FAST, "data=text", f"data.path={corpus}", "-m", "pe=rope,nope", "seed=0,1", "hydra.sweep.dir=out/a-sweep"]
    with contextlib.chdir(folder), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Job, "leave_page", drawing["pages"])
        done = typed("train", *words)
    assert done.code == 0, done.err
    return folder, done


def test_a_sweep_ends_with_a_table_a_page_and_the_next_commands(swept: tuple[Path, Done]) -> None:
    folder, done = swept
    rows = rows_of(done.err, "job")
    assert [row[:3] for row in rows] == [["0", "rope", "0"], ["1", "rope", "1"], ["2", "nope", "0"], ["3", "nope", "1"]]
    manifest = json.loads((folder / "out/a-sweep/2/run.json").read_text())
    assert float(rows[2][3]) == pytest.approx(manifest["headline"]["perplexity"], rel=1e-3)
    *_, page, evaluate, compare = done.err.splitlines()
    assert page == "page: out/a-sweep/report.html"
    assert evaluate == "evaluate each run: roundround eval run=out/a-sweep length=32,64,128"
    assert compare == "compare them: roundround compare out/a-sweep"
    text = (folder / "out/a-sweep/report.html").read_text()
    assert "interval of difference" in text, "the table of a comparison"
    assert text.count("Held-out loss") >= 1
    assert "pe=rope" in text
    assert "pe=nope" in text
    assert 'href="3/report.html"' in text


def test_every_run_of_a_sweep_is_evaluated_by_its_directory_or_a_pattern(
    swept: tuple[Path, Done], roundround: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(swept[0])
    asked = ["length=16,32", "max_tokens=128", "logger=none", "device=cpu"]
    for which, n in (("run=out/a-sweep", 4), ("run=out/*/[12]", 2), ("run=out", 4)):
        done = roundround("eval", which, *asked)
        assert done.code == 0, done.err
        manifests = [json.loads(path.read_text()) for path in sorted(done.directory.glob("*/run.json"))]
        assert len({manifest["run"] for manifest in manifests}) == n == len(manifests)
        assert {manifest["verb"] for manifest in manifests} == {"eval"}
        rows = rows_of(done.err, "job")
        assert len(rows) == n

        assert (done.directory / "report.html").exists()
        assert "roundround compare outputs/eval" in done.err


def test_a_run_that_cannot_be_evaluated_does_not_stop_the_others(
    swept: tuple[Path, Done], roundround: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").symlink_to(swept[0] / "out/a-sweep")
    weights = swept[0] / "out/a-sweep/1/checkpoints/best/model.safetensors"
    kept = weights.read_bytes()
    weights.write_bytes(b"")
    try:
        done = roundround("eval", "run=runs", "length=16", "max_tokens=64", "logger=none", "device=cpu")
    finally:
        weights.write_bytes(kept)
    assert done.code in (1, 2)
    assert len(rows_of(done.err, "job")) == 3
    (line,) = [line for line in done.err.splitlines() if "jobs failed" in line]
    assert line.startswith("1 of 4 jobs failed: ")
    assert line.endswith("(job 1)")


def test_what_means_no_finished_run_is_refused(
    swept: tuple[Path, Done], roundround: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    assert_refused(roundround("eval", "run=empty"), "holds no run")
    assert_refused(roundround("eval", "run=nope/*"), "holds no run")
    word = f"run={swept[0] / 'out'}"
    assert_refused(roundround("export", word, "to=model"), "means 4 runs", "to= names one folder", "out/a-sweep/0")
    assert_refused(roundround("max-retrieval", word), "none is a finished run of max-retrieval")


def test_the_page_of_a_sweep_says_what_has_not_ended_well_and_no_run_of_one_job(tmp_path: Path) -> None:
    for job, status in enumerate(("done", "interrupted")):
        words = [f"seed={job}", "batch_size=3", f"run=runs/{job}"]
        folder = write_train(tmp_path / str(job), "rope", job, status=status, overrides=words)
        (folder / "metrics.jsonl").write_text('{"step": 1}\n{"st\n')
    write_sweep_page(tmp_path, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert '<p class="badge interrupted">' in page
    assert "batch_size" in page
    assert "runs/0" not in page
