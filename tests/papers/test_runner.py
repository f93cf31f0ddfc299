"""What an item is made from: a verb in a process of its own, or the finished run of the same config."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Done

from roundround.distributed.interruption import interrupt, on_signals, put_back
from roundround.papers.figures import runner
from roundround.papers.figures.runner import Runner
from roundround.support.errors import AlreadySaid, Interrupted

QUICK = ["seeds=2", "max_steps=3", "test_sizes=[4,8]", "test_sets=8", "checkpoint_every=1", "model.width=8"]


def of(outputs: str = "outputs") -> Runner:
    return Runner(outputs, None, "cpu", False)


def test_a_finished_run_is_taken_a_stopped_one_gone_on_with_and_another_config_begun(
    roundround: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    done = roundround("max-retrieval", *QUICK, "device=cpu")
    started: list[list[str]] = []
    monkeypatch.setattr(runner, "start", lambda words: started.append(words) or Path("new"))
    ours = of()
    assert ours("max-retrieval", *QUICK) == done.directory
    assert ours("max-retrieval", *QUICK, "seed=7") == Path("new")
    (done.directory / "run.json").write_text(json.dumps({**done.manifest, "status": "interrupted"}))
    assert ours("max-retrieval", *QUICK) == Path("new")
    assert [made.taken for made in ours.made] == [True, False, False]
    assert started == [
        ["max-retrieval", *QUICK, "seed=7", "logger=none", "trust=false", "device=cpu", "outputs=outputs"],
        ["max-retrieval", f"resume={done.directory}", "logger=none", "outputs=outputs"],
    ]


def test_a_verb_runs_in_a_process_and_says_where_its_run_is(here: Path) -> None:
    directory = of()("theory", "claim=[rope.lemma_a_3]")
    assert json.loads((directory / "run.json").read_text())["status"] == "done"


def test_a_verb_that_is_refused_says_so(here: Path) -> None:
    with pytest.raises(AlreadySaid, match="was refused"):
        runner.start(["train", "pe=pope"])


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
            runner.start(["max-retrieval", "seeds=2", "model.width=8", "max_steps=5000", "logger=none", "device=cpu"])
    finally:
        put_back(handlers)
    (manifest,) = Path("outputs").glob("max-retrieval/*/*/run.json")
    assert json.loads(manifest.read_text())["status"] == "interrupted"
