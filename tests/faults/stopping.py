"""Runs that are stopped on their way, taken up again, and compared with one that was never stopped."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forkserver import Ended, Forkserver
from originals import SMALL

AssertNoFaults = Callable[[str, Mapping[str, Sequence[str]]], None]  # a kind of fault; what is wrong, by case
RUNS = "outputs/*/*/*"  # run directories, from the folder that a command works in
TRAIN = ["train", *SMALL]
EVAL = ["length=32", "max_tokens=64", "logger=none"]
# a learning rate at which the loss rises after the fourth step: the best checkpoint is not among the newest, and the
# one that was best before it is deleted
RESTLESS = [
    "trainer.max_steps=8", "checkpoint_every=3", "validate_every=2", "validation_tokens=512", "batch_size=1", "seed=5",
    "trainer.log_every_n_steps=2", "optim.lr=0.2", "schedule.warmup_steps=0", "schedule.final_fraction=1.0",
    "pe=p_rope",
]  # fmt: skip
MAX_RETRIEVAL = [
    "max-retrieval", "experiment=max-retrieval/quick", "max_steps=7", "checkpoint_every=2", "log_every=3", "seeds=2",
    "batch_size=8", "evaluate=[softmax]", "test_sizes=[16]", "test_sets=8", "model.width=16", "device=cpu",
    "logger=none",
]  # fmt: skip
WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "dog", "ran", "far", "over", "hill"]
SPEED = re.compile(r"per_second|seconds|^(mfu|waiting_share|peak_memory_gb)$")
LOCKS = re.compile(r"\.lock$")


def text_in(folder: Path) -> list[str]:
    """A small corpus in a folder, as arguments; a document is longer than what is scored of it."""
    draw = random.Random(0)
    documents = [" ".join(draw.choice(WORDS) for _ in range(300)) for _ in range(12)]
    (folder / "words.txt").write_text("\n\n".join(documents))
    return ["data=text", f"data.path={folder / 'words.txt'}"]


@dataclass(frozen=True)
class Bench:
    """Runs commands, the output of each in a folder of its own; `cache` is where they keep tokens, below their own
    folder where it is relative."""

    server: Forkserver
    env: Mapping[str, str]
    streams: Path
    cache: str | None = None

    def run(self, args: Sequence[str], folder: Path, **options: Any) -> Ended:
        env = dict(self.env) | ({"ROUNDROUND_CACHE": str(folder / self.cache)} if self.cache else {})
        return self.server.run(args, folder, self.streams, env=env | options.pop("env", {}), **options)


@dataclass(frozen=True)
class Reference:
    """A run that was never stopped: its arguments, what it left, its changes to the disk in order, how long it took."""

    args: Sequence[str]
    folder: Path
    contents: Mapping[str, Any]
    changes: Sequence[str]
    seconds: float

    def number_of(self, pattern: str) -> int:
        """The number of the first change that fits."""
        return next(n for n, change in enumerate(self.changes, 1) if re.search(pattern, change))


def never_stopped(bench: Bench, args: Sequence[str], folder: Path, *, watch: bool = False) -> Reference:
    began = time.monotonic()
    ended = bench.run(args, folder, watch=watch)
    assert ended.code == 0, ended.err
    return Reference(args, folder, contents(folder), ended.changes, time.monotonic() - began)


def runs_in(folder: Path) -> list[Path]:
    """The run directories of commands that worked in a folder, oldest first."""
    return sorted(path for path in folder.glob(RUNS) if (path / "run.json").exists())


def next_command(args: Sequence[str], folder: Path) -> list[str]:
    """What somebody types after a stop: resume the run, or the same again where none has begun.

    A directory without a manifest, in which no run has begun, is deleted by hand.
    """
    for path in folder.glob(RUNS):
        if not (path / "run.json").exists():
            shutil.rmtree(path)
    runs = runs_in(folder)
    return [args[0], f"resume={runs[-1]}", "logger=none"] if runs else list(args)


def killed_and_finished(bench: Bench, args: Sequence[str], folder: Path, kills: Sequence[int], end: Any) -> list[str]:
    """Kill a run before its changes of these numbers, one after each resume, then finish it; what is wrong, in words.

    end: `contents` of a run never stopped.
    """
    folder.mkdir(exist_ok=True)
    faults = []
    for change in kills:
        ended = bench.run(next_command(args, folder), folder, kill_before=change)
        if ended.code != -9:
            return [*faults, f"not killed before change {change} but ended with {ended.code}: {ended.err[-200:]!r}"]
        where = place_of(ended.changes[-1], folder)
        faults += [f"killed before {where}: {fault}" for path in runs_in(folder) for fault in inconsistencies(path)]
    ended = bench.run(next_command(args, folder), folder)
    if ended.code != 0:
        return [*faults, f"killed before {where}: the resume ends with {ended.code}: {ended.err[-300:]!r}"]
    return faults + [f"killed before {where}: {fault}" for fault in differences(end, contents(folder))]


def place_of(change: str, folder: Path) -> str:
    return re.sub(r"\S*outputs/[\w-]+/[\d-]+/[\d-]+/?", "", change.replace(str(folder), ""))


def inconsistencies(run: Path) -> list[str]:
    """What is wrong with a run that was killed, before anybody takes it up again."""
    manifest = json.loads((run / "run.json").read_text())
    faults = [] if "choices" in manifest or manifest["verb"] != "train" else ["run.json has no choices"]
    checkpoints = run / "checkpoints"
    steps = sorted(path for path in checkpoints.glob("step-*") if path.is_dir())
    faults += [f"{folder.name} is not whole" for folder in steps if not is_whole(folder)]
    if steps and is_whole(steps[-1]) and "best" in (newest := json.loads((steps[-1] / "state.json").read_text())):
        step = newest["best"]["step"]
        if step is not None and not is_whole(checkpoints / f"step-{step:08d}"):
            faults.append(f"the best step, {step}, is gone")
    for link in (path for path in checkpoints.glob("*") if path.is_symlink()):
        faults += [] if link.exists() else [f"{link.name} leads nowhere"]
    if (run / "results.json").exists() and (checkpoints / "best").exists():
        step = json.loads((run / "results.json").read_text())[0]["step"]
        linked = (checkpoints / "best").resolve().name
        faults += [] if linked == f"step-{step:08d}" else [f"the results are of step {step} and best is {linked}"]
    return faults


def is_whole(folder: Path) -> bool:
    try:
        hashes = json.loads((folder / "state.json").read_text())["sha256"]
        return len(hashes) == 2 and all(
            hashlib.sha256((folder / name).read_bytes()).hexdigest() == value for name, value in hashes.items()
        )
    except OSError:
        return False


def contents(folder: Path) -> dict[str, Any]:
    """Everything in a working folder that a stop must not change, by name: files, links, numbers without speeds."""
    paths = [path for path in sorted(folder.rglob("*")) if not path.is_dir() or path.is_symlink()]
    found: dict[str, Any] = {"run directories": len(list(folder.glob(RUNS)))}
    for path in paths:
        name = re.sub(r"^outputs/([\w-]+)/[\d-]+/[\d-]+", r"\1", path.relative_to(folder).as_posix())
        if not LOCKS.search(name):
            found[name] = content(path)
    return found


def content(path: Path) -> Any:
    """What of a file must be the same."""
    if path.is_symlink():
        return f"-> {os.readlink(path)}"
    if path.name == "run.json":
        manifest = json.loads(path.read_text())
        kept = ("verb", "status", "choices", "headline", "facts", "data", "config", "overrides", "seed", "fit")
        return without_speeds({key: manifest.get(key) for key in kept})
    if path.name == "metrics.jsonl":
        return without_speeds([json.loads(line) for line in path.read_text().splitlines()])
    if path.name == "results.json":
        return without_speeds([{**record, "run": None} for record in json.loads(path.read_text())])
    if path.suffix == ".json":
        return without_speeds(json.loads(path.read_text()))
    if path.suffix in (".safetensors", ".bin", ".md", ".png", ".svg", ".pdf"):
        return hashlib.sha256(path.read_bytes()).hexdigest()
    return path.stat().st_size > 0  # logs and pages


def without_speeds(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_speeds(below) for key, below in value.items() if not SPEED.search(key)}
    return [without_speeds(below) for below in value] if isinstance(value, list) else value


def differences(expected: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """In words, file by file."""
    missing = [f"{name} is missing" for name in expected.keys() - found.keys()]
    extra = [f"{name} is left" for name in found.keys() - expected.keys()]
    other = [
        f"{name} differs: {str(found[name])[:200]} where {str(expected[name])[:200]} is right"
        for name in expected.keys() & found.keys()
        if expected[name] != found[name]
    ]
    return sorted(missing) + sorted(extra) + sorted(other)
