"""A run.json of somebody else: its shape is checked where it is read, and `last` passes over what is none."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from helpers_manifest import a_manifest

from roundround.records.directories import find_run, jobs_of_sweep, read_manifest
from roundround.support.errors import UserError


def write(directory: Path, content: Any) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    text = content if isinstance(content, str | bytes) else json.dumps(content)
    (directory / "run.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    return directory


FOREIGN = {"lacks at least one of the keys": {"verb": "train"}, "cannot be read": "{", "'utf-8' codec": b"\xff\xfe{}"}


@pytest.mark.parametrize("message", FOREIGN)
def test_what_is_no_manifest_is_refused_in_one_line(tmp_path: Path, message: str) -> None:
    write(tmp_path, FOREIGN[message])
    with pytest.raises(UserError, match=re.escape(message)):
        read_manifest(tmp_path)


def test_a_manifest_as_a_run_writes_it_is_taken(tmp_path: Path) -> None:
    peak = {"peak_memory": {"resident_bytes": 1 << 30, "device_bytes": None}}
    for change in (
        {},
        {"data": None},
        {"status": "failed: boom"},
        {"choices": {"pe": None}},
        {"peak_memory": None},
        peak,
    ):
        assert read_manifest(write(tmp_path, a_manifest(**change))) == a_manifest(**change)


def test_last_passes_over_every_foreign_manifest(tmp_path: Path) -> None:
    good = write(tmp_path / "train/2026-01-01/09-00-00", a_manifest(started="2026-01-01T09:00:00+00:00"))
    for n, content in enumerate(FOREIGN.values()):
        write(tmp_path / f"train/2027-01-01/{n}", content)
    write(tmp_path / "train/2027-01-02/eval", a_manifest(verb="eval", started="2027-01-02T09:00:00+00:00"))
    (tmp_path / "train/2027-01-03/fifo").mkdir(parents=True)
    os.mkfifo(tmp_path / "train/2027-01-03/fifo/run.json")
    for done in (True, False):
        assert find_run("last", str(tmp_path), "train", done=done) == good


def test_a_damaged_job_is_no_job_of_a_sweep(tmp_path: Path) -> None:
    write(tmp_path / "0", "{")
    write(tmp_path / "1", a_manifest())
    assert [path.name for path, _ in jobs_of_sweep(tmp_path)] == ["1"]
