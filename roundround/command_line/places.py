"""The directories of a launch: claimed for Hydra, removed where nothing came of them; what is wrong with a place."""

from __future__ import annotations

import errno
import re
from contextlib import suppress
from pathlib import Path

from omegaconf import OmegaConf

from roundround.runs import directories
from roundround.support.errors import UserError, escaped
from roundround.support.files import is_full

claimed: dict[str, str] = {}  # directories made by this process, each with the file that Hydra writes there
typed: list[str] = []  # the overrides of this command
sweeps: list[str] = []  # those of sweeps, for the last line on standard output

DAY = re.compile(r"\d{4}-\d\d-\d\d")
WRONG_PLACE = (
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR),
    errno.E2BIG,  # of a command: the overrides of a foreign run
)
TOO_LARGE = (errno.EFBIG,)


def run_directory(outputs: object, verb: str, resume: object) -> str:
    past = None if resume is None else given("resume", resume)
    task = [override for override in typed if not override.lstrip("+~").startswith("hydra")]
    found = directories.run_directory(given("outputs", outputs), verb, past, task)
    if resume is None:
        claimed[found] = f"{verb}.log"
    return found


def sweep_directory(outputs: object, verb: str, resume: object) -> str:
    if resume is not None:
        raise UserError("resume= continues one run; leave out -m")
    found = directories.sweep_directory(given("outputs", outputs), verb)
    claimed[found] = "multirun.yaml"
    sweeps.append(found)
    return found


def given(key: str, value: object) -> str:
    """A folder from the command line. UserError for an empty one, and for one that is no line of standard output."""
    if not isinstance(value, str | int | float | None):
        raise UserError(f"{key}={value}: give one folder")
    text = "" if value is None else str(value)
    if not text.strip():
        raise UserError(f"{key}= is empty; give a folder")
    if "://" in text:
        raise UserError(f"{key}= is an address, perhaps with a password; give a folder of this machine")
    if escaped(text) != text:
        raise UserError(f"{key}={text}: control characters, or bytes that are not UTF-8, in the name of a folder")
    return text


# At import, because a launcher's worker resolves the config before it calls the job. The cache makes Hydra, which asks
# for the directory several times, get the same one.
OmegaConf.register_new_resolver("run_directory", run_directory, use_cache=True, replace=True)
OmegaConf.register_new_resolver("sweep_directory", sweep_directory, use_cache=True, replace=True)


def leave_no_claimed() -> None:
    """Remove the directories that this process has claimed and nobody has taken over."""
    for directory, file in claimed.items():
        leave_nothing(Path(directory), file)


def leave_nothing(directory: Path, file: str) -> None:
    """Remove a directory in which nothing was written but this file, such as the log of a refused job.

    Never the current folder, which is the user's own: hydra.run.dir=. asks for it.
    """
    with suppress(OSError):  # what cannot be removed stays: another error is being told
        if directory != Path.cwd() and {path.name for path in directory.iterdir()} <= {file}:
            (directory / file).unlink(missing_ok=True)
            directory.rmdir()
            if DAY.fullmatch(directory.parent.name):  # neither the day's folder nor the verb's where they are empty now
                directory.parent.rmdir()
                directory.parent.parent.rmdir()


def of_the_place(error: OSError, directory: Path) -> str | None:
    """A line about a disk that is full or a path that cannot be; None where the error is another."""
    place = error.filename or directory
    if is_full(error):
        return f"no space left on the disk of {place}; free some, or give outputs=DIR"
    if error.errno in TOO_LARGE:
        return f"{place}: {error.strerror}; raise the limit of ulimit -f"
    if error.errno in WRONG_PLACE and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return None
