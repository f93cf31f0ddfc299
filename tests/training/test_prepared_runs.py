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
from roundround.data.text import TextFiles
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


def test_a_mixture_of_ones_own_is_a_yaml(roundround: Command, corpus: Path, tmp_path: Path) -> None:
    folder = tmp_path / "conf" / "data"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text(
        "# roundround train data=mine\n# Fables and Python.\n"
        "defaults: [text@sources.fables, text@sources.again, _self_]\n"
        "_target_: roundround.data.prepared.Mixture\nweights: {fables: 3, again: 1}\n"
        f"sources: {{fables: {{path: [{corpus}], held_out: 0.3}}, again: {{path: [{corpus}], held_out: 0.5}}}}\n"
    )
    own = ["data=mine", "--config-dir", str(tmp_path / "conf")]
    done = roundround("train", *FAST, *own)
    assert done.code == 0, done.err
    per_pass = {}  # windows of 32 tokens in the training text, all but the one that the offset may cut
    for name, held_out in (("fables", 0.3), ("again", 0.5)):
        text = TextFiles(path=[str(corpus)], column=["text"], split_regex=r"\n\s*\n", max_chars=None, held_out=held_out)
        per_pass[name] = sum(len(document.encode()) + 1 for document in text.training_texts()) // 32 - 1
    expected = {"fables": 0.75 * 16 / per_pass["fables"], "again": 0.25 * 16 / per_pass["again"]}
    assert done.manifest["data"]["passes"] == pytest.approx(expected)
    assert "read more than once" not in done.err
    longer = roundround("train", *FAST, *own, "trainer.max_steps=1", f"batch_size={2 * per_pass['fables']}")
    assert longer.code == 0, longer.err
    assert "read more than once: fables 1.5 times\n" in longer.err
    scored = roundround("eval", f"run={done.directory}", "length=32", "logger=none")
    assert scored.code == 0, scored.err
    made = roundround("prepare", *own, "tokenizer=bytes", "n_processes=1", "to=both")
    assert made.code == 0, made.err
    assert sorted(path.name for path in Path("both").iterdir()) == ["again", "fables"]
