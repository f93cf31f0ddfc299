"""`roundround reproduce`: a list, an item, a page."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT, Done, assert_refused

from roundround import papers
from roundround.analysis import repetition
from roundround.analysis.repetition import Runner, has_same_numbers, has_same_text
from roundround.config.options import compose
from roundround.papers.claim import (
    AGREES,
    NOT_RUN,
    Entry,
    Finding,
    Subject,
    at_least,
    at_most,
    figures_of,
    near,
    newest_entries,
    newest_of,
    read_entries,
    shown,
)
from roundround.records.run import Invocation
from roundround.report import papers as report
from roundround.verbs.reproduce.run import subject_of

FIGURES = figures_of(papers.FIGURES)

QUICK = ["seeds=2", "max_steps=3", "test_sizes=[4,8]", "test_sets=8", "checkpoint_every=1", "model.width=8"]


def test_every_figure_and_table_of_both_papers_has_its_item() -> None:
    held = [
        name
        for file in set(papers.FIGURES.values())
        for name in importlib.import_module(f"roundround.papers.figures.{file}").FIGURES
    ]
    assert sorted(held) == sorted(papers.FIGURES)
    assert len(papers.FIGURES) == 19 + 5 + 7 + 2


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
    assert done.value("verdict", item="rope.fig1") == "plotted only"
    assert (done.directory / "figures" / "rope.fig1.svg").is_file()
    (tmp_path / "docs").mkdir()
    monkeypatch.setattr(report, "DOCS", tmp_path / "docs")
    written = roundround("reproduce", "--write-docs")
    assert written.out.strip() == str(tmp_path / "docs" / "reproduction.md")
    page = (tmp_path / "docs" / "reproduction.md").read_text()
    row = "| [`rope.fig1`](reproduction/rope.fig1.svg) | one frequency suffices to attend to the token before |"
    assert f"{row} plotted only |" in page
    assert "| `rope.fig2` | aligned vectors decay with distance, Gaussian ones do not | not run |" in page
    assert "### rope.fig" not in page
    assert "33 figures and tables: plotted only 1, not run 32." in page
    assert (tmp_path / "docs" / "reproduction" / "rope.fig1.svg").is_file()


def test_what_was_recorded_is_read_again(roundround: Callable[..., Done]) -> None:
    done = roundround("reproduce", "rope.fig1")
    (entry,) = read_entries(done.directory)
    assert entry.verdict == "plotted only"
    assert {(c.low, c.high) for c in entry.comparisons} == {(0.99, np.inf)}
    assert newest_entries("outputs")["rope.fig1"] == (entry, done.directory / "figures")


def test_a_damaged_record_is_passed_over(roundround: Callable[..., Done]) -> None:
    done = roundround("reproduce", "rope.fig1")
    for text in ("", '[{"name": "rope.fig1"}]'):
        (done.directory / "outcomes.json").write_text(text)
        assert newest_entries("outputs") == {}


def test_what_this_machine_has_not_made_stays_on_the_page(
    roundround: Callable[..., Done], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "DOCS", tmp_path / "docs")
    folder = tmp_path / "docs" / "reproduction"
    folder.mkdir(parents=True)
    roundround("reproduce", "rope.fig1")
    roundround("reproduce", "--write-docs", "outputs=outputs")
    roundround("reproduce", "rope.fig9", "outputs=another")
    written = roundround("reproduce", "--write-docs", "outputs=another")
    page = Path(written.out.strip()).read_text()
    assert "to the token before | plotted only |" in page
    assert "### rope.fig9: agrees" in page
    assert {path.name for path in folder.glob("*.svg")} == {"rope.fig1.svg", "rope.fig9.svg"}
    assert str(tmp_path) not in (folder / "outcomes.json").read_text()


def test_an_item_that_differs_is_named_and_the_exit_code_is_1(
    roundround: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(FIGURES["rope.fig1"]), "make", lambda *_: Finding([at_least("weight", 0.5, 0.9)]))
    done = roundround("reproduce", "rope.fig1")
    assert done.code == 1
    assert "1 differ from the paper: rope.fig1" in done.err.splitlines()[-1]
    assert "weight: 0.5 (at least 0.9)" in done.err


def test_wrong_words_get_one_line(roundround: Callable[..., Done]) -> None:
    assert_refused(roundround("reproduce", "rope.fig20"), "no item 'rope.fig20'; did you mean 'rope.fig2'?")
    assert_refused(roundround("reproduce", "rope.fgi2"), "did you mean 'rope.fig2'?")
    assert_refused(roundround("reproduce", "model=stories260k"), "name some")
    assert_refused(roundround("reproduce", "rope.fig3"), "needs the weights of google/gemma-7b", "model=stories260k")
    assert_refused(roundround("reproduce", "softmax.fig7"), "needs Gemma 2B")


def test_the_page_of_the_checkout_was_written_by_the_program() -> None:
    entries = {entry.name: entry for entry in read_entries(ROOT / "docs" / "results" / "reproduction")}
    assert entries
    page = (ROOT / "docs" / "results" / "reproduction.md").read_text(encoding="utf-8")
    assert page == report.page_of(FIGURES, entries), "roundround reproduce --write-docs writes it"
    assert len(page.split()) <= 2_500


def test_the_page_has_the_numbers_that_decide_a_verdict() -> None:
    numbers = [
        near("a", 1, 1, 1, 1),
        at_least("b", 1, 0),
        at_most("c", 1, 0),
        *[near("d", 2, 1, 1, 1)] * 5,
        shown("e", 3),
    ]
    found = Finding(numbers)
    entry = Entry("rope.fig1", found.verdict, "", numbers, "As drawn.", "", None, True, [], None, 0.0, "")
    section = (
        report.page_of(FIGURES, {"rope.fig1": entry}).partition("### rope.fig1: differs\n\n")[2].partition("\n\n## ")[0]
    )
    assert section.splitlines() == [
        "As drawn. Judged: agrees 6, sign agrees 1, differs 1.",
        "",
        "- c: 1 (at most 0): differs",
        "- b: 1 (at least 0): sign agrees",
        "- a: 1 (from 0 to 2; paper: 1): agrees",
    ]


def test_the_other_pages_say_the_counts_of_the_page() -> None:
    entries = {entry.name: entry for entry in read_entries(ROOT / "docs" / "results" / "reproduction")}
    summary = report.summary(FIGURES, entries)
    assert summary in " ".join((ROOT / "docs" / "howto" / "papers.md").read_text(encoding="utf-8").split())
    assert summary.partition(".")[0] in (ROOT / "docs" / "results" / "questions.md").read_text(encoding="utf-8")


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


def test_a_verb_runs_in_a_process_and_says_where_its_run_is(here: Path) -> None:
    directory = runner()("theory", "claim=[rope.lemma_a_3]")
    assert json.loads((directory / "run.json").read_text())["status"] == "done"


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
