"""A run directory: how a run begins, ends, goes on and is found again, and that no kill leaves half a file."""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from conftest import metrics_of
from helpers_manifest import CONFIG, a_manifest

from roundround.records import directories
from roundround.records.directories import claim, find_run, read_manifest, run_directory, sweep_directory
from roundround.records.loggers.base import Logger, NoLogger
from roundround.records.opening import opened
from roundround.records.run import Invocation, Run
from roundround.support import files
from roundround.support.errors import Interrupted, UserError
from roundround.support.files import write_atomically, write_json


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A run directory as Hydra hands it over: there, and empty."""
    path = tmp_path / "outputs" / "train" / "2026-01-31" / "10-00-00"
    path.mkdir(parents=True)
    return path


class Recorder(Logger):
    """Keeps what a run tells its logger."""

    def __init__(self) -> None:
        self.heard: list[tuple[Any, ...]] = []

    def start(self, directory: Path, manifest: dict[str, Any]) -> dict[str, Any] | None:
        on_disk = read_manifest(directory)
        self.heard.append(("start", directory, on_disk["status"], manifest["config"]))
        return {"id": "abc"}

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        self.heard.append(("log", dict(metrics), step))

    def results(self, records: Sequence[Mapping[str, Any]]) -> None:
        self.heard.append(("results", [(record["metric"], record["value"]) for record in records]))

    def figures(self, pictures: Mapping[str, Path]) -> None:
        self.heard.append(("figures", dict(pictures)))

    def checkpoint(self, folder: Path, also: Sequence[Path]) -> None:
        self.heard.append(("checkpoint", folder, list(also)))

    def finish(self, manifest: dict[str, Any], exit_code: int) -> None:
        self.heard.append(("finish", manifest["status"], manifest["headline"], exit_code))


def opening(directory: Path, logger: Logger | None = None, **given: Any) -> AbstractContextManager[Run]:
    """A run there; it is resumed where one lies there."""
    config = given.pop("config", CONFIG)
    if (directory / "run.json").exists():
        config = config | {"resume": str(directory)}
    usual: dict[str, Any] = {"verb": "train", "overrides": ["seed=3"], "choices": {}, "sweep": None}
    invocation = Invocation(directory=directory, **(usual | given))
    return opened(invocation, config=config, logger=logger or NoLogger())


def test_the_command_that_resumes_a_run_can_be_pasted() -> None:
    invocation = Invocation(verb="train", directory=Path("/my runs/1"), overrides=[], choices={})
    assert shlex.split(invocation.resume_line)[-2:] == ["train", "resume=/my runs/1"]


def ended_by(directory: Path, error: BaseException, logger: Logger | None = None) -> None:
    """A run that logs one step and is then stopped by this error, which `opened` lets through."""

    def task() -> None:
        with opening(directory, logger) as run:
            run.log(1, loss=2.0)
            raise error

    with pytest.raises(type(error)) as caught:
        task()
    assert caught.value is error


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()} - {".lock"}


# -- the manifest


def test_a_finished_run_is_done_and_says_how_it_came_to_be(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = "roundround train 'text=my text.txt'"
    with opening(directory, sweep="/sweeps/12-00-00-sweep", command=command) as run:
        during = read_manifest(directory)
        run.note(device="an abacus")
        assert read_manifest(directory)["device"] == "an abacus"
        run.results([{"metric": "perplexity", "value": 8.1}], perplexity=8.1)
    after = read_manifest(directory)
    assert (during["status"], during["ended"]) == ("running", None)
    assert after["status"] == "done"
    started, ended = (datetime.fromisoformat(after[key]) for key in ("started", "ended"))
    assert started.tzinfo is not None
    assert timedelta(0) < ended - started < timedelta(minutes=1)
    assert after["command"] == command
    assert (after["verb"], after["overrides"], after["config"], after["seed"]) == ("train", ["seed=3"], CONFIG, 3)
    assert after["sweep"] == "/sweeps/12-00-00-sweep"
    assert after["headline"] == {"perplexity": 8.1}
    records = json.loads((directory / "results.json").read_text())
    assert [(record["metric"], record["value"]) for record in records] == [("perplexity", 8.1)]
    assert capsys.readouterr().out == f"{directory}\n", "the last line of standard output is the directory, alone"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RuntimeError("out of\n  memory"), "failed: RuntimeError: out of memory"),
        (ZeroDivisionError(), "failed: ZeroDivisionError: ZeroDivisionError"),
        (UserError("after the first step"), "failed: after the first step"),
        (Interrupted(signal.SIGTERM), "interrupted"),
        (KeyboardInterrupt(), "interrupted"),
    ],
)
def test_a_stopped_run_says_why_in_one_line(
    directory: Path, error: BaseException, status: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ended_by(directory, error)
    manifest = read_manifest(directory)
    assert manifest["status"] == status
    assert manifest["started"] < manifest["ended"]
    assert names(directory) >= {"run.json", "metrics.jsonl"}
    assert capsys.readouterr().out == ""


def test_a_run_refused_before_its_first_step_leaves_only_what_was_there(directory: Path) -> None:
    (directory / "notes.txt").write_text("mine")
    logger = Recorder()

    def task() -> None:
        with opening(directory, logger) as run:
            (directory / "wandb").mkdir()
            (directory / "tokenizer.json").write_text("{}")
            assert read_manifest(directory)["status"] == "running"
            run.note(device="an abacus")
            raise UserError("no such corpus")

    with pytest.raises(UserError, match="no such corpus"):
        task()
    assert {path.name for path in directory.iterdir()} == {"notes.txt"}
    assert logger.heard[-1] == ("finish", "refused", {}, 2)


def test_a_password_from_a_yaml_is_not_recorded(directory: Path) -> None:
    config = CONFIG | {"data": {"path": ["a.txt", "http:/u:hush@h"]}}
    with (
        pytest.raises(UserError, match=r"data\.path: an address of http:// with credentials"),
        opening(directory, config=config),
    ):
        pass
    assert names(directory) == set()


def test_a_run_refused_before_its_first_step_deletes_nothing_of_the_users_own(directory: Path) -> None:
    own = ["code.patch", "wandb/offline-run-1/run.wandb", "variants/mine.py"]
    for name in own:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text("mine")
    with pytest.raises(UserError, match="no such corpus"), opening(directory):
        raise UserError("no such corpus")
    files = {path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()}
    assert files == set(own)


@pytest.mark.parametrize("name", ["metrics.jsonl", "results.json", "tokenizer.json"])
def test_a_new_run_overwrites_nothing_of_the_users_own(directory: Path, name: str) -> None:
    (directory / name).write_text("mine")
    with pytest.raises(UserError, match=f"has a {name} that a run would overwrite"), opening(directory):
        pytest.fail("it began")
    assert (directory / name).read_text() == "mine"
    assert names(directory) == {name}


def test_a_run_goes_on_where_it_lies_as_it_began(directory: Path) -> None:
    ended_by(directory, KeyboardInterrupt())
    first = read_manifest(directory)
    with opening(directory, config={"seed": 9}, overrides=["resume=last"]) as run:
        during = read_manifest(directory)
        assert during == run.manifest
    assert (during["status"], during["ended"]) == ("running", None)
    for key in ("started", "config", "config_hash", "overrides", "seed", "git"):
        assert during[key] == first[key]
    assert first["ended"] < during["resumed"]
    assert read_manifest(directory)["status"] == "done"


@pytest.mark.parametrize(
    ("verb", "overrides", "config", "fits"),
    [
        ("train", ["seed=3"], {"resume": None}, False),
        ("eval", ["seed=3"], {}, False),
        ("train", ["seed=4"], {}, False),
        ("train", ["seed=3"], {}, True),  # of a verb that starts over
        ("train", ["seed=3"], {"resume": "the run"}, True),
    ],
)
def test_another_run_does_not_take_the_place_of_one(
    verb: str, overrides: list[str], config: dict[str, Any], fits: bool, directory: Path
) -> None:
    """Its manifest would say what the first one was, beside the numbers of the second."""
    ended_by(directory, KeyboardInterrupt())
    before = (directory / "run.json").read_text(), (directory / "metrics.jsonl").read_text()
    invocation = Invocation(verb=verb, directory=directory, overrides=overrides, choices={})
    with nullcontext() if fits else pytest.raises(UserError, match="holds a run of train already"):  # noqa: SIM117
        with opened(invocation, config=config, logger=NoLogger()):
            pass
    if not fits:
        assert ((directory / "run.json").read_text(), (directory / "metrics.jsonl").read_text()) == before


@pytest.mark.parametrize("steps", [0, 1], ids=["before its first step", "after it"])
def test_a_run_refused_when_it_goes_on_is_as_it_was(directory: Path, steps: int) -> None:
    ended_by(directory, KeyboardInterrupt())
    if not steps:
        (directory / "metrics.jsonl").unlink()
    before = names(directory), read_manifest(directory)
    with pytest.raises(UserError), opening(directory):
        raise UserError("not like this")
    assert (names(directory), read_manifest(directory)) == before


def test_other_ranks_write_nothing(directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr("roundround.records.opening.rank", lambda: 1)
    logger = Recorder()
    with opening(directory, logger) as run:
        run.note(device="an abacus")
        run.log(1, loss=2.0)
        run.forget_after(0)
        run.results([{"metric": "perplexity", "value": 8.1}], perplexity=8.1)
    with pytest.raises(UserError), opening(directory, logger):
        raise UserError("no such corpus")
    assert list(directory.iterdir()) == []
    assert logger.heard == []
    assert capsys.readouterr().out == ""


def test_another_rank_joins_the_run_that_the_first_has_begun(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lightning starts its other ranks with the first one's directory."""
    write_json(directory / "run.json", a_manifest(status="running"))
    invocation = Invocation(verb="train", directory=directory, overrides=[], choices={})
    for rank, answer in ((1, nullcontext()), (0, pytest.raises(UserError, match="holds a run of train already"))):
        monkeypatch.setattr("roundround.records.opening.rank", lambda rank=rank: rank)
        with answer, opened(invocation, config={"resume": None}, logger=Logger()):
            pass


