"""The directories of a launch: claimed for Hydra, removed where no run began, the runs that `run=` means.

Tested by tests/command_line/test_wrong_starts.py and tests/records/test_leftovers.py.
"""

from __future__ import annotations

import errno
import glob
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from roundround.config.build import literal
from roundround.config.options import in_quotes
from roundround.config.verb import Verb
from roundround.records import directories
from roundround.support.console import print_status
from roundround.support.errors import UserError
from roundround.support.files import home_expanded, is_full

claimed: dict[str, str] = {}  # directories made by this process, each with the file that Hydra writes there
OF_SWEEP = "multirun.yaml"  # Hydra's file in the directory of a sweep
LEVELS = 4  # from outputs to a job of a sweep: verb, day, sweep, job; run=/ looks no further

DAY = re.compile(r"\d{4}-\d\d-\d\d")
WRONG_PATH = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR)


class NotClaimed(BaseException):
    """Carries why there is no directory past Hydra, which makes a warning of a callback's Exception."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class ClaimDirectory(Callback):
    """Claims the directory of a run, or of a sweep, when it starts: what only reads a config makes none.

    A directory that the user gives, as hydra.run.dir or hydra.sweep.dir, is taken as it is.
    """

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        self.claim(config.hydra, "run", config.outputs, config.get("resume"))

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        self.claim(config.hydra, "sweep", config.outputs, config.get("resume"))

    def claim(self, hydra: DictConfig, kind: str, outputs: object, resume: object) -> None:
        """Make the directory and put it into Hydra's own config, where conf/run.yaml only says where it would be."""
        new = "${outputs}/${hydra.job.name}/${now:%Y-%m-%d}/${now:%H-%M-%S}"
        as_named: Any = OmegaConf.to_container(hydra[kind], resolve=False)
        if as_named["dir"] != {"run": new, "sweep": "${hydra.run.dir}-sweep"}[kind]:
            return
        verb, past = str(hydra.job.name), None if resume is None else str(resume)
        try:
            if not str(outputs).strip() or past == "":
                raise UserError(f"{'resume' if past == '' else 'outputs'}= is empty; give a folder")
            if kind == "run":
                found = directories.run_directory(str(outputs), verb, past, list(hydra.overrides.task))
            elif past is None:
                found = directories.sweep_directory(str(outputs), verb)
            else:
                raise UserError(directories.ONE_RUN)
        except Exception as error:
            raise NotClaimed(error) from error
        if past is None:
            claimed[found] = f"{verb}.log" if kind == "run" else OF_SWEEP
        hydra[kind].dir = literal(found)
        if kind == "sweep":
            hydra.overrides.hydra.append(f"hydra.sweep.dir={in_quotes(found)}")  # for the jobs


def leave_no_claimed() -> None:
    """Remove the directories that this process has claimed and nobody has taken over."""
    for directory, file in claimed.items():
        leave_nothing(Path(directory), file)


def leave_nothing(directory: Path, file: str) -> None:
    """Remove a directory in which nothing was written but this file, such as the log of a refused job.

    Never the current folder, which is the user's own: hydra.run.dir=. asks for it.
    """
    with suppress(OSError):  # what cannot be removed stays: another error is being reported
        if directory != Path.cwd() and {path.name for path in directory.iterdir()} <= {file}:
            (directory / file).unlink(missing_ok=True)
            directory.rmdir()
            if DAY.fullmatch(directory.parent.name):  # neither the day's folder nor the verb's where they are empty now
                directory.parent.rmdir()
                directory.parent.parent.rmdir()


def each_run(args: list[str], verb: Verb) -> list[str]:
    """`run=SWEEP`, a folder of runs or a pattern as a sweep over the finished runs that it means; other words as typed.

    UserError where it means none, and where `to=` names one folder for all.
    """
    typed = next((arg for arg in args if arg.startswith("run=")), None)
    asks = {"-c", "--cfg", "-i", "--info"} & {arg.partition("=")[0] for arg in args}
    if typed is None or "run" not in verb.keys or asks:
        return args
    word = typed.removeprefix("run=").strip("'\"")
    path = home_expanded(word, "run")
    is_folder = path.is_dir() and not os.path.lexists(path / directories.MANIFEST)
    if not (is_folder or (glob.has_magic(word) and not path.exists())):
        return args
    from roundround.analysis.past_run import Filters, directories_of, runs_in

    damaged: list[tuple[str, str]] = []
    wanted = verb.name if verb.trains else "train"
    found = directories_of(word, "", levels=LEVELS)
    runs = [str(run.directory) for run in runs_in(found, Filters({"verb": wanted, "status": "done"}), damaged)]
    if not runs:
        first = f"; {damaged[0][1]}" if damaged else ""
        raise UserError(f"run={word} means {len(found):,} runs, and none is a finished run of {wanted}{first}")
    for _, why in damaged:
        print_status(f"passed over: {why}")
    if any(arg.startswith("to=") for arg in args):
        raise UserError(f"run={word} means {len(runs):,} runs, and to= is one folder; give one, such as run={runs[0]}")
    if len(runs) < len(found):
        print_status(f"{len(runs):,} of the {len(found):,} runs of {word} are finished runs of {wanted}")
    each = f"run=choice({','.join(map(in_quotes, runs))})"
    is_sweep = {"-m", "--multirun"} & {*args}
    return [*(each if arg is typed else arg for arg in args), *([] if is_sweep else ["-m"])]


def about_path(error: BaseException, directory: Path) -> str | None:
    """A line about a disk that is full or a path that cannot be; None where the error is another."""
    if is_full(error):
        path = (error.filename if isinstance(error, OSError) else None) or directory
        return f"no space left on the disk of {path}; free some, or give outputs=DIR"
    if isinstance(error, OSError) and error.errno in WRONG_PATH and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return None
