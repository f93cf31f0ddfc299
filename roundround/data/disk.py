"""Writing into the token cache: one process at a time, all or nothing, and a clear message where the disk is full."""

from __future__ import annotations

import errno
import logging
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
