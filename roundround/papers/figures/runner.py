"""Running the verbs that an item needs, each in a process of its own, and taking finished runs of the same numbers."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from pathlib import Path

from roundround.analysis.planned import has_same_numbers, planned_config
from roundround.runs.child import start
from roundround.runs.directories import all_runs, runs_of
from roundround.support.console import print_status

RESUMABLE = {"train", "max-retrieval"}


@dataclass(frozen=True)
class Made:
    """A run that an item was made from."""

    command: str
    directory: Path
    taken: bool  # finished before


@dataclass
class Runner:
    """Runs verbs for one item and keeps what it ran. device, trust: as every verb takes them.

    data: overrides of the text that is trained on.
    """

    outputs: str
    config_dir: str | None
    device: str
    trust: bool
    data: tuple[str, ...] = ()
    made: list[Made] = field(default_factory=list)

    def __call__(self, verb: str, *overrides: str) -> Path:
        command = shlex.join(["roundround", verb, *overrides])
        of_all = ["logger=none", f"trust={str(self.trust).lower()}"]
        words = [*overrides, *of_all, *(self.data if verb == "train" else [f"device={self.device}"])]
        planned = planned_config(verb, words, self.outputs, self.config_dir)
        same = [
            (path, manifest["status"])
            for path, manifest in all_runs(runs_of(self.outputs, verb), verb, done=False)
            if has_same_numbers(manifest, planned)
        ]
        done = [path for path, status in same if status == "done"]
        if done:
            print_status(f"{command}: takes {done[-1]}")
            self.made.append(Made(command, done[-1], taken=True))
            return done[-1]
        begun = [path for path, _ in same] if verb in RESUMABLE else []
        print_status(command if not begun else f"{command}: goes on with {begun[-1]}")
        again = [verb, f"resume={begun[-1]}", "logger=none"] if begun else [verb, *words]
        directory = start([*again, f"outputs={self.outputs}", *self.own_folder])
        self.made.append(Made(command, directory, taken=False))
        return directory

    @property
    def own_folder(self) -> list[str]:
        return [] if self.config_dir is None else ["--config-dir", self.config_dir]
