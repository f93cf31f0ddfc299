"""Running the verbs that an item needs, each in a process of its own, and taking finished runs of the same config."""

from __future__ import annotations

import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from roundround.config.composition import compose
from roundround.config.options import config_name
from roundround.config.recorded import as_dict
from roundround.console import print_status
from roundround.errors import Interrupted, UserError
from roundround.interruption import interrupt, on_signals, put_back
from roundround.runs.directories import all_runs, runs_of
from roundround.runs.provenance import config_hash
from roundround.runs.run import Invocation
from roundround.runs.subject import settle_model_and_data

RESUMABLE = {"train", "max-retrieval"}
NO_RESULT = {"outputs", "logger", "resume", "hydra"}  # keys that change no number
ABOUT_MODELS = {"probe", "theory"}  # verbs that choose a text to go with the model


@dataclass(frozen=True)
class Made:
    """A run that an item was made from."""

    command: str
    directory: Path
    taken: bool  # finished before


class VerbFailed(Exception):
    """A verb said on standard error what went wrong; with its exit code."""

    def __init__(self, command: str, code: int) -> None:
        super().__init__(f"{command} ended with exit code {code}")
        self.code = code


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
        wanted = hash_of(self.config(verb, words))
        same = [
            (path, manifest["status"])
            for path, manifest in all_runs(runs_of(self.outputs, verb), verb, done=False)
            if hash_of(manifest["config"]) == wanted
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

    def config(self, verb: str, words: list[str]) -> dict[str, Any]:
        """The config that the verb would record."""
        cfg: DictConfig = compose(config_name(verb), words, self.config_dir)
        choices = dict(cfg.hydra.runtime.choices)
        with open_dict(cfg):
            del cfg["hydra"]
        OmegaConf.update(cfg, "outputs", self.outputs)
        if verb in ABOUT_MODELS:
            settle_model_and_data(cfg, Invocation(verb=verb, directory=Path(), overrides=words, choices=choices))
        return as_dict(cfg)


def hash_of(config: dict[str, Any]) -> str:
    """The hash of what a config's numbers depend on."""
    return config_hash({key: value for key, value in config.items() if key not in NO_RESULT})


def start(words: list[str]) -> Path:
    """Run `roundround WORDS`; its directory. A signal reaches it before this process goes on with the signal."""
    command = [sys.executable, "-m", "roundround", *words]
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, process_group=0
    )  # Ctrl-C comes from here alone
    handlers = on_signals(interrupt)
    try:
        printed, _ = child.communicate()
    except Interrupted as stop:
        child.send_signal(stop.signum)
        child.wait()
        raise
    finally:
        put_back(handlers)
    if child.returncode == 2:
        raise UserError(f"roundround {' '.join(words)} was refused: see the line above")
    if child.returncode:
        raise VerbFailed(f"roundround {' '.join(words)}", child.returncode)
    return Path(printed.strip().splitlines()[-1])
