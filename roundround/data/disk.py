"""Who writes into the token cache: one process at a time."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from roundround.data.corpora import fingerprint
from roundround.data.places import Folder, Place

log = logging.getLogger(__name__)

MOVE = "ROUNDROUND_CACHE=FOLDER moves the cache"


@contextmanager
def claimed(place: Place, cache_dir: Path) -> Iterator[None]:
    """Inside, no other process of this machine prepares a corpus there.

    The lock is the system's: it ends with the process that holds it. It lies beside an entry of the cache, in a folder
    of the user's, and for an address in the cache.
    """
    cache = Folder(cache_dir, way_out=MOVE)
    path = cache_dir / f"{fingerprint(address=place.address)[:32]}.lock"
    if isinstance(place, Folder):
        cached = place.path.parent == cache_dir
        path = place.path.with_name(f"{place.path.name}.lock") if cached else place.path / ".lock"
    with (place if isinstance(place, Folder) else cache).writing():
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            log.info("another process is tokenising this corpus; waiting for %s", place.address)
            lock.acquire()
    try:
        yield
    finally:
        lock.release()
