"""Tokens that lie in shards, read as one array: nothing is in memory until it is asked for.

Shards behind an address are copied to the local disk, up to a size, for all jobs and ranks of a machine. A copy is
named by its sha256 and is checked when it arrives. A process that needs one that is not there fetches it, one process
at a time; then the copies used longest ago are removed until the rest is small enough. A file that is being read can
be removed: it stays readable for whoever has it open, and anybody else fetches it again.

Tested by tests/data/test_shards.py.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from numpy.typing import DTypeLike, NDArray

from roundround.data.entry import FILES, Damaged, Entry, ShardFile, dtype_of, files_of
from roundround.data.store import MOVE, Remote, writing
from roundround.support.errors import UserError

Array = NDArray[np.unsignedinteger[Any]]
SHARDS = "shards"  # below the cache: copies of those that lie at addresses
GROUP = 16  # shards whose windows are shuffled together: up to 700 MiB of text, and a GiB where there are more
CACHE_BYTES = 20 * 10**9  # of these copies, where no corpus says otherwise
MOST_OPEN = 64  # files: those of the group of shards at hand, of the next one, and of what is held out
FETCHED_AT_ONCE = 4
BLOCK = 1 << 20  # values


class OpenFile:
    """A file that stays readable when its name is gone, until nobody has it. OSError where there is none."""

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_RDONLY)

    def size(self) -> int:
        return os.fstat(self._handle).st_size

    def read(self, n_bytes: int, begin: int) -> bytes:
        """Bytes from `begin` on, without mapping the file: pages of a map count as memory of the process."""
        parts = []
        while n_bytes and (part := os.pread(self._handle, n_bytes, begin)):
            parts.append(part)
            n_bytes, begin = n_bytes - len(part), begin + len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # at an exit `os` may be gone already
        if "_handle" in self.__dict__:  # opened at all
            close(self._handle)


class ShardCache:
    """Opens the files of shards: where they lie in a folder, else a copy. most_bytes: of all copies together."""

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self.folder, self.most_bytes = folder, most_bytes

    def open(self, file: ShardFile) -> OpenFile:
        """The file, opened and what it has to be. UserError where it is damaged or gone where it lies."""
        if isinstance(file.store, Remote):
            path = self.folder / f"{file.sha256}.bin"
            copy = self._there(path, file)
            if copy is None:
                with writing(self.folder, f"lower data.cache_gb, or {MOVE}"):
                    self.folder.mkdir(parents=True, exist_ok=True)
                    with FileLock(self.folder / f"{file.sha256[:2]}.lock"):  # 256 of them, not one a shard
                        copy = self._there(path, file) or self._fetch(file.store, file, path)
                    self._evict(path)
            return copy
        try:
            opened = OpenFile(file.store.path / file.name)
        except OSError as error:
            raise lost(file, error.strerror or "it cannot be read") from error
        if opened.size() != file.n_bytes:
            raise lost(file, "it was cut")
        return opened

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

    def _fetch(self, store: Remote, file: ShardFile, path: Path) -> OpenFile:
        temporary = self.folder / f".{file.sha256}.{os.getpid()}.tmp"
        try:
            store.fetch(file.name, temporary)
            file.check(temporary)
            opened = OpenFile(temporary)  # before anybody can remove it
            os.replace(temporary, path)
            return opened
        except FileNotFoundError as error:
            raise lost(file, "it is gone") from error
        except Damaged as damage:
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
        f"{file.store.address}/{file.name}: {why}; roundround prepare with the same data= and to= makes it again"
    )


class OpenShards:
    """The files of shards that were opened last, and those that are being fetched because they will be needed."""

    def __init__(self, cache: ShardCache) -> None:
        self._cache = cache
        self._files: OrderedDict[tuple[str, str], Future[OpenFile]] = OrderedDict()
        self._threads, self._process = ThreadPoolExecutor(FETCHED_AT_ONCE), os.getpid()

    def read(self, file: ShardFile, begin: int, end: int) -> Array:
        """Values begin..end of a shard, waiting where it is still on its way. UserError where it is lost."""
        opened = self._opening(file).result()
        size = file.dtype.itemsize
        return np.frombuffer(opened.read((end - begin) * size, begin * size), file.dtype)

    def ahead(self, files: Iterable[ShardFile]) -> None:
        """Begin to fetch files that will be read."""
        for file in files:
            self._opening(file)

    def _opening(self, file: ShardFile) -> Future[OpenFile]:
        if self._process != os.getpid():  # a worker of a loader, which has the open files and none of the threads
            self._threads, self._process = ThreadPoolExecutor(FETCHED_AT_ONCE), os.getpid()
            self._files = OrderedDict((key, found) for key, found in self._files.items() if found.done())
        key = (file.store.address, file.name)
        if key not in self._files:
            self._files[key] = self._threads.submit(self._cache.open, file)
            while len(self._files) > MOST_OPEN:
                self._files.popitem(last=False)
        self._files.move_to_end(key)
        return self._files[key]


@dataclass(frozen=True)
class Segment:
    """Values begin..end of a shard's file."""

    file: ShardFile
    begin: int
    end: int

    def __len__(self) -> int:
        return self.end - self.begin


