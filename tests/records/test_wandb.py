"""Weights & Biases: what its file of an offline run holds is what the run directory says, to the last number."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from conftest import FAST, assert_refused, metrics_of, typed
from helpers_manifest import a_manifest
from PIL import Image

from roundround.records.directories import read_manifest
from roundround.records.loggers.base import WandB, has_login

URL, API = "https://wandb.example.com/run", "https://api.wandb.ai"
NAMES: dict[str, Any] = {"project": "project", "entity": None, "group": None, "tags": []}


def offline_runs(directory: Path) -> list[Path]:
    """The files of a run directory, one for each time that the run was started, in that order."""
    return sorted((directory / "wandb").glob("offline-run-*/run-*.wandb"))


def records(file: Path) -> list[Any]:
    """The records of a run that has ended: W&B's own process writes the last ones when it comes to it."""
    deadline = time.monotonic() + 60
    while True:
        found = list(records_so_far(file))
        if any(record.HasField("exit") for record in found):
            return found
        assert time.monotonic() < deadline, file
        time.sleep(0.05)


def records_so_far(file: Path) -> Iterator[Any]:
    """What W&B has written into the file of an offline run: a log of LevelDB's, after a header of seven bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, block, place, whole = file.read_bytes(), 32768, 7, b""
    while place + 7 <= len(data):
        if block - place % block < 7:  # too little room for a header
            place += block - place % block
            continue
        length, kind = struct.unpack("<HB", data[place + 4 : place + 7])
        if place + 7 + length > len(data):  # half written
            return
        whole += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # a record, or the last part of one
            record = Record()
            record.ParseFromString(whole)
            whole = b""
            yield record


def of_kind(file: Path, kind: str) -> list[Any]:
    return [getattr(record, kind) for record in records(file) if record.HasField(kind)]


def history(file: Path) -> list[dict[str, Any]]:
    """The rows that were logged, without the names that W&B adds."""
    rows = [{".".join(item.nested_key) or item.key: item for item in row.item} for row in of_kind(file, "history")]
    return [{k: json.loads(item.value_json) for k, item in row.items() if k[0] != "_"} for row in rows]


def metrics(file: Path) -> list[dict[str, Any]]:
    """The rows of numbers."""
    return [row for row in history(file) if not any(name.endswith(".path") for name in row)]


def media(file: Path, name: str) -> Path:
    """The file of the one table or image that was logged under a name."""
    (path,) = [row[f"{name}.path"] for row in history(file) if f"{name}.path" in row]
    return file.parent / "files" / path


# -- what is in the file


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory, shared_cache: None) -> Iterator[Path]:
    """A folder to work in."""
    before, folder = os.getcwd(), tmp_path_factory.mktemp("work")
    os.chdir(folder)
    yield folder
    os.chdir(before)


@pytest.fixture(scope="module")
def logged(work: Path, corpus: Path) -> list[str]:
    """The overrides of a fast training run that is logged."""
    return [*FAST, "data=text", f"data.path={corpus}", "logger=wandb", "logger.tags=[a,b]"]


@pytest.fixture(scope="module")
def sweep(logged: list[str]) -> Path:
    """A sweep of two jobs, whose best checkpoints are logged; the first job has then been resumed."""
    done = typed("train", "-m", *logged, "seed=0,1", "logger.log_checkpoint=best")
    assert done.code == 0, done.err
    assert typed("train", f"resume={done.directory / '0'}", "logger.log_checkpoint=last").code == 0
    return done.directory


def test_every_number_of_the_metrics_is_there(sweep: Path) -> None:
    for job in ("0", "1"):
        ours = metrics_of(sweep / job)
        assert len(ours) > 4
        assert metrics(offline_runs(sweep / job)[0]) == ours
    file = offline_runs(sweep / "1")[0]
    assert {metric.name or metric.glob_name: metric.step_metric for metric in of_kind(file, "metric")}["*"] == "step"


def test_the_config_is_that_of_the_manifest(sweep: Path) -> None:
    manifest = read_manifest(sweep / "1")
    (run,) = of_kind(offline_runs(sweep / "1")[0], "run")
    found = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert {key: value for key, value in found.items() if key[0] != "_"} == manifest["config"]
    assert manifest["config"]["seed"] == 1


def test_the_results_are_a_table(sweep: Path) -> None:
    results = json.loads((sweep / "1" / "results.json").read_text())
    table = json.loads(media(offline_runs(sweep / "1")[0], "results").read_text())
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    assert [{k: value for k, value in row.items() if value is not None} for row in rows] == results
    assert len(results) > 4


def test_the_jobs_of_a_sweep_are_a_group_of_one_verb(sweep: Path) -> None:
    runs = [run for job in ("0", "1") for file in offline_runs(sweep / job) for run in of_kind(file, "run")]
    assert len(runs) == 3
    assert {(run.run_group, run.job_type, tuple(run.tags)) for run in runs} == {(sweep.name, "train", ("a", "b"))}


def test_a_resumed_run_is_the_same_run_there(sweep: Path) -> None:
    first, second = (of_kind(file, "run")[0] for file in offline_runs(sweep / "0"))
    (other,) = (of_kind(file, "run")[0] for file in offline_runs(sweep / "1"))
    assert first.run_id == second.run_id == read_manifest(sweep / "0")["wandb"]["id"] != other.run_id
    assert media(offline_runs(sweep / "0")[1], "results").is_file()


def test_the_checkpoint_that_is_asked_for_is_an_artifact_of_a_resumed_run_too(sweep: Path) -> None:
    first, second = offline_runs(sweep / "0")
    for file, name in ((first, "best"), (second, "last")):
        (artifact,) = [artifact for artifact in of_kind(file, "artifact") if artifact.type == "model"]
        folder = (sweep / "0" / "checkpoints" / name).resolve()
        assert set(artifact.aliases) == {folder.name, name, "latest"}
        copies = {entry.path: Path(entry.local_path) for entry in artifact.manifest.contents}
        expected = {"model.safetensors", "trainer.safetensors", "state.json", "run.json", "tokenizer.json"}
        assert copies.keys() == expected
        for path in folder.iterdir():
            assert copies[path.name].read_bytes() == path.read_bytes()


@pytest.mark.pictures
def test_figures_are_images_and_no_checkpoint_is_logged_unasked(sweep: Path) -> None:
    done = typed("eval", f"run={sweep / '1'}", "length=[16,32]", "max_tokens=500", "device=cpu", "logger=wandb")
    assert done.code == 0, done.err
    (file,) = offline_runs(done.directory)
    image = media(file, "figures/perplexity")
    assert image.read_bytes() == (done.directory / "figures" / "perplexity.png").read_bytes()
    with Image.open(image) as picture:
        assert min(picture.size) > 300
    assert metrics(file) == [{"length": line["step"], **line} for line in metrics_of(done.directory)]
    assert [artifact for artifact in of_kind(file, "artifact") if artifact.type == "model"] == []


def test_wandb_itself_finds_the_files_that_are_to_be_uploaded_later(sweep: Path) -> None:
    files = [file for job in ("0", "1") for file in offline_runs(sweep / job)]
    folders = map(str, sorted(sweep.glob("*/wandb/offline-run-*")))  # as docs/howto/loggers.md types them
    command = [sys.executable, "-m", "wandb", "sync", "--dry-run", *folders]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "Would sync 3 run(s)" in done.stderr
    assert all(file.name in done.stderr for file in files)


# -- what is refused


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["train", *FAST, "logger=wandb", "logger.log_checkpoint=newest"], ["newest must be false, best or last"]),
        (
            ["theory", "rope.lemma_a_3", "logger=wandb", "logger.log_checkpoint=last"],
            ["log_checkpoint", "writes no checkpoints"],
        ),
    ],
)
def test_a_checkpoint_that_the_run_will_not_have_is_refused(here: Path, words: list[str], parts: list[str]) -> None:
    assert_refused(typed(*words), *parts)


# -- a login, and none


def test_a_login_is_a_key_or_a_line_in_netrc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_API_KEY", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert not has_login(API)
    netrc = tmp_path / ".netrc"
    netrc.write_text("machine api.wandb.ai login user password secret\n")
    netrc.chmod(0o600)
    assert has_login(API)
    assert not has_login("https://wandb.example.com/")
    netrc.rename(tmp_path / "mine")
    assert not has_login(API)
    monkeypatch.setenv("NETRC", str(tmp_path / "mine"))
    assert has_login(API)
    (tmp_path / "mine").write_text("this is not\na netrc file\n")
    assert not has_login(API)
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    assert has_login(API)


@pytest.mark.parametrize(
    ("verb", "overrides", "login", "asked", "said"),
    [
        ("train", [], True, "online", "W&B: https://wandb.example.com/run; logger=none turns it off"),
        ("max-retrieval", ["seeds=2"], True, "online", "W&B: https://wandb.example.com/run; "),
        ("train", [], False, "offline", "W&B: offline, in wandb/ of the run directory; wandb sync uploads it; "),
        (
            "eval",
            ["run=last"],
            True,
            "offline",
            "W&B: offline, in wandb/ of the run directory; wandb sync uploads it; ",
        ),
        ("probe", ["logger.project=mine"], True, "offline", "logger=none turns it off"),
        ("eval", ["logger=wandb"], True, "online", "W&B: https://wandb.example.com/run; "),
        ("eval", ["logger=several", "+logger@logger.wandb=wandb"], True, "online", "W&B: https://"),
        ("eval", ["logger=wandb"], False, "offline", "wandb sync uploads it"),
    ],
)
def test_only_a_training_goes_online_unasked(
    verb: str,
    overrides: list[str],
    login: bool,
    asked: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.delenv("NETRC", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40 if login else "")
    begin = MagicMock(side_effect=lambda mode, options: MagicMock(url=URL, settings=MagicMock(mode=mode)))
    monkeypatch.setattr(WandB, "begin", begin)
    WandB(**NAMES).start(tmp_path / "run", a_manifest() | {"verb": verb, "overrides": overrides})
    assert begin.call_args.args[0] == asked
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert line.endswith("logger=none turns it off")
