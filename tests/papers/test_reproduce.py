"""`roundround reproduce`: a list, an item, a page."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT, Done, assert_refused

from roundround.command_line.completion import complete_override
from roundround.command_line.sugar import expand_sugar
from roundround.config.composition import compose
from roundround.papers.claim import at_least
from roundround.papers.figures import ledger, names
from roundround.papers.figures.catalogue import ITEMS, chosen, in_order
from roundround.papers.figures.item import Outcome, Subject
from roundround.papers.figures.of_models import GEMMA_3
from roundround.papers.figures.published import FOLDER, heat_map
from roundround.report import reproduction as report
from roundround.runs.run import Invocation
from roundround.support.errors import UserError
from roundround.verbs.reproduce import subject_of


def test_every_figure_and_table_of_both_papers_has_its_item() -> None:
    assert list(in_order()) == names() == sorted(ITEMS, key=names().index)
    assert len(names()) == 19 + 5 + 7 + 2


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
    (entry,) = ledger.read(done.directory)
    assert entry.verdict == "drawn"
    assert {(c.low, c.high) for c in entry.comparisons} == {(0.99, np.inf)}
    assert ledger.newest("outputs")["rope.fig1"] == (entry, done.directory / "figures")


DAMAGED = ["", "[1]", '{"a": 1}', '[{"name": "rope.fig1"}]', "[" * 9999]


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_record_is_passed_over(tmp_path: Path, text: str) -> None:
    (tmp_path / "outcomes.json").write_text(text)
    assert ledger.read(tmp_path) == []


def test_the_papers_own_model_comes_before_another_one(roundround: Callable[..., Done]) -> None:
    done = roundround("reproduce", "rope.fig1")
    (recorded,) = json.loads((done.directory / "outcomes.json").read_text())
    other = roundround("reproduce", "rope.fig1")
    (other.directory / "outcomes.json").write_text(json.dumps([{**recorded, "is_the_papers": False}]))
    assert ledger.newest("outputs")["rope.fig1"][1] == done.directory / "figures"


def test_what_this_machine_has_not_made_stays_on_the_page(
    roundround: Callable[..., Done], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "docs_folder", lambda: tmp_path / "docs")
    folder = tmp_path / "docs" / "reproduction"
    folder.mkdir(parents=True)
    roundround("reproduce", "rope.fig1")
    roundround("reproduce", "--write-docs", "outputs=outputs")
    (folder / "gone.svg").touch()
    roundround("reproduce", "softmax.fig4", "outputs=another")
    written = roundround("reproduce", "--write-docs", "outputs=another")
    page = Path(written.out.strip()).read_text()
    assert "### rope.fig1: drawn" in page
    assert "### softmax.fig4: drawn" in page
    assert {path.name for path in folder.glob("*.svg")} == {"rope.fig1.svg", "softmax.fig4.svg"}
    assert str(tmp_path) not in (folder / "outcomes.json").read_text()
    (folder / "outcomes.json").write_text(DAMAGED[0])
    refused = roundround("reproduce", "--write-docs")
    assert refused.code == 2
    assert "outcomes.json is damaged" in refused.err
    assert "### rope.fig1: drawn" in Path(written.out.strip()).read_text()


def test_an_item_that_differs_is_named_and_the_exit_code_is_1(
    roundround: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(ITEMS["rope.fig1"]), "make", lambda *_: Outcome("0.5", [at_least("weight", 0.5, 0.9)]))
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
    assert list(chosen(["all", "rope.fig2"])) == names()
    assert list(chosen(["rope.fig2", "rope.fig1", "rope.fig2"])) == ["rope.fig2", "rope.fig1"]
    with pytest.raises(UserError):
        chosen(["rope.fig"])


def test_words_and_completion() -> None:
    assert expand_sugar(["rope.fig2", "--write-docs", "model=hf"], "reproduce") == [
        "write_docs=true",
        "model=hf",
        "item=[rope.fig2]",
    ]
    assert complete_override("reproduce", [], "softmax.t") == ["softmax.table1"]
    assert complete_override("reproduce", ["rope.fig1"], "al") == ["all"]
    assert "--write-docs" in complete_override("reproduce", [], "--w")


def test_the_published_maps_have_the_paper_s_shape() -> None:
    assert len(list(FOLDER.glob("*.csv"))) == 24
    assert heat_map("G7B_Fig3a_query_layer").shape == (128, 27)
    assert heat_map("L3.1_Fig10a_query").shape == (64, 32)
    assert heat_map("Fig12_L1H10_logits").shape == (20, 20)


def test_the_page_of_the_checkout_was_written_by_the_program() -> None:
    entries = {entry.name: entry for entry in ledger.read(ROOT / "docs" / "reproduction")}
    assert entries
    page = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    assert page == report.page_of(in_order(), entries), "roundround reproduce --write-docs writes it"


def test_the_readme_says_the_counts_of_the_page() -> None:
    entries = {entry.name: entry for entry in ledger.read(ROOT / "docs" / "reproduction")}
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"**Reproduce.** {report.summary(in_order(), entries)}" in readme


def test_what_is_said_of_gemma_3_stands_on_its_page() -> None:
    page = (ROOT / "docs" / "gemma3.md").read_text(encoding="utf-8")
    assert {item for item in GEMMA_3 if ITEMS[item].model is None} == set()
    for name, text in GEMMA_3.items():
        assert [n for n in re.findall(r"\d+\.\d+", text) if n not in page] == [], name


def test_the_page_says_how_many_were_made_of_the_papers_own_models() -> None:
    (entry,) = [e for e in ledger.read(ROOT / "docs" / "reproduction") if e.name == "rope.fig3"]
    assert report.summary(in_order(), {"rope.fig3": entry}).endswith("measured on the paper's own model: none.")
    own = replace(entry, is_the_papers=True)
    assert report.summary(in_order(), {"rope.fig3": own}).endswith("measured on the paper's own model: 1.")


def test_another_folder_under_the_name_of_the_papers_model_is_not_the_papers(here: Path) -> None:
    def of(*overrides: str) -> Subject:
        cfg = compose("reproduce", list(overrides), None)
        invocation = Invocation(
            verb="reproduce", directory=here, overrides=list(overrides), choices={"model": overrides[0].split("=")[1]}
        )
        subject = subject_of(ITEMS["rope.fig3"], cfg, invocation)
        assert subject is not None
        return subject

    assert of("model=gemma-7b", "model.dtype=float32").is_the_papers
    assert not of("model=gemma-7b", "model.path=/somewhere/else").is_the_papers
    assert of("model=hf", "model.path=/models/mine").name == "mine"
    assert not of("model=stories260k").is_the_papers