class TokenStream:
    """Segments one after another, as an array of one dimension. A slice is another stream; `read` and numpy copy."""

    def __init__(self, segments: Sequence[Segment], dtype: np.dtype[Any], opened: OpenShards) -> None:
        self.segments, self.dtype, self._opened = list(segments), dtype, opened
        self._ends = list(accumulate(map(len, self.segments)))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, piece: slice) -> TokenStream:
        begin, end, step = piece.indices(len(self))
        if step != 1:
            raise ValueError(f"step is {step}: 1 is allowed")
        return TokenStream(list(self._pieces(begin, end)), self.dtype, self._opened)

    def __iter__(self) -> Iterator[int]:
        for block in self.blocks():
            yield from block.tolist()

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        return np.asarray(self.read(0, len(self)), dtype)

    def read(self, begin: int, end: int) -> Array:
        """Values begin..end: [end - begin]."""
        parts = [self._opened.read(piece.file, piece.begin, piece.end) for piece in self._pieces(begin, end)]
        return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, self.dtype), *parts])

    def blocks(self) -> Iterator[Array]:
        """All values, some at a time."""
        for begin in range(0, len(self), BLOCK):
            yield self.read(begin, min(begin + BLOCK, len(self)))

    def tolist(self) -> list[int]:
        return list(self)

    def sum(self) -> int:
        return sum(int(block.sum(dtype=np.int64)) for block in self.blocks())

    def sizes(self) -> list[int]:
        """Values of each segment, which of a whole array is a shard."""
        return [len(segment) for segment in self.segments]

    def only(self, segments: Sequence[int]) -> TokenStream:
        """These segments by number, in this order."""
        return TokenStream([self.segments[n] for n in segments], self.dtype, self._opened)

    def ahead(self) -> None:
        """Begin to fetch all of it."""
        self._opened.ahead(segment.file for segment in self.segments)

    def _pieces(self, begin: int, end: int) -> Iterator[Segment]:
        number = bisect_right(self._ends, begin)
        while begin < end:
            segment, last = self.segments[number], self._ends[number]
            first, upto = last - len(segment), min(end, last)
            yield Segment(segment.file, segment.begin + begin - first, segment.begin + upto - first)
            begin, number = upto, number + 1


def streams_of(entry: Entry, cache_dir: Path, most_bytes: int = CACHE_BYTES) -> dict[str, TokenStream]:
    """The arrays of a prepared corpus; copies of what lies at an address take at most so much of the disk."""
    opened = OpenShards(ShardCache(cache_dir / SHARDS, most_bytes))
    return {
        array: TokenStream(
            [Segment(file, 0, file.n_values) for file in files_of(entry, array)], dtype_of(array, entry.meta), opened
        )
        for array in FILES
    }


def joined(streams: Sequence[TokenStream]) -> TokenStream:
    """Streams of the same type, one after another."""
    first = streams[0]
    return TokenStream([segment for stream in streams for segment in stream.segments], first.dtype, first._opened)


@dataclass(frozen=True)
class Mix:
    """Streams, each with its share of the windows. shares: positive, and 1 together. names: of the sources."""

    streams: tuple[TokenStream, ...]
    shares: tuple[float, ...]
    names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return sum(map(len, self.streams))
