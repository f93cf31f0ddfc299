"""What killed processes leave: a run that is opened again is put right."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from helpers_kills import killed_before
from helpers_manifest import CONFIG, DATA

from roundround.records.directories import read_manifest
from roundround.records.loggers.base import Logger, NoLogger
from roundround.records.opening import opened
from roundround.records.run import Invocation
from roundround.support.errors import UserError

KNOWN = {"choices": {"pe": "p_rope"}, "data": DATA, "init": {"folder": "elsewhere"}}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    monkeypatch.setattr("roundround.records.opening.git_state", lambda: ({"commit": "c", "dirty": True}, b"the patch"))


def work(directory: Path, logger: Logger | None = None, known: Mapping[str, Any] | None = KNOWN) -> None:
    """A run of three steps, from wherever it stands."""
    directory.mkdir(exist_ok=True)
    invocation = Invocation(verb="train", directory=directory, overrides=[], choices={})
    resumed = (directory / "run.json").exists()
    known = {"choices": read_manifest(directory)["choices"]} if resumed else known
    with opened(invocation, config=CONFIG, logger=logger or NoLogger(), known=known) as run:
        run.forget_after(0)
        for step in (1, 2, 3):
            run.log(step, loss=1 / step)
        run.results([{"metric": "perplexity", "value": 2.0}], perplexity=2.0)


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def test_a_kill_before_any_change_of_a_run_leaves_what_a_resume_makes_right(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    with killed_before(sys.maxsize, tmp_path) as watch:
        work(whole)
    begun = 0
    assert watch.seen > 15
    for n in range(1, watch.seen + 1):
        directory = tmp_path / str(n)
        with killed_before(n, tmp_path):
            work(directory)
        if not (directory / "run.json").exists():
            continue
        begun += 1
        killed = read_manifest(directory)
        assert {name: killed[name] for name in KNOWN} == KNOWN, "all that is known is there from the first"
        work(directory)
        assert names(directory) == names(whole), n
        assert read_manifest(directory)["status"] == "done"
        for name in ("metrics.jsonl", "code.patch"):
            assert (directory / name).read_text() == (whole / name).read_text(), n
        assert (directory / "results.json").read_text() == (whole / "results.json").read_text().replace(
            str(whole), str(directory)
        )
    assert begun > 8


def test_a_resume_removes_temporary_files_and_nothing_of_the_users(tmp_path: Path) -> None:
    run = tmp_path / "run"
    work(run)
    before = names(run)
    mine = [".notes.json.abcdefgh", ".run.json.bak", ".run.json.ABCDEFGH", "run.json.abcdefgh", ".env"]
    for name in [*mine, ".run.json.a_b2defg", ".results.json.abcdefgh", ".metrics.jsonl.abcdefgh"]:
        (run / name).write_text("")
    (run / "figures").mkdir()
    for name in (".accuracy.svg.abcdefgh", ".mine.json.abcdefgh"):
        (run / "figures" / name).write_text("")
    work(run)
    assert names(run) == before | set(mine) | {"figures"}
    assert names(run / "figures") == {".mine.json.abcdefgh"}


@pytest.mark.parametrize("call", ["mkstemp", "acquire"])
def test_a_run_that_cannot_be_written_is_one_line(
    tmp_path: Path, call: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = tmp_path / "run"
    work(run)
    before = {path: path.read_bytes() for path in run.iterdir()}

    where = {
        "mkstemp": "roundround.support.files.tempfile.mkstemp",
        "acquire": "roundround.records.opening.FileLock.acquire",
    }
    monkeypatch.setattr(
        where[call], Mock(side_effect=PermissionError(13, "Permission denied", str(run / ".run.json.x")))
    )
    with pytest.raises(UserError, match=r"cannot write to .*/\.run\.json\.x: Permission denied"):
        work(run)
    assert {path: path.read_bytes() for path in run.iterdir()} == before
    assert caplog.text == ""
