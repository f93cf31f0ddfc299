"""`roundround report`, and the page that a run leaves at its end."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import webbrowser
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
import yaml
from conftest import FAST, Done, assert_refused
from helpers_page import Page, eval_records, write_run

from roundround.analysis.past_run import past_run
from roundround.report.lab_book import origin_of

Command = Callable[..., Done]
SMALL_MAXKEY = ["seeds=2", "max_steps=2", "test_sizes=[4]", "test_sets=4", "model.width=8", "device=cpu", "logger=none"]


@pytest.mark.pages
def test_a_run_leaves_its_page_with_its_numbers_and_what_was_given(train: Command, roundround: Command) -> None:
    trained = train("pe=p_rope", "pe.p=0.5")
    page = Page((trained.directory / "report.html").read_text())
    assert [float(cell) for cell in page.column("perplexity")] == [trained.value("perplexity")]
    given = dict(zip(page.column("setting"), page.column("value"), strict=True))
    assert (given["pe"], given["pe.p"]) == ("p_rope", "0.5")
    assert "roundround train logger=none" in page.text
    assert f"roundround rerun {trained.directory}" in page.text
    assert "status done" in page.text
    evaluated = roundround("eval", "run=last", "length=16,32", "logger=none", "device=cpu")
    page = Page((evaluated.directory / "report.html").read_text())
    assert [float(cell) for cell in page.column("length")] == [16, 32]


@pytest.mark.parametrize(
    "words",
    [
        ("train", "-cd", "my conf", "pe=half", *FAST, "text=a (b).txt"),
        ("train", "--config-dir=my conf", *FAST, "text=a (b).txt", "-m", "pe=half"),
        pytest.param(("maxkey", "preset=quick", *SMALL_MAXKEY, "--temp", "hard"), marks=pytest.mark.slow),
    ],
    ids=["own folder", "job of a sweep", "preset"],
)
def test_the_command_of_a_run_is_what_was_typed_and_runs_when_it_is_pasted(
    roundround: Command, corpus: Path, here: Path, words: tuple[str, ...]
) -> None:
    """Read off the run as `show` and its page have it; `--cfg job` prints what would run."""
    (here / "my conf" / "pe").mkdir(parents=True)
    (here / "my conf" / "pe" / "half.yaml").write_text(
        "# half\n_target_: roundround.pe.p_rope.PRoPE\np: 0.5\ntheta: 1e4\n"
    )
    shutil.copy(corpus, here / "a (b).txt")
    folder = here / "bin"
    folder.mkdir()
    program = folder / "roundround"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m roundround "$@"\n')
    program.chmod(0o755)
    done = roundround(*words)
    assert done.code == 0, done.err
    (directory,) = {path.parent for path in done.directory.rglob("run.json")}
    command = past_run(directory).manifest["command"]
    shown = roundround("show", str(directory)).out.splitlines()
    assert command in shown
    assert ("as it was given in " + str(here), command) in origin_of(past_run(directory))["commands"]
    assert "-m" in words or shlex.split(command) == ["roundround", *words]
    path = f"{here / 'bin'}{os.pathsep}{os.environ['PATH']}"
    pasted = subprocess.run(
        f"{command} --cfg job", shell=True, capture_output=True, text=True, env=os.environ | {"PATH": path}, check=False
    )
    assert pasted.returncode == 0, pasted.stderr
    composed, ran = yaml.safe_load(pasted.stdout), past_run(directory).manifest["config"]
    assert {key: ran[key] for key in ("pe", "data", "evaluate") if key in ran} == {
        key: composed[key] for key in ("pe", "data", "evaluate") if key in composed
    }


@pytest.mark.pages
def test_a_page_that_cannot_be_written_is_told_and_the_run_is_done(
    train: Command, monkeypatch: pytest.MonkeyPatch
) -> None:

    monkeypatch.setattr(
        "roundround.report.page.view.write_page", Mock(side_effect=OSError(28, "No space left on device"))
    )
    trained = train()
    assert (trained.code, trained.manifest["status"]) == (0, "done")
    assert [line for line in trained.err.splitlines() if "page" in line] == [
        "the page of the run could not be written: [Errno 28] No space left on device"
    ]


def test_report_writes_the_page_into_the_run_and_prints_its_path(roundround: Command) -> None:
    runs = [write_run(Path(f"outputs/eval/{n}").absolute(), "eval", eval_records([(64, 2.0)])) for n in (1, 2)]
    checkpoint = runs[0] / "checkpoints" / "best"
    checkpoint.mkdir(parents=True)
    (checkpoint / "model.safetensors").write_text("no page reads this")
    done = roundround("report", str(runs[0]))
    assert (done.code, done.err, done.out) == (0, "", f"{runs[0] / 'report.html'}\n")
    assert "Evaluation" in Page((runs[0] / "report.html").read_text()).text
    assert roundround("report", "outputs").out.split() == [str(run / "report.html") for run in runs]
    assert roundround("report", "last", "to=page.html").out == f"{Path('page.html').absolute()}\n"
    assert "Evaluation" in Page(Path("page.html").read_text()).text
    assert roundround("report", "last", "to=page.html").code == 0, "a page takes the place of a page"


def test_report_leaves_what_is_no_page_of_its_own(roundround: Command) -> None:
    run = write_run(Path("run").absolute(), "eval", eval_records([(64, 2.0)]))
    Path("notes.html").write_text("<p>mine</p>")
    assert_refused(roundround("report", str(run), "to=notes.html"), "notes.html exists and is not a page of roundround")
    assert Path("notes.html").read_text() == "<p>mine</p>"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "there is no 'nowhere'"),
        (["run", "to=no/page.html"], "cannot write"),
        (["run", "run2", "to=page.html"], "page.html is one file, but 2 runs are given"),
        (["run", "opn=true"], "no key opn; did you mean 'open'?"),
    ],
)
def test_report_refuses_by_name(words: list[str], said: str, roundround: Command) -> None:
    write_run(Path("run"), "eval", eval_records([(64, 2.0)]))
    write_run(Path("run2"), "eval", eval_records([(64, 2.0)]))
    assert_refused(roundround("report", *words), said)
    assert list(Path().rglob("*.html")) == []


def test_report_shows_the_page_in_the_browser(roundround: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    monkeypatch.setattr(webbrowser, "open", shown.append)
    run = write_run(Path("run").absolute(), "eval", eval_records([(64, 2.0)]))
    assert roundround("report", "run", "open=true").code == 0
    assert shown == [(run / "report.html").as_uri()]
