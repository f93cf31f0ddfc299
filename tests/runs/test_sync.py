"""`roundround sync`: what is uploaded, in which order, and what is said where nothing is. W&B itself is not called."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import typed
from filelock import FileLock
from helpers_manifest import a_manifest

UPLOADER = """
import json, os, sys
from pathlib import Path
about = {"folders": sys.argv[1:], "mode": os.environ.get("WANDB_MODE"), "safe_path": sys.flags.safe_path}
json.dump(about, open("called.json", "w"))
for folder in sys.argv[1:]:
    for file in Path(folder).glob("*.wandb"):
        if "bad" not in file.name:
            file.with_suffix(".wandb.synced").touch()
"""


@pytest.fixture(autouse=True)
def _uploader(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A login, and in the place of `wandb sync` a program that marks what it is given as W&B does."""
    (here / "uploader.py").write_text(UPLOADER)
    monkeypatch.setattr("roundround.runs.loggers.wandb_sync.WANDB_SYNC", (sys.executable, str(here / "uploader.py")))
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)


@pytest.fixture
def a_run(here: Path) -> Callable[..., Path]:
    """A run with these offline files, by the times of their starts."""

    def write(name: str, *starts: str, status: str = "done") -> Path:
        directory = here / "outputs" / "train" / name
        directory.mkdir(parents=True)
        (directory / "run.json").write_text(json.dumps(a_manifest(status=status, wandb={"id": name})))
        for start in starts:
            folder = directory / "wandb" / f"offline-run-{start}-{directory.name}"
            folder.mkdir(parents=True)
            (folder / f"run-{directory.name}.wandb").touch()
        return directory

    return write


def uploaded() -> list[str]:
    called = Path("called.json")
    return json.loads(called.read_text())["folders"] if called.exists() else []


def test_every_start_of_every_run_is_uploaded_in_its_order_once(a_run: Callable[..., Path]) -> None:
    first, second = a_run("sweep/0", "20260102_1", "20260101_1"), a_run("sweep/1", "20260103_1")
    done = typed("sync", "outputs/train/sweep")
    assert done.code == 0, done.err
    names = ["offline-run-20260101_1-0", "offline-run-20260102_1-0", "offline-run-20260103_1-1"]
    assert sorted(Path(folder).name for folder in uploaded()) == names
    assert [Path(folder).name for folder in uploaded() if folder.endswith("-0")] == names[:2]
    assert sorted(done.out.splitlines()) == [f"{first}: synced", f"{second}: synced"]
    Path("called.json").unlink()
    again = typed("sync", str(first), str(second))
    assert (again.code, again.out, uploaded()) == (0, "", [])
    assert f"{first}: already synced" in again.err


def test_a_start_that_came_later_is_uploaded_alone(a_run: Callable[..., Path]) -> None:
    run = a_run("0", "20260101_1", "20260102_1")
    (run / "wandb/offline-run-20260101_1-0/run-0.wandb.synced").touch()
    assert typed("sync", "last").code == 0
    assert [Path(folder).name for folder in uploaded()] == ["offline-run-20260102_1-0"]


def test_the_mode_that_made_it_offline_does_not_keep_it_there(
    a_run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    a_run("0", "20260101_1")
    assert typed("sync", "last").code == 0
    assert json.loads(Path("called.json").read_text())["mode"] is None


def test_the_uploader_imports_nothing_from_the_current_folder(a_run: Callable[..., Path]) -> None:
    a_run("0", "20260101_1")
    assert typed("sync", "last").code == 0
    assert json.loads(Path("called.json").read_text())["safe_path"]


def test_what_could_not_be_uploaded_is_named_and_the_rest_is_said(a_run: Callable[..., Path]) -> None:
    bad, good = a_run("bad", "20260101_1"), a_run("good", "20260102_1")
    done = typed("sync", "outputs")
    assert (done.code, done.out) == (1, f"{good}: synced\n")
    assert done.err.strip().splitlines()[-1].endswith(f"1 of 2 not uploaded, see above: {bad}")


def test_runs_without_files_and_running_ones_are_named_and_passed_over(a_run: Callable[..., Path]) -> None:
    without, running, good = a_run("a"), a_run("b", "20260101_1", status="running"), a_run("c", "20260102_1")
    with FileLock(running / ".lock"):
        done = typed("sync", "outputs")
    assert (done.code, done.out) == (0, f"{good}: synced\n")
    assert f"{without}: has no files of Weights & Biases" in done.err
    assert f"{running}: is still running" in done.err


def refused(*words: str) -> str:
    done = typed(*words)
    assert (done.code, done.out, uploaded()) == (2, "", [])
    return done.err.strip().splitlines()[-1]


def test_without_a_login_one_line_says_how_to_get_one(
    a_run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, here: Path
) -> None:
    monkeypatch.delenv("WANDB_API_KEY")
    monkeypatch.setenv("HOME", str(here))
    monkeypatch.delenv("NETRC", raising=False)
    a_run("0", "20260101_1")
    assert "no login to Weights & Biases: type `wandb login`" in refused("sync", "outputs")


def test_nothing_to_upload_at_all_is_refused(a_run: Callable[..., Path]) -> None:
    a_run("0")
    assert "last: no run was logged offline" in refused("sync", "last")
    assert "give runs" in refused("sync")
    assert "'nowhere' is no folder" in refused("sync", "nowhere")
    assert "no key verb (choices: outputs)" in refused("sync", "last", "verb=train")
