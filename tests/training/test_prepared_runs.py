"""Runs on prepared corpora and mixtures, as people type them."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import fsspec
import pytest
from conftest import FAST, Done, at_step

from roundround.data import tokenising
from roundround.support.errors import Interrupted

OWN = [word for word in FAST if not word.startswith("tokenizer=")]
Command = Callable[..., Done]


@pytest.fixture(autouse=True)
def clean_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(tokenising, "BATCH_CHARACTERS", 500)
    monkeypatch.setattr(tokenising, "FIRST_SHARD_BYTES", 1000)
    yield
    fsspec.filesystem("memory").store.clear()


def test_a_run_on_an_address_is_the_run_on_the_text(
    roundround: Command, corpus: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ROUNDROUND_CACHE", str(tmp_path / "cache"))
    text = ["data=text", f"data.path={corpus}", "data.held_out=0.3"]
    made = roundround("prepare", *text, "tokenizer=bytes", "n_processes=1", "to=memory://here/fables")
    assert made.code == 0, made.err
    assert "prepared in memory://here/fables: 200 documents" in made.err
    assert made.value("documents") == 200
    assert made.value("shards") > 3
    prepared = ["data=prepared", "data.path=memory://here/fables"]
    there = roundround("train", *OWN, *prepared)
    here = roundround("train", *FAST, *text)
    assert (there.code, here.code) == (0, 0), there.err + here.err
    lines = [(done.directory / "metrics.jsonl").read_text().splitlines() for done in (there, here)]
    there_losses, here_losses = ([line for line in of_run if "held_out" in line] for of_run in lines)
    assert there_losses == here_losses
    assert there.manifest["data"] == here.manifest["data"]
    assert there.manifest["choices"]["tokenizer"] == "prepared"
    one = roundround("eval", f"run={there.directory}", "length=32", "logger=none")
    other = roundround("eval", f"run={here.directory}", "length=32", "logger=none")
    assert one.code == 0, one.err
    assert [record["value"] for record in one.results] == [record["value"] for record in other.results]
    probe = roundround("probe", f"run={there.directory}", "logger=none", "length=32", "max_documents=2")
    assert probe.code == 0, probe.err


def test_a_run_on_a_prepared_corpus_resumes_as_if_never_stopped(
    roundround: Command, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (
        roundround("prepare", "data=text", f"data.path={corpus}", "tokenizer=bytes", "n_processes=1", "to=mine").code
        == 0
    )
    whole = roundround("train", *OWN, "data=prepared", "data.path=mine")
    with monkeypatch.context() as patch:
        at_step(patch, 3, Mock(side_effect=Interrupted(signal.SIGINT)))
        stopped = roundround("train", *OWN, "data=prepared", "data.path=mine")
    assert stopped.code == 130
    (run,) = {path.parent for path in Path.cwd().glob("outputs/train/*/*/run.json")} - {whole.directory}
    again = roundround("train", f"resume={run}", "logger=none")
    assert again.code == 0, again.err
    weights = [
        (path / "checkpoints/last/model.safetensors").read_bytes() for path in (whole.directory, again.directory)
    ]
    assert weights[0] == weights[1]
