"""What killed processes leave: put right when the run is opened again, or swept by the next start. No torch here."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from roundround.support.errors import UserError
from roundround.support.files import leftovers

MANIFEST, LOCK, METRICS, RESULTS, PAGE = "run.json", ".lock", "metrics.jsonl", "results.json", "report.html"
# written atomically
FILES = (
    *(MANIFEST, METRICS, RESULTS, PAGE, "code.patch", "tokenizer.json", "table.md", "fitted.yaml"),
    *("metrics.csv", "results.csv"),
)
FIGURES = ("*.svg", "*.pdf", "*.png")  # the same, in its folder
EXPORTED = "exported"  # what a run whose parameters were shared out leaves for from_pretrained
FOLDERS = ("checkpoints", "figures", "variants", "conf", "tensorboard", EXPORTED)
BEFORE_MANIFEST = {LOCK, "code.patch", "multirun.yaml"}
DAY, TIME = re.compile(r"\d{4}-\d\d-\d\d"), re.compile(r"\d\d-\d\d-\d\d(-sweep)?(-\d+)?")
DAYS_SWEPT = 3  # the latest that are there
SECONDS_TO_BEGIN = 24 * 3600  # a corpus may take hours to tokenise, on another machine, where the hold is not seen
held: list[int] = []  # the hold on the directory that this process claimed last; it falls with the process


# -- a run that is opened again


def recover(directory: Path) -> None:
    """Put a run directory right after a kill: temporary files, half-deleted checkpoints, links. The lock is held.

    Raises UserError where something else lies in the place of one of its files.
    """
    check_kinds(directory)
    for folder, names in {".": FILES, "conf/softmax": FILES, "figures": FIGURES}.items():
        for path in leftovers(directory / folder, names):
            path.unlink()
    shutil.rmtree(directory / f".{EXPORTED}", ignore_errors=True)
    if (directory / "checkpoints").is_dir():
        from roundround.runs import checkpoints  # torch takes seconds to import

        checkpoints.recover(directory / "checkpoints")


def check_kinds(directory: Path) -> None:
    """Raises UserError where a file of the run is a folder, or a folder something else."""
    for name in FILES:
        path = directory / name
        if path.exists() and not path.is_file():
            raise UserError(f"{path} is not a file; move it away to resume the run")
    for name in FOLDERS:
        path = directory / name
        if path.exists() and not path.is_dir():
            raise UserError(f"{path} is not a folder; move it away to resume the run")


def refuse_links(directory: Path) -> None:
    """Raises UserError for a link that leads out of a run: a resume would write there. W&B makes some in its folder."""
    inside = directory.resolve()
    for folder, folders, files in os.walk(directory):
        for path in (Path(folder, name) for name in [*folders, *files]):
            if path.is_symlink() and not path.resolve().is_relative_to(inside):
                raise UserError(f"{path} is a link that leads out of the run; put what it leads to in its place")
        folders[:] = [name for name in folders if name != "wandb"]


# -- directories that were claimed and never begun


def hold(directory: Path) -> None:
    """Keep a new directory from being swept as long as this process lives, or until it claims another."""
    handle = locked_folder(directory)
    if handle is not None:
        while held:
            os.close(held.pop())
        held.append(handle)


def sweep(parent: Path) -> None:
    """Remove the directories under `parent` (the runs of a verb) whose process ended before it wrote a manifest.

    Only those named as `claim` names them, which hold nothing but a lock, a log of no error and what is written before
    the manifest, which have not changed for a day, and which no living process holds.
    """
    days = sorted(day for day in parent.iterdir() if DAY.fullmatch(day.name) and not day.is_symlink())
    for day in days[-DAYS_SWEPT:]:
        with suppress(OSError):  # another start is quicker, or the folder is not ours to change
            for directory in day.iterdir():
                if TIME.fullmatch(directory.name) and not directory.is_symlink():
                    remove_unbegun(directory, f"{parent.name}.log")


def remove_unbegun(directory: Path, log_name: str) -> None:
    """`sweep` of one directory."""
    if (directory / MANIFEST).exists() or time.time() - directory.stat().st_mtime < SECONDS_TO_BEGIN:
        return
    with suppress(OSError), unheld(directory) as free:
        if free and is_unbegun(directory, log_name):
            shutil.rmtree(directory)


def is_unbegun(directory: Path, log_name: str) -> bool:
    """Whether a directory, of a run or of a sweep, holds only what is written before a manifest."""
    temporary = leftovers(directory, FILES)
    return all(path in temporary or comes_before(path, log_name) for path in directory.iterdir())


def comes_before(path: Path, log_name: str) -> bool:
    """Whether a manifest is written after this: a file, copies of the user's classes, or a job of a sweep."""
    if path.is_symlink():
        return False
    if path.is_dir():
        return path.name == "variants" or (path.name.isdecimal() and is_unbegun(path, log_name))
    return path.name in BEFORE_MANIFEST or (path.name == log_name and tells_no_error(path))


def tells_no_error(log: Path) -> bool:
    """Whether a log says nothing that somebody may want to read: at most that the corpus was being tokenised."""
    return log.stat().st_size < 4096 and b"Traceback" not in log.read_bytes()


@contextmanager
def unheld(directory: Path) -> Iterator[bool]:
    """Whether no living process holds the directory; none can while this lasts."""
    handle = locked_folder(directory)
    try:
        yield handle is not None
    finally:
        if handle is not None:
            os.close(handle)


def locked_folder(directory: Path) -> int | None:
    """A handle on a folder with the system's lock on it; None where another has it, or there is no such lock."""
    if os.name != "posix":  # there nothing is swept
        return None
    import fcntl

    try:
        handle = os.open(directory, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle
