"""`roundround rerun`: what is typed again, what is refused, and the verdict on the numbers."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from conftest import FAST, Done, typed
from forkserver import Forkserver

from roundround import __version__ as version
from roundround.analysis.past_run import past_run
from roundround.analysis.repetition import overrides_of
from roundround.distributed.child import clean_environment, start
from roundround.verbs.rerun import run as task


def edit(directory: Path, name: str, change: Callable[[Any], Any]) -> None:
    """Write a file with what the change returns; with what it has changed, where it returns nothing."""
    content = json.loads((directory / name).read_text())
    changed = change(content)
    (directory / name).write_text(json.dumps(content if changed is None else changed))


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory, corpus: Path, shared_cache: None) -> Path:
    """A folder with a run of train on a text beside it, by a relative path."""
    folder = tmp_path_factory.mktemp("origin")
    shutil.copy(corpus, folder / "my text.txt")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        done = typed("train", *FAST, "text=my text.txt", "seed=3", "softmax=ssmax")
    assert done.code == 0, done.err
    return folder


@pytest.fixture
def trained(origin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that run, to be changed; we stand in another folder, which has the text too."""
    (run,) = origin.glob("outputs/train/*/*")
    monkeypatch.chdir(tmp_path)
    shutil.copy(origin / "my text.txt", tmp_path)
    return Path(shutil.copytree(run, tmp_path / "run", symlinks=True))


@dataclass
class Again:
    """What is started; in its place the run is copied, with other records or another manifest."""

    origin: Path
    calls: list[tuple[list[str], Path]] = field(default_factory=list)
    records: Callable[[list[dict[str, Any]]], Any] = list
    manifest: Callable[[dict[str, Any]], Any] = dict

    def start(self, words: list[str], folder: Path) -> Path:
        self.calls.append((words, folder))
        (to,) = [word.removeprefix("hydra.run.dir=") for word in words if word.startswith("hydra.run.dir=")]
        directory = Path(shutil.copytree(self.origin, to, symlinks=True))
        edit(directory, "results.json", self.records)
        edit(directory, "run.json", self.manifest)
        return directory


@pytest.fixture
def again(monkeypatch: pytest.MonkeyPatch, trained: Path) -> Again:
    found = Again(trained)
    monkeypatch.setattr(task, "start", found.start)
    return found


def last_line(done: Done) -> str:
    return done.err.strip().splitlines()[-1]


def refused(*words: str) -> str:
    """The line of a refusal that leaves nothing."""
    done = typed("rerun", *words)
    assert (done.code, done.out) == (2, ""), done
    assert [path for path in Path("outputs").rglob("*") if path.is_file()] == []
    assert len([line for line in done.err.splitlines() if line.startswith("roundround")]) == 1
    return last_line(done)


# -- the same run


def test_a_run_comes_out_equal_from_another_folder(
    origin: Path, tmp_path: Path, monkeypatch: Any, server: Forkserver, env: dict[str, str], streams: Path
) -> None:
    def start(words: list[str], folder: Path) -> Path:  # after the imports that a process of its own begins with
        return Path(server.run(words, folder, streams, env=env).out.splitlines()[-1])

    (run,) = origin.glob("outputs/train/*/*")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(task, "start", start)
    done = typed("rerun", str(run), "trust=true")
    assert done.code == 0, done.err
    assert f"{run}: 10 numbers: 10 equal" in done.err
    again = json.loads((done.directory / "again" / "run.json").read_text())
    before = json.loads((run / "run.json").read_text())
    differing = {key for key in before["config"] if before["config"][key] != again["config"][key]}
    assert differing <= {"trust", "logger", "outputs"}
    assert again["data"] == before["data"]
    assert done.manifest["headline"] == {"equal": 10, "close": 0, "different": 0, "missing": 0}
    assert done.manifest["facts"]["repeats"] == str(run)
    assert {r["verdict"] for r in done.results if r["metric"] == "relative_difference"} == {"equal"}
    listed = typed("runs", "outputs", "format=json")
    assert [run["verb"] for run in json.loads(listed.out)] == ["rerun"], "the repetition is no run of its own"


def test_without_trust_nothing_runs_in_the_folder_that_a_run_names(
    trained: Path, origin: Path, tmp_path: Path, again: Again
) -> None:
    done = typed("rerun", str(trained))
    assert done.code == 0, done.err
    ((words, folder),) = again.calls
    assert folder == tmp_path
    assert "trust=false" in words
    assert f"not in {origin}, where it was made" in done.err


def test_a_conf_folder_that_a_run_names_is_read_with_trust_alone(trained: Path, tmp_path: Path, again: Again) -> None:
    theirs = tmp_path / "theirs"
    (theirs / "pe").mkdir(parents=True)
    command = "roundround train --config-dir theirs"
    edit(trained, "run.json", lambda manifest: manifest | {"command": command, "cwd": str(tmp_path)})
    line = refused(str(trained))
    assert f"--config-dir {theirs}" in line
    assert "trust=true" in line
    assert again.calls == []
    before = list(sys.path)
    assert typed("rerun", str(trained), "trust=true").code == 0
    assert typed("rerun", str(trained), "--config-dir", "theirs").code == 0, "a folder that is typed is the user's own"
    assert [words[-2:] for words, _ in again.calls] == [["--config-dir", str(theirs)]] * 2
    assert sys.path == before


