"""A run.json of somebody else: its shape is checked where it is read, and `last` passes over what is none."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from helpers_manifest import CONFIG, DATA, a_manifest

from roundround import __version__
from roundround.records.directories import find_run, jobs_of_sweep, read_manifest
from roundround.support.errors import UserError

MODEL = CONFIG["model"]


def write(directory: Path, content: Any) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    text = content if isinstance(content, str | bytes) else json.dumps(content)
    (directory / "run.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    return directory


FOREIGN = {
    "status is 5": a_manifest(status=5),
    "started is 'yesterday'": a_manifest(started="yesterday"),
    "overrides is 'seed=1'": a_manifest(overrides="seed=1"),
    "facts is None": a_manifest(facts=None),
    "config is None": a_manifest(config=None),
    "config.model is missing": a_manifest(config={}),
    "config.seed is 'abc'": a_manifest(config={**CONFIG, "seed": "abc"}),
    "config.model.train_length is '16'": a_manifest(config={**CONFIG, "model": {**MODEL, "train_length": "16"}}),
    "data.corpus_hash is missing": a_manifest(data={}),
    "data.n_vocab is 'x'": a_manifest(data={**DATA, "n_vocab": "x"}),
    "config.normalisers is missing": a_manifest(verb="max-retrieval", config={"model": MODEL}),
    "config.normalisers has '../x', no word": a_manifest(
        verb="max-retrieval", config={"model": MODEL, "normalisers": {"../x": MODEL}}
    ),
    "roundround is None": a_manifest(roundround=None),
    "not valid json": "{",
    "not valid json ('utf-8' codec": b"\xff\xfe{}",
}


@pytest.mark.parametrize("message", FOREIGN)
def test_what_is_wrong_with_a_foreign_manifest_is_named_in_one_line(tmp_path: Path, message: str) -> None:
    write(tmp_path, FOREIGN[message])
    with pytest.raises(UserError) as caught:
        read_manifest(tmp_path)
    line = str(caught.value)
    assert str(tmp_path / "run.json") in line
    assert message in line
    assert len(line) < 300
    assert line.isprintable()


def test_a_run_of_a_version_before_0_2_is_named_as_such(tmp_path: Path) -> None:
    for version, also in (("0.1.0", {}), ("0.1.9.dev3", {"config": None})):
        write(tmp_path, a_manifest(roundround=version, **also))
        with pytest.raises(UserError) as caught:
            read_manifest(tmp_path)
        assert str(caught.value) == (
            f"{tmp_path} was written by roundround {version}, whose runs {__version__} does not read; "
            "use that version, or make the run again"
        )
    for version in ("0.2.0", "0.10.1", "1.0.0rc1"):
        assert read_manifest(write(tmp_path, a_manifest(roundround=version)))["roundround"] == version


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


def test_what_is_no_regular_file_is_refused_without_waiting_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "run.json")
    with pytest.raises(UserError, match=r"run\.json cannot be read: it is not a regular file"):
        read_manifest(tmp_path)
    (tmp_path / "run.json").unlink()
    (tmp_path / "run.json").mkdir()
    with pytest.raises(UserError, match=r"run\.json cannot be read: it is not a regular file"):
        read_manifest(tmp_path)
    (tmp_path / "run.json").rmdir()
    with open(tmp_path / "run.json", "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(UserError, match="it has 1,099,511,627,776 bytes, and up to"):
        read_manifest(tmp_path)


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
