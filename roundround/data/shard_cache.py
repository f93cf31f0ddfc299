"""Shards from an address, kept on the local disk up to a size, for all jobs and ranks of a machine.

A file is named by its sha256 and is checked when it arrives. Whoever needs one that is not there fetches it, one
process at a time; then those used longest ago are removed until the rest is small enough. A file that somebody reads
can be removed: it stays readable to who has opened it, and is fetched again by who has not.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from filelock import FileLock

from roundround.data.disk import MOVE
from roundround.data.entry import Damaged, ShardFile
from roundround.data.places import Folder, Remote
from roundround.support.errors import UserError

ATTEMPTS = 2  # of a file that arrives damaged, or is removed before it is opened


class OpenFile:
    """A file that stays readable when its name is gone, until nobody has it. OSError where there is none."""

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_RDONLY)

    def size(self) -> int:
        return os.fstat(self._handle).st_size

    def read(self, n_bytes: int, begin: int) -> bytes:
        """Bytes from a place on, without mapping the file: pages of a map count as memory of the process."""
        parts = []
        while n_bytes and (part := os.pread(self._handle, n_bytes, begin)):
            parts.append(part)
            n_bytes, begin = n_bytes - len(part), begin + len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def __del__(self) -> None:
        if "_handle" in self.__dict__:  # opened at all
            os.close(self._handle)


class ShardCache:
    """Opens the files of shards: where they lie in a folder, else a copy. most_bytes: of all copies together."""

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self.folder, self.most_bytes = folder, most_bytes

    def open(self, file: ShardFile) -> OpenFile:
        """The file, opened and what it has to be. UserError where it is damaged or gone at its place."""
        if isinstance(file.place, Folder):
            return self._in_place(file.place, file)
        return self._copy(file.place, file)  # type: ignore[arg-type]

    def _in_place(self, folder: Folder, file: ShardFile) -> OpenFile:
        try:
            opened = OpenFile(folder.path / file.name)
        except OSError as error:
            raise lost(file, error.strerror or "it cannot be read") from error
        if opened.size() != file.n_bytes:
            raise lost(file, "it was cut")
        return opened

    def _copy(self, place: Remote, file: ShardFile) -> OpenFile:
        path = self.folder / f"{file.sha256}.bin"
        for attempt in range(1, ATTEMPTS + 1):
            opened = self._there(path, file)
            if opened is not None:
                return opened
            with Folder(self.folder, way_out=f"lower data.cache_gb, or {MOVE}").writing():
                self.folder.mkdir(parents=True, exist_ok=True)
                with FileLock(self.folder / f"{file.sha256[:2]}.lock"):  # 256 of them, not one a shard
                    opened = self._there(path, file)
                    if opened is not None:
                        return opened
                    self._fetch(place, file, path, last=attempt == ATTEMPTS)
                self._evict(path)
        raise lost(file, "it was removed from the cache while it was fetched")

    def _there(self, path: Path, file: ShardFile) -> OpenFile | None:
        """A copy that is as it should be. One that is not is removed."""
        with suppress(OSError):
            opened = OpenFile(path)
            try:
                file.check(path)
            except Damaged:
                path.unlink(missing_ok=True)
                return None
            os.utime(path)
            return opened
        return None

    def _fetch(self, place: Remote, file: ShardFile, path: Path, *, last: bool) -> None:
        handle, name = tempfile.mkstemp(dir=self.folder, prefix=".", suffix=".tmp")
        os.close(handle)
        temporary = Path(name)
        try:
            place.fetch(file.name, temporary)
            file.check(temporary)
            os.replace(temporary, path)
        except FileNotFoundError as error:
            raise lost(file, "it is gone") from error
        except Damaged as damage:
            if last:
                raise lost(file, str(damage)) from damage
        finally:
            temporary.unlink(missing_ok=True)

    def _evict(self, newest: Path) -> None:
        """Remove the copies used longest ago, but not the newest, until all are as small as they should be."""
        with FileLock(self.folder / "evict.lock"):
            found = []
            for path in self.folder.glob("*.bin"):
                with suppress(FileNotFoundError):
                    status = path.stat()
                    found.append((status.st_mtime_ns, status.st_size, path))
            total = sum(size for _, size, _ in found)
            for _, size, path in sorted(found):
                if total <= self.most_bytes:
                    return
                if path != newest:
                    path.unlink(missing_ok=True)
                    total -= size


def lost(file: ShardFile, why: str) -> UserError:
    """A shard that cannot be read from where it lies."""
    return UserError(
        f"{file.place.address}/{file.name}: {why}; roundround prepare with the same data= and to= makes it again"
    )
