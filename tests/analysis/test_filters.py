"""`roundround runs key=value`: the filters of analysis/past_run.py."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from helpers_runs import write_run

from roundround.analysis.past_run import Filters, PastRun, past_run
from roundround.support.errors import UserError


def run_with(folder: Path, **fields: Any) -> PastRun:
    return past_run(write_run(folder / "run", **fields))


@pytest.mark.parametrize(
    ("key", "value", "is_meant"),
    [
        ("verb", "eval", True),
        ("verb", "train,eval", True),
        ("verb", "train", False),
        ("status", "done", True),
        ("status", "failed,died", False),
        ("since", "2026-01-01", True),
        ("since", "2d", False),
        ("pe", "rope", True),
        ("pe", "p_rope,rope", True),
        ("pe", "p_rope", False),
        ("optim.lr", "1e-3", True),
        ("optim.lr", "0.0010", True),
        ("optim.lr", "0.002", False),
        ("compile", "false", True),
        ("compile", "true", False),
    ],
)
def test_a_filter_takes_what_it_says(tmp_path: Path, key: str, value: str, is_meant: bool) -> None:
    assert Filters({key: value}).take(run_with(tmp_path)) is is_meant


def test_a_look_at_a_model_has_the_settings_that_it_was_trained_with(tmp_path: Path) -> None:
    trained = write_run(tmp_path / "trained", verb="reproduce", config={"optim": {"lr": 0.5}}, choices={"pe": "alibi"})
    look = past_run(write_run(tmp_path / "look", run=str(trained), config={"length": [128, 256]}, choices={}))
    for key, value in {"pe": "alibi", "optim.lr": "0.5", "length": "256"}.items():
        assert Filters({key: value}).take(look)
    for key, value in {"pe": "rope", "optim.lr": "0.001", "length": "512"}.items():
        assert not Filters({key: value}).take(look)


def test_a_run_that_was_killed_has_died(tmp_path: Path) -> None:
    run = run_with(tmp_path, status="running", ended=None)
    with FileLock(run.directory / ".lock"):
        assert past_run(run.directory).status == "running"
    assert past_run(run.directory).status == "died"
    assert Filters({"status": "died"}).take(past_run(run.directory))
    assert Filters({"status": "failed"}).take(run_with(tmp_path / "b", status="failed: no space"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"status": "faild"}, "no status=faild; did you mean 'failed'?"),
        ({"verb": "evla"}, "no verb=evla; did you mean 'eval'?"),
        ({"since": "2x"}, "since=2x: give 30m, 12h, 2d, 1w, or a date such as 2026-01-31"),
        ({"since": ""}, "since=: give"),
        ({"since": "999999w"}, "since=999999w: give"),
        ({"optim.lrr": "1"}, "no run has the setting 'optim.lrr'; did you mean 'optim.lr'?"),
    ],
)
def test_a_misspelt_filter_is_refused(tmp_path: Path, given: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):  # noqa: PT012
        filters = Filters(given)
        filters.take(run_with(tmp_path))
        filters.check()
