"""`roundround reproduce`: a list, an item, a page."""

from __future__ import annotations

import importlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT, Done, assert_refused

from roundround import papers
from roundround.analysis import repetition
from roundround.analysis.repetition import Runner, has_same_numbers, has_same_text
from roundround.command_line.arguments import read_command_line
from roundround.config.options import compose
from roundround.distributed.child import start
from roundround.distributed.interruption import interrupt, on_signals, put_back
from roundround.papers import figure_names
from roundround.papers.claim import at_least
from roundround.papers.figures import (
    AGREES,
    NOT_RUN,
    Entry,
    Outcome,
    Subject,
    figures_of,
    newest_entries,
    newest_of,
    read_entries,
)
from roundround.papers.figures.pretrained import FOLDER, heat_map
from roundround.records.run import Invocation
from roundround.report import reproduction as report
from roundround.support.errors import AlreadyReported, Interrupted, UserError
from roundround.verbs import verb_named
from roundround.verbs.reproduce.run import chosen, subject_of

FIGURES = figures_of(figure_names())

QUICK = ["seeds=2", "max_steps=3", "test_sizes=[4,8]", "test_sets=8", "checkpoint_every=1", "model.width=8"]


def test_every_figure_and_table_of_both_papers_has_its_item() -> None:
    held = [
        name
        for file in set(papers.FIGURES.values())
        for name in importlib.import_module(f"roundround.papers.figures.{file}").FIGURES
    ]
    assert sorted(held) == sorted(figure_names())
    assert len(figure_names()) == 19 + 5 + 7 + 2


