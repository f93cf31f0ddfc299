"""Writing into the token cache: one process at a time, all or nothing, and a clear message where the disk is full."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from roundround.errors import UserError
from roundround.files import is_full

log = logging.getLogger(__name__)

MOVE = "ROUNDROUND_CACHE=FOLDER moves the cache"


@contextmanager
def claimed(entry: Path) -> Iterator[None]:
    """Inside, no other process makes this entry. The lock is the system's: it ends with the process that holds it."""
    with writing(entry.parent):
        entry.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(entry.with_suffix(".lock"))
        try:
            lock.acquire(timeout=0)
        except Timeout:
            log.info("another process is tokenising this corpus; waiting for %s", entry)
            lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Makes a place that cannot be written, whatever the reason, the user's error: it names the folder and the way out.

    A corpus that cannot be read has to have become a UserError before (`corpora.reading`).
    """
    try:
        yield
    except OSError as error:
        if is_full(error):
            raise UserError(f"no space left for tokens in {folder}: free some, or {MOVE}") from error
        raise UserError(f"tokens cannot be written in {folder} ({error.strerror}): {MOVE}") from error


def remove(path: Path) -> None:
    """Remove a folder with all in it, or whatever else has this name."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