def test_a_repetition_imports_nothing_from_the_folder_it_stands_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("typer.py", "roundround.py", "sitecustomize.py"):
        (tmp_path / name).write_text("open('EXECUTED', 'w')")
    (tmp_path / "mine").mkdir()
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["", ".", "relative", str(tmp_path / "mine")]))
    printed = start(["--version"], tmp_path)
    assert str(printed) == version
    assert not (tmp_path / "EXECUTED").exists()
    path = clean_environment()["PYTHONPATH"].split(os.pathsep)
    assert path[1:] == [str(tmp_path / "mine")], "an absolute folder is the user's own"


def test_numbers_that_differ_end_with_1_and_are_named(trained: Path, again: Again) -> None:
    def other(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
        first, second, *rest, _ = records
        return [
            {**first, "value": first["value"] * 1.01},
            {**second, "value": second["value"] * (1 + 1e-9)},
            *rest,
        ]

    again.records = other
    done = typed("rerun", str(trained))
    assert done.code == 1
    assert "7 equal, 1 close, 1 different, 1 missing; the largest relative difference is 0.0099" in last_line(done)
    (results,) = Path("outputs/rerun").glob("*/*/results.json")
    verdicts = [r["verdict"] for r in json.loads(results.read_text()) if r["metric"] == "relative_difference"]
    assert (verdicts.count("different"), verdicts.count("missing")) == (1, 1)
    again.records = lambda records: other(records) + records[-1:]
    assert typed("rerun", str(trained)).code == 1
    assert typed("rerun", str(trained), "rtol=0.02").code == 0


def test_other_versions_another_device_and_other_code_are_named(trained: Path, again: Again) -> None:
    older = {"git": {"commit": "f00" * 13 + "f", "dirty": False}, "device": "abacus"}
    edit(trained, "run.json", lambda manifest: (manifest["versions"].update(torch="1.0"), manifest.update(older))[1])
    (trained / "code.patch").unlink(missing_ok=True)  # there where the checkout that runs these tests has changes
    again.manifest = lambda manifest: manifest | {"device": "cpu: new"}
    done = typed("rerun", str(trained))
    assert done.code == 0, done.err
    assert "the code has changed: commit f00f00f00f00" in done.err
    assert "torch 1.0 then" in done.err
    assert "another device: abacus then, cpu: new now" in done.err


# -- what is refused


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"status": "failed: NotFinite: the loss"}, "is not finished (failed: NotFinite: the loss)"),
        ({"status": "interrupted"}, "is not finished (interrupted)"),
        ({"status": "running"}, "is not finished (died)"),
        (
            {"verb": "reproduce"},
            "is a run of reproduce, which rerun cannot repeat; rerun can repeat train, eval, probe",
        ),
        ({"overrides": ["hydra.callbacks.x._target_=os.system"]}, "override 'hydra.callbacks.x._target_=os.system'"),
        ({"overrides": ["logger@hydra.callbacks=none"]}, "override 'logger@hydra.callbacks=none'"),
        ({"overrides": ["--config-dir=/evil"]}, "override '--config-dir=/evil'"),
        ({"overrides": ["+trainer.callbacks=[{_target_: evil.Code}]"]}, "evil.Code, whose code is not part of"),
        ({"overrides": ["pe=gone"]}, "no pe=gone"),
        ({"overrides": ["optim.gone=3"]}, "no config key 'optim.gone'"),
        ({"command": "roundround train --config-dir /nowhere"}, "--config-dir /nowhere, and a repetition"),
        ({"command": "roundround train -cd=mine"}, "mine, and a repetition would run"),
    ],
)
def test_a_run_that_cannot_be_repeated_is_named_with_the_reason(
    trained: Path, again: Again, changes: dict[str, Any], says: str
) -> None:
    edit(trained, "run.json", lambda manifest: manifest | changes)
    assert says in refused(str(trained))
    assert again.calls == []


def test_another_text_is_refused_before_anything_runs_and_another_tokenizer_at_the_end(
    trained: Path, again: Again
) -> None:
    recorded = json.loads((trained / "run.json").read_text())["data"]
    again.manifest = lambda manifest: manifest | {"data": recorded}
    edit(trained, "run.json", lambda manifest: manifest | {"data": recorded | {"tokenizer_hash": "0" * 64}})
    assert "the tokenizer is not the one that" in last_line(typed("rerun", str(trained)))
    shutil.rmtree("outputs")
    again.calls.clear()
    edit(trained, "run.json", lambda manifest: manifest | {"data": recorded | {"corpus_hash": "0" * 64}})
    assert "the data has changed since" in refused(str(trained))
    assert again.calls == []


def test_a_class_from_outside_needs_trust(trained: Path, again: Again) -> None:
    edit(trained, "run.json", lambda manifest: manifest["config"]["pe"].update(_target_="mine.Mine"))
    assert "the run's pe is mine.Mine, whose code is not part of roundround" in refused(str(trained))


# -- what is typed again


def test_a_look_at_another_run_is_one_at_the_same_run_again(trained: Path, tmp_path: Path) -> None:
    looked = tmp_path / "look"
    shutil.copytree(trained, looked)
    words = {"overrides": ["run=last", "length=[16]"], "verb": "eval", "run": str(trained), "command": "roundround"}
    edit(looked, "run.json", lambda manifest: manifest | words)
    assert overrides_of(past_run(looked)) == ["length=[16]", f"run={trained}"]
    began = shutil.copytree(trained, tmp_path / "began")
    words = {"overrides": ["init=run:last", "pe=nope"]}
    edit(began, "run.json", lambda manifest: manifest | words | {"config": manifest["config"] | {"init": "run:/a/b"}})
    assert overrides_of(past_run(began)) == ["init='run:/a/b'", "pe=nope"]
    shutil.rmtree(trained)
    with pytest.raises(task.UserError, match="which no longer exists"):
        overrides_of(past_run(looked))