@pytest.mark.pictures
def test_an_item_is_made_listed_and_written_down(
    roundround: Callable[..., Done], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = roundround("reproduce")
    assert (listed.code, listed.out) == (0, "")
    assert "not run" in listed.err
    assert not [path for path in Path("outputs").rglob("*") if path.is_file()]
    done = roundround("reproduce", "rope.fig1")
    assert done.code == 0, done.err
    assert done.value("verdict", item="rope.fig1") == "drawn"
    assert (done.directory / "figures" / "rope.fig1.svg").is_file()
    (tmp_path / "docs").mkdir()
    monkeypatch.setattr(report, "docs_folder", lambda: tmp_path / "docs")
    written = roundround("reproduce", "--write-docs")
    assert written.out.strip() == str(tmp_path / "docs" / "reproduction.md")
    page = (tmp_path / "docs" / "reproduction.md").read_text()
    assert "### rope.fig1: drawn" in page
    assert "### rope.fig2: not run\n\nAligned vectors" in page
    assert "33 figures and tables: drawn 1, not run 32." in page
    assert (tmp_path / "docs" / "reproduction" / "rope.fig1.svg").is_file()


def test_what_was_recorded_is_read_again(roundround: Callable[..., Done]) -> None:
    done = roundround("reproduce", "rope.fig1")
    (entry,) = read_entries(done.directory)
    assert entry.verdict == "drawn"
    assert {(c.low, c.high) for c in entry.comparisons} == {(0.99, np.inf)}
    assert newest_entries("outputs")["rope.fig1"] == (entry, done.directory / "figures")


DAMAGED = ["", "[1]", '{"a": 1}', '[{"name": "rope.fig1"}]', "[" * 9999]


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_record_is_passed_over(tmp_path: Path, text: str) -> None:
    (tmp_path / "outcomes.json").write_text(text)
    assert read_entries(tmp_path) == []


def test_the_papers_own_model_comes_before_another_one(roundround: Callable[..., Done]) -> None:
    done = roundround("reproduce", "rope.fig1")
    (recorded,) = json.loads((done.directory / "outcomes.json").read_text())
    other = roundround("reproduce", "rope.fig1")
    (other.directory / "outcomes.json").write_text(json.dumps([{**recorded, "is_the_papers": False}]))
    assert newest_entries("outputs")["rope.fig1"][1] == done.directory / "figures"


def test_what_this_machine_has_not_made_stays_on_the_page(
    roundround: Callable[..., Done], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "docs_folder", lambda: tmp_path / "docs")
    folder = tmp_path / "docs" / "reproduction"
    folder.mkdir(parents=True)
    roundround("reproduce", "rope.fig1")
    roundround("reproduce", "--write-docs", "outputs=outputs")
    (folder / "gone.svg").touch()
    roundround("reproduce", "rope.fig9", "outputs=another")
    written = roundround("reproduce", "--write-docs", "outputs=another")
    page = Path(written.out.strip()).read_text()
    assert "### rope.fig1: drawn" in page
    assert "### rope.fig9: agrees" in page
    assert {path.name for path in folder.glob("*.svg")} == {"rope.fig1.svg", "rope.fig9.svg"}
    assert str(tmp_path) not in (folder / "outcomes.json").read_text()
    (folder / "outcomes.json").write_text(DAMAGED[0])
    refused = roundround("reproduce", "--write-docs")
    assert refused.code == 2
    assert "outcomes.json is damaged" in refused.err
    assert "### rope.fig1: drawn" in Path(written.out.strip()).read_text()


def test_an_item_that_differs_is_named_and_the_exit_code_is_1(
    roundround: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(FIGURES["rope.fig1"]), "make", lambda *_: Outcome("0.5", [at_least("weight", 0.5, 0.9)]))
    done = roundround("reproduce", "rope.fig1")
    assert done.code == 1
    assert "1 differ from the paper: rope.fig1" in done.err.splitlines()[-1]
    assert "weight: 0.5 (at least 0.9)" in done.err


def test_wrong_words_get_one_line(roundround: Callable[..., Done], monkeypatch: pytest.MonkeyPatch) -> None:
    assert_refused(roundround("reproduce", "rope.fig20"), "no item 'rope.fig20'; did you mean 'rope.fig2'?")
    assert_refused(roundround("reproduce", "rope.fgi2"), "did you mean 'rope.fig2'?")
    assert_refused(roundround("reproduce", "model=stories260k"), "name some")
    assert_refused(roundround("reproduce", "rope.fig3"), "needs the weights of google/gemma-7b", "model=stories260k")
    assert_refused(roundround("reproduce", "softmax.fig7"), "needs Gemma 2B")
    monkeypatch.setattr(report, "conf_dir", lambda: Path("elsewhere") / "conf")
    assert_refused(roundround("reproduce", "--write-docs"), "without its docs")


def test_all_stands_for_every_item() -> None:
    assert list(chosen(["all", "rope.fig2"])) == figure_names()
    assert list(chosen(["rope.fig2", "rope.fig1", "rope.fig2"])) == ["rope.fig2", "rope.fig1"]
    with pytest.raises(UserError):
        chosen(["rope.fig"])


def test_words_of_the_command_line() -> None:
    words = read_command_line(["rope.fig2", "--write-docs", "model=hf"], verb_named("reproduce"))[0]
    assert words == ["write_docs=true", "model=hf", "item=[rope.fig2]"]


def test_the_published_maps_have_the_paper_s_shape() -> None:
    assert len(list(FOLDER.glob("*.csv"))) == 24
    assert heat_map("G7B_Fig3a_query_layer").shape == (128, 27)
    assert heat_map("L3.1_Fig10a_query").shape == (64, 32)
    assert heat_map("Fig12_L1H10_logits").shape == (20, 20)


def test_the_page_of_the_checkout_was_written_by_the_program() -> None:
    entries = {entry.name: entry for entry in read_entries(ROOT / "docs" / "results" / "reproduction")}
    assert entries
    page = (ROOT / "docs" / "results" / "reproduction.md").read_text(encoding="utf-8")
    assert page == report.page_of(FIGURES, entries), "roundround reproduce --write-docs writes it"


def test_the_other_pages_say_the_counts_of_the_page() -> None:
    entries = {entry.name: entry for entry in read_entries(ROOT / "docs" / "results" / "reproduction")}
    summary = report.summary(FIGURES, entries)
    assert summary in " ".join((ROOT / "docs" / "howto" / "papers.md").read_text(encoding="utf-8").split())
    assert summary.partition(".")[0] in (ROOT / "docs" / "results.md").read_text(encoding="utf-8")


def test_the_page_says_how_many_were_made_of_the_papers_own_models() -> None:
    (entry,) = [e for e in read_entries(ROOT / "docs" / "results" / "reproduction") if e.name == "rope.fig3"]
    assert report.summary(FIGURES, {"rope.fig3": entry}).endswith("measured on the paper's own model: none.")
    own = replace(entry, is_the_papers=True)
    assert report.summary(FIGURES, {"rope.fig3": own}).endswith("measured on the paper's own model: 1.")


def test_another_folder_under_the_name_of_the_papers_model_is_not_the_papers(here: Path) -> None:
    def of(*overrides: str) -> Subject:
        cfg = compose("reproduce", list(overrides), None)
        invocation = Invocation(
            verb="reproduce", directory=here, overrides=list(overrides), choices={"model": overrides[0].split("=")[1]}
        )
        subject = subject_of(FIGURES["rope.fig3"], cfg, invocation)
        assert subject is not None
        return subject

    assert of("model=gemma-7b", "model.dtype=float32").is_the_papers
    assert not of("model=gemma-7b", "model.path=/somewhere/else").is_the_papers
    assert of("model=hf", "model.path=/models/mine").name == "mine"
    assert not of("model=stories260k").is_the_papers


# -- what a figure is made from


def runner(*, trust: bool = False) -> Runner:
    return Runner("outputs", None, "cpu", trust)


def test_a_finished_run_is_taken_a_stopped_one_resumed_and_another_config_begun(
    roundround: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    done = roundround("max-retrieval", *QUICK, "device=cpu")
    started: list[list[str]] = []
    monkeypatch.setattr(repetition, "start", lambda words: started.append(words) or Path("new"))
    ours = runner()
    assert ours("max-retrieval", *QUICK) == done.directory
    assert ours("max-retrieval", *QUICK, "seed=7") == Path("new")
    (done.directory / "run.json").write_text(json.dumps({**done.manifest, "status": "interrupted"}))
    assert ours("max-retrieval", *QUICK) == Path("new")
    assert [made.taken for made in ours.made] == [True, False, False]
    assert started == [
        ["max-retrieval", *QUICK, "seed=7", "logger=none", "trust=false", "device=cpu", "outputs=outputs"],
        ["max-retrieval", f"resume={done.directory}", "logger=none", "trust=false", "outputs=outputs"],
    ]


def test_a_finished_run_is_taken_whether_or_not_it_was_made_with_trust(
    roundround: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    done = roundround("max-retrieval", *QUICK, "device=cpu")
    monkeypatch.setattr(repetition, "start", lambda words: Path("new"))
    trusting = runner(trust=True)
    assert not done.manifest["config"]["trust"]
    assert trusting("max-retrieval", *QUICK) == done.directory


def test_a_verb_runs_in_a_process_and_says_where_its_run_is(here: Path) -> None:
    directory = runner()("theory", "claim=[rope.lemma_a_3]")
    assert json.loads((directory / "run.json").read_text())["status"] == "done"


def test_a_verb_that_is_refused_says_so(here: Path) -> None:
    with pytest.raises(AlreadyReported, match="was refused"):
        start(["train", "pe=pope"])


@pytest.mark.slow  # a process that trains
def test_a_signal_reaches_the_verb_before_it_is_obeyed(here: Path) -> None:
    def signal_once_it_runs() -> None:
        deadline = time.monotonic() + 60
        while not list(here.glob("outputs/*/*/*/metrics.jsonl")) and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    handlers = on_signals(interrupt)  # what would end the tests ends the test
    threading.Thread(target=signal_once_it_runs).start()
    try:
        with pytest.raises(Interrupted):
            start(["max-retrieval", "seeds=2", "model.width=8", "max_steps=5000", "logger=none", "device=cpu"])
    finally:
        put_back(handlers)
    (manifest,) = Path("outputs").glob("max-retrieval/*/*/run.json")
    assert json.loads(manifest.read_text())["status"] == "interrupted"


def test_a_finished_run_of_a_text_that_has_changed_is_not_taken(train: Callable[..., Done], corpus: Path) -> None:
    mine = Path("mine.txt")
    mine.write_text(corpus.read_text())
    done = train(f"data.path={mine.absolute()}", "trainer.max_steps=1")
    planned = done.manifest["config"]
    assert has_same_numbers(done.manifest, planned)
    assert has_same_text(done.manifest, planned)
    mine.write_text(corpus.read_text().replace("fox", "owl"))
    assert not has_same_text(done.manifest, planned)


def test_what_could_not_be_made_replaces_nothing_that_was(tmp_path: Path) -> None:
    def entry(verdict: str, ended: str) -> Entry:
        return Entry(name="rope.fig1", verdict=verdict, ours="", comparisons=[], remark="", untested="", model=None,
                     is_the_papers=True, runs=[], figure=None, seconds=1.0, ended=ended)  # fmt: skip

    made, failed = entry(AGREES, "2026-01-01T00:00:00+00:00"), entry(NOT_RUN, "2026-01-02T00:00:00+00:00")
    assert newest_of([(made, tmp_path), (failed, tmp_path)])["rope.fig1"][0] is made
    assert newest_of([(failed, tmp_path)])["rope.fig1"][0] is failed
