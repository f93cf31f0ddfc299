"""Writing into the token cache: one process at a time, all or nothing, a full disk told plainly."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from roundround.errors import UserError

log = logging.getLogger(__name__)

MOVE = "ROUNDROUND_CACHE=FOLDER moves the cache"
FULL = (errno.ENOSPC, errno.EDQUOT)
FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EEXIST, errno.ENOTDIR)


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
    """Makes a full or forbidden disk the user's error, which names the folder and how to move it."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise UserError(f"no space left for tokens in {folder}: free some, or {MOVE}") from error
        if error.errno in FORBIDDEN:
            raise UserError(f"tokens cannot be written in {folder} ({error.strerror}): {MOVE}") from error
        raise


def write_text(path: Path, text: str) -> None:
    """UTF-8, on the disk when it returns."""
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Puts a folder's list of names on the disk."""
    if os.name == "posix":  # elsewhere a folder cannot be opened
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