# -- the logger


def test_the_logger_hears_the_config_at_the_start_and_what_the_run_leaves_at_the_end(directory: Path) -> None:
    logger = Recorder()
    with opening(directory, logger) as run:
        assert read_manifest(directory)["wandb"] == {"id": "abc"}
        run.log(7, loss=2.0, lr=0.1)
        run.results([{"metric": "perplexity", "value": 8.1}], perplexity=8.1)
        (directory / "figures").mkdir()
        for name in ("b.png", "a.png", "a.svg"):
            (directory / "figures" / name).touch()
    assert logger.heard == [
        ("start", directory, "running", CONFIG),
        ("log", {"loss": 2.0, "lr": 0.1}, 7),
        ("results", [("perplexity", 8.1)]),
        ("figures", {name: directory / "figures" / f"{name}.png" for name in "ab"}),
        ("finish", "done", {"perplexity": 8.1}, 0),
    ]


def test_a_logger_that_fails_at_the_end_hides_neither_the_status_nor_the_error(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken = NoLogger()
    broken.finish = Mock(side_effect=OSError("the network is gone"))
    ended_by(directory, ZeroDivisionError("the error that matters"), broken)
    assert read_manifest(directory)["status"] == "failed: ZeroDivisionError: the error that matters"
    assert "the network is gone" in caplog.text


# -- metrics.jsonl


def test_every_step_is_on_the_disk_as_soon_as_it_is_logged(directory: Path) -> None:
    with opening(directory) as run:
        for step in (1, 2, 3):
            run.log(step, loss=1 / step)
            assert metrics_of(directory) == [{"step": s, "loss": 1 / s} for s in range(1, step + 1)]


TORN = ['{"step": 4, "lo', "\x00\x00\x00"]


@pytest.mark.parametrize("torn", TORN)
def test_a_resumed_run_forgets_later_steps_and_a_torn_last_line(directory: Path, torn: str) -> None:
    with opening(directory) as run:
        for step in (1, 2, 3):
            run.log(step, loss=1.0)
        with open(directory / "metrics.jsonl", "a") as file:
            file.write(torn)
        run.forget_after(2)
        assert [row["step"] for row in metrics_of(directory)] == [1, 2]
        run.log(3, loss=0.5)
    assert [(row["step"], row["loss"]) for row in metrics_of(directory)] == [(1, 1.0), (2, 1.0), (3, 0.5)]


# -- two processes


CHILD = """
import sys
from pathlib import Path
from roundround.records.loggers.base import NoLogger
from roundround.records.opening import opened
from roundround.records.run import Invocation
invocation = Invocation(verb="probe", directory=Path(sys.argv[1]), overrides=[], choices={})
with opened(invocation, config={}, logger=NoLogger()) as run:
    run.log(1, loss=2.0)
    print("begun", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def other_process(directory: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that has opened the same run and waits."""
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(directory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdin is not None
    assert child.stdout.readline() == "begun\n"
    yield child
    child.kill()
    child.wait()
    child.stdin.close()
    child.stdout.close()


def test_a_second_process_is_refused_and_touches_nothing(directory: Path, other_process: subprocess.Popen[str]) -> None:
    before = {path: path.read_bytes() for path in directory.iterdir()}
    with pytest.raises(UserError, match="is being written by another process"), opening(directory):
        pytest.fail("two processes in one run directory")
    assert {path: path.read_bytes() for path in directory.iterdir()} == before
    assert other_process.communicate("")[0] == f"{directory}\n"
    assert read_manifest(directory)["status"] == "done"


def test_a_killed_run_still_says_running_and_can_go_on(directory: Path, other_process: subprocess.Popen[str]) -> None:
    other_process.kill()
    other_process.wait()
    killed = read_manifest(directory)
    assert (killed["status"], killed["ended"]) == ("running", None)
    with opening(directory):
        pass
    assert read_manifest(directory)["status"] == "done"
    assert read_manifest(directory)["started"] == killed["started"]


# -- files


@pytest.mark.parametrize("call", ["fsync", "chmod", "replace"])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.json"
    path.write_text("old")

    with monkeypatch.context() as broken:
        broken.setattr(files.os, call, Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
        with pytest.raises(OSError, match="No space left"):
            write_atomically(path, "new")
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("run.json", "old")]
    write_atomically(path, "new")
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("run.json", "new")]


def test_a_file_is_whole_on_the_disk_before_it_takes_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(files.os, "fsync", lambda handle: (events.append("flushed"), fsync(handle)))

    def rename(source: str, target: Path) -> None:
        assert Path(source).parent == target.parent, "a rename is atomic inside one file system only"
        events.append(Path(source).read_text())
        replace(source, target)

    monkeypatch.setattr(files.os, "replace", rename)
    write_atomically(tmp_path / "run.json", "all of it")
    assert events == ["flushed", "all of it"]


# -- finding a run


def leave_run(path: Path, started: str, status: str = "done", verb: str = "train") -> Path:
    path.mkdir(parents=True)
    write_json(path / "run.json", a_manifest(verb=verb, status=status, started=started))
    return path


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    """Runs whose folders sort otherwise than the times at which they started."""
    root = tmp_path / "outputs"
    leave_run(root / "train/2026-01-02/23-00-00", "2026-01-02T23:00:00.000000+00:00")
    leave_run(root / "train/2026-01-03/09-00-00-sweep/0", "2026-01-03T09:00:01.000000+00:00")
    leave_run(root / "train/2026-01-03/09-00-00-sweep/10", "2026-01-03T09:00:30.000000+00:00")
    leave_run(root / "train/2026-01-03/09-00-00-sweep/9", "2026-01-03T09:00:20.000000+00:00")
    leave_run(root / "train/2026-01-03/10-00-00", "2026-01-03T08:59:59.000000+00:00")
    leave_run(root / "train/2026-01-03/11-00-00", "2026-01-03T11:00:00.000000+00:00", "failed: boom")
    leave_run(root / "train/2026-01-03/12-00-00", "2026-01-03T12:00:00.000000+00:00", "interrupted")
    leave_run(root / "train/2026-01-03/13-00-00", "2026-01-03T13:00:00.000000+00:00", "running")
    leave_run(root / "eval/2026-01-03/14-00-00", "2026-01-03T14:00:00.000000+00:00", verb="eval")
    return root


def test_last_is_the_latest_started_run_that_is_done_jobs_of_sweeps_included(outputs: Path) -> None:
    assert find_run("last", str(outputs), "train", done=True) == outputs / "train/2026-01-03/09-00-00-sweep/10"


def test_last_says_that_a_newer_run_is_not_finished(outputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    day = outputs / "train/2026-01-03"
    for reference, taken in {"last": "09-00-00-sweep/10", "last~2": "09-00-00-sweep/0"}.items():
        find_run(reference, str(outputs), "train", done=True)
        assert capsys.readouterr().err == (
            f"{reference} means {day / taken}, because {day / '13-00-00'}, which is newer, is not finished (running)\n"
        )
    leave_run(day / "16-00-00", "2026-01-03T16:00:00.000000+00:00")
    find_run("last", str(outputs), "train", done=True)
    find_run("last", str(outputs), "train", done=False)
    assert capsys.readouterr().err == ""
    leave_run(day / "17-00-00", "2026-01-03T17:00:00.000000+00:00", "failed: boom")
    find_run("last", str(outputs), "train", done=True)
    assert capsys.readouterr().err == (
        f"last means {day / '16-00-00'}, because {day / '17-00-00'}, which is newer, is not finished (failed: boom)\n"
    )


def test_last_without_a_finished_run_says_how_to_start_one(tmp_path: Path) -> None:
    leave_run(tmp_path / "train/2026-01-03/11-00-00", "2026-01-03T11:00:00.000000+00:00", "failed: boom")
    with pytest.raises(UserError, match=r"no finished train run last under .*; start one with: roundround train"):
        find_run("last", str(tmp_path), "train", done=True)
    with pytest.raises(UserError, match="no eval run last under"):
        find_run("last", str(tmp_path), "eval", done=False)


def test_a_run_is_found_anywhere_by_its_path(outputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = leave_run(tmp_path / "kept", "2020-01-01T00:00:00.000000+00:00", "interrupted")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for reference in (str(elsewhere), "kept", "kept/", "~/kept"):
        assert find_run(reference, str(outputs), "train", done=True) == elsewhere


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "it has no run.json"),
        ("{", "cannot be read"),
        ("[]", "is not a manifest of roundround"),
        ('{"verb": "train", "status": "done"}', "is not a manifest of roundround"),
    ],
)
def test_a_folder_that_is_no_run_is_a_user_error(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / "run.json").write_text(text)
    with pytest.raises(UserError, match=message):
        find_run(str(tmp_path), "outputs", "train", done=True)


