"""Which runs a word means."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from helpers_runs import write_run

from roundround.analysis.past_run import directories_of, directories_of_all
from roundround.support.errors import UserError


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    """Two runs of eval, and a sweep of train whose second job started after both."""
    write_run(tmp_path / "eval/2026-01-01/12-01-00", 1)
    write_run(tmp_path / "eval/2026-01-01/12-03-00", 3)
    for job, minute in enumerate((0, 5)):
        write_run(tmp_path / f"train/2026-01-01/12-00-00-sweep/{job}", minute, "max-retrieval")
    return tmp_path


def names(found: list[Path], outputs: Path) -> list[str]:
    return ["/".join(path.relative_to(outputs).parts[2:]) for path in found]


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("eval/2026-01-01/12-01-00", ["12-01-00"]),
        ("train/2026-01-01/12-00-00-sweep", ["12-00-00-sweep/0", "12-00-00-sweep/1"]),
        ("eval", ["12-01-00", "12-03-00"]),
        (".", ["12-00-00-sweep/0", "12-01-00", "12-03-00", "12-00-00-sweep/1"]),
        ("eval/*/12-0?-00", ["12-01-00", "12-03-00"]),
        ("**/12-03*", ["12-03-00"]),
        ("last", ["12-00-00-sweep/1"]),
        ("last~1", ["12-03-00"]),
        ("last~3", ["12-00-00-sweep/0"]),
    ],
)
def test_a_word_means_runs_in_the_order_of_their_start(outputs: Path, word: str, meant: list[str]) -> None:
    given = word if word.startswith("last") else str(outputs / word)
    assert names(directories_of(given, str(outputs)), outputs) == meant


def test_last_of_a_verb_counts_its_runs_alone(outputs: Path) -> None:
    assert names(directories_of("last~1", str(outputs), "eval"), outputs) == ["12-01-00"]


def test_a_run_meant_twice_is_there_once(outputs: Path) -> None:
    words = [str(outputs / "eval"), str(outputs / "eval/*/*"), "last~1"]
    assert names(directories_of_all(words, str(outputs)), outputs) == ["12-03-00", "12-01-00"]


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("nowhere", "there is no 'nowhere', or it holds no run"),
        ("", "the run is empty"),
        ("*.txt", "holds no run"),
        ("last~4", "last~4: there are 4 runs under"),
        ("last~999999999", "last~999999999: there are 4 runs"),
        ("last~99999999999999999999", "there is no 'last~99999999999999999999'"),
    ],
)
def test_what_means_no_run_is_refused(outputs: Path, monkeypatch: pytest.MonkeyPatch, word: str, message: str) -> None:
    monkeypatch.chdir(outputs)
    with pytest.raises(UserError, match=re.escape(message)):
        directories_of(word, str(outputs))
