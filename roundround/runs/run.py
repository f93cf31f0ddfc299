"""A run directory and what a command leaves in it: manifest, metrics, results.

run.json        the manifest, written at the start and rewritten at the end, always atomically
metrics.jsonl   one line per logging step, flushed: the truth even where no logger is on
results.json    the numbers the run is for: a flat list of records
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from roundround.distributed.peers import Peers
from roundround.runs.identity import identity, of_normaliser
from roundround.runs.leftovers import MANIFEST, METRICS, RESULTS
from roundround.runs.loggers.base import Logger
from roundround.support.console import print_status
from roundround.support.errors import one_line
from roundround.support.files import write_atomically, write_json, write_records


class Run:
    """An open run: what `opening.opened` yields. On every rank but the first it writes nothing."""

    def __init__(self, directory: Path, manifest: dict[str, Any], *, writes: bool) -> None:
        self.directory = directory
        self.manifest = manifest
        self.writes = writes
        self.logger = Logger()  # nobody listens until it has started
        self.has_logged = False

    def note(self, **facts: Any) -> None:
        """Add facts to the manifest and write it."""
        self.manifest.update(facts)
        if self.writes:
            write_json(self.directory / MANIFEST, self.manifest)

    def log(self, step: int, **metrics: float) -> None:
        """Append one line to metrics.jsonl and tell the logger. A number that is not finite is written as its name."""
        if not self.writes:
            return
        line = named(metrics)
        with open(self.directory / METRICS, "a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **line}) + "\n")
        self.has_logged = True
        try:
            self.logger.log(metrics, step)
        except ConnectionError as error:  # a job's SIGTERM reaches the process that the logger has started too
            print_status(f"the logger's own process is gone ({one_line(error)}); the run goes on without it")
            self.logger = Logger()

    def forget_after(self, step: int) -> None:
        """Drop the metrics of steps after this one: a resumed run makes them again. A torn last line goes too."""
        if not self.writes:
            return
        path = self.directory / METRICS
        if path.exists():
            lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
            kept = [line for line in lines if step_of(line) <= step]
            write_atomically(path, "".join(line + "\n" for line in kept))
        self.logger.forget_after(step)

    def results(self, records: list[dict[str, Any]], **headline: float) -> None:
        """Write results.json, the numbers this run is for, and the few that the manifest shows.

        Each record gets the fields of `identity`, so that records of many runs can be put together.
        """
        self.manifest["headline"] = named(headline)
        if self.writes:
            common = identity(self.directory, self.manifest)
            whole = [{"metric": r["metric"], **common, **of_normaliser(self.manifest, r), **r} for r in records]
            write_records(self.directory / RESULTS, [named(record) for record in whole])


def named(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """The same with a number that is not finite as its name, because json has none."""
    return {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in numbers.items()
    }


def step_of(line: str) -> float:
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return math.inf


@dataclass(frozen=True, kw_only=True)
class Invocation:
    """How a verb was called: what the command line decided beside the config.

    directory: the run's own, claimed. overrides: as Hydra parsed them. choices: the option taken of each config group.
    sweep: the directory of the sweep that this run is a job of. config_dir: the user's own conf folder. command: what
    was typed, quoted for a shell. peers: the processes that work on the run together.
    """

    verb: str
    directory: Path
    overrides: list[str]
    choices: dict[str, str | None]
    sweep: Path | None = None
    config_dir: str | None = None
    command: str = "roundround"
    peers: Peers = field(default_factory=Peers)

    @property
    def given(self) -> dict[str, str]:
        """What the command line chose of the groups."""
        return {group: choice for group, choice in self.choices.items() if choice is not None}