# -- claiming a directory


@pytest.mark.parametrize("name", ["train.log", "checkpoints", "figures/curve.svg", "wandb"])
def test_a_run_with_a_link_that_leads_out_of_it_is_not_resumed(tmp_path: Path, name: str) -> None:
    run = leave_run(tmp_path / "run", "2026-01-02T23:00:00.000000+00:00")
    (run / "checkpoints" / "step-00000001").mkdir(parents=True)
    (run / "checkpoints" / "last").symlink_to("step-00000001")
    (run / "wandb").mkdir()
    (run / "wandb" / "debug.log").symlink_to("/tmp/wandb.log")
    assert run_directory("outputs", "train", str(run)) == str(run)
    path = run / name
    if path.is_dir():
        path.rename(tmp_path / "elsewhere")
    path.parent.mkdir(exist_ok=True)
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=f"{name} is a link to something outside the run"):
        run_directory("outputs", "train", str(run))
    assert find_run(str(run), "outputs", "train", done=True) == run, "it may be read"


def test_launches_of_one_second_get_directories_of_their_own(tmp_path: Path) -> None:
    noon = datetime(2026, 1, 31, 12, 0, 0)
    claimed = [claim(tmp_path / "train", noon) for _ in range(3)]
    assert [path.relative_to(tmp_path).as_posix() for path in claimed] == [
        "train/2026-01-31/12-00-00",
        "train/2026-01-31/12-00-00-2",
        "train/2026-01-31/12-00-00-3",
    ]
    assert all(path.is_dir() for path in claimed)


def test_a_sweep_and_its_jobs_lie_where_last_looks_for_them(tmp_path: Path) -> None:
    sweep = Path(sweep_directory(str(tmp_path), "train"))
    second = Path(sweep_directory(str(tmp_path), "train"))
    assert re.fullmatch(r"\d\d-\d\d-\d\d-sweep(-2)?", second.name)
    for folder in (sweep, second):
        job = leave_run(folder / "0", datetime.now().astimezone().isoformat(timespec="microseconds"))
        assert find_run("last", str(tmp_path), "train", done=True) == job


def test_a_resumed_run_keeps_its_directory(outputs: Path) -> None:
    run = outputs / "train/2026-01-03/12-00-00"
    assert run_directory(str(outputs), "train", str(run)) == str(run)
    directories.remove_scratch(run)
    assert run.is_dir()


# -- provenance


# -- what once went wrong


def test_going_on_without_a_logger_keeps_the_id_of_weights_and_biases(directory: Path) -> None:
    ended_by(directory, KeyboardInterrupt(), Recorder())
    with opening(directory, NoLogger()):
        pass
    assert read_manifest(directory)["wandb"] == {"id": "abc"}
