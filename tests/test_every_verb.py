"""Each verb as a person types it: the whole program in a process of its own, with its figures and its page.

The process is forked from one that has imported everything; make test-all starts each from nothing too.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import FAST, shell, typed
from forkserver import Forkserver

TRAIN = ["train", *FAST, "data=text", "data.path=fables.txt"]
# by verb: the words behind it, and files that it leaves; RUN is a run that train has made in the folder `first`
VERBS = {
    "prepare": ("data=text data.path=fables.txt tokenizer=bytes to=corpus n_processes=1", "corpus/meta.json"),
    "train": (" ".join([*TRAIN[1:], "pe=alibi"]), "RUNS/report.html RUNS/checkpoints/best/model.safetensors"),
    "eval": ("run=RUN length=16,32 max_tokens=256 logger=none", "RUNS/report.html RUNS/figures/perplexity.png"),
    "probe": (
        "run=RUN max_tokens=64 prompt=fox logger=none device=cpu",
        "RUNS/report.html RUNS/figures/norms.png RUNS/probe.safetensors",
    ),
    "check": ("run=RUN device=cpu logger=none", "RUNS/results.json"),
    "generate": ("length=20 n=2 device=cpu", "RUNS/texts.json RUNS/results.json"),
    "theory": ("rope.prop_5_2 logger=none", "RUNS/theory.md RUNS/figures/rope.prop_5_2.png"),
    "reproduce": ("rope.fig1 logger=none", "RUNS/outcomes.json RUNS/figures/rope.fig1.png"),
    "compare": (
        "first baseline=pe=rope logger=none",
        "RUNS/report.html RUNS/comparison.csv RUNS/figures/training_curves.pdf",
    ),
    "bench": ("softmax=ssmax logger=none", "RUNS/report.html RUNS/bench.csv RUNS/bench.md"),
    "rerun": ("RUN logger=none", "RUNS/results.json RUNS/again/results.json"),
    "export": ("run=RUN to=model", "RUNS/results.json model/model.safetensors model/README.md"),
    "max-retrieval": (
        "preset=quick max_steps=2 seeds=2 test_sizes=[16] test_sets=8 model.width=16 logger=none device=cpu",
        "RUNS/report.html RUNS/table.md RUNS/figures/accuracy.png RUNS/attention.safetensors",
    ),
    "runs": ("outputs=first format=json", ""),
    "show": ("RUN", ""),
    "report": ("RUN", "RUN/report.html"),
}


TYPED = {  # what tables name for somebody to type, or numbers that have one place
    "theory": "rope.prop_5_2",
    "reproduce": "rope.fig1",
    "compare": "nope rope",
    "bench": "ssmax",
    "max-retrieval": "adaptive_temperature",
    "show": "trainer.max_steps",
}


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory, corpus: Path, server: Forkserver, env: dict[str, str]) -> Path:
    """A folder with a text and two runs."""
    folder = tmp_path_factory.mktemp("verbs")
    shutil.copy(corpus, folder)
    words = [*TRAIN, "outputs=first", "-m", "pe=rope,nope"]
    done = server.run(words, folder, tmp_path_factory.mktemp("streams"), env=env, timeout=240)
    assert done.code == 0, done.err
    return folder


def test_every_verb_is_here() -> None:
    listed = re.findall(r"^  ([\w-]+)(?:, maxkey)?  ", typed("--help").out.partition("Look up")[0], re.MULTILINE)
    assert {*listed} == VERBS.keys()


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("way", ["forked", pytest.param("started", marks=pytest.mark.slow)])
def test_a_verb_runs_whole(verb: str, way: str, work: Path, streams: Path, request: pytest.FixtureRequest) -> None:
    words, left = VERBS[verb]
    shutil.rmtree(work / "outputs", ignore_errors=True)
    for place in ("corpus", "model"):
        shutil.rmtree(work / place, ignore_errors=True)
    run = sorted(work.glob("first/train/*/*/0"))[0].relative_to(work).as_posix()
    args = [verb, *words.replace("RUN", run).split()]
    if way == "started":
        done: Any = shell(*args, cwd=work)
    else:
        server, env = request.getfixturevalue("server"), request.getfixturevalue("env")
        done = server.run(args, work, streams, env=env | {"COLUMNS": "60"}, timeout=240)
    assert done.code == 0, done.err
    assert done.out
    assert "\u2026" not in done.out + done.err, "a narrow terminal gets whole names and numbers"
    for name in TYPED.get(verb, "").split():
        assert name in (done.out + done.err).split()
    for place in left.split():
        (found,) = work.glob(place.replace("RUNS", f"outputs/{verb}/*/*").replace("RUN", run))
        assert found.stat().st_size > 0
        if found.name == "report.html":
            assert "<svg" in found.read_text()
