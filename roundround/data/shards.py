"""Tokens in shards: the folder or address that contains their files, and the files read as one array.

Addresses are in fsspec's form (s3://, gs://, hf://, memory://). Credentials come from the usual variables and files of
each service. An address that contains a credential is refused, because addresses are recorded.

Tested by tests/data/test_shards.py.
"""

from __future__ import annotations

import os
import weakref
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, final

import numpy as np
from filelock import FileLock
from numpy.typing import DTypeLike, NDArray

from roundround.data.corpora import MORE_SPACE, first_line, reading
from roundround.support.errors import UserError, check_no_credentials
from roundround.support.files import ADDRESS, home_expanded, sha256, write_atomically

Array = NDArray[np.unsignedinteger[Any]]
GROUP = 16  # the number of shards whose windows are shuffled together: up to 1 GiB of text
CACHE_BYTES = 20 * 10**9  # the limit of all copies of shards from addresses, if the corpus gives none
MOST_OPEN = 64  # files
AGAIN = "to make it again, give roundround prepare the same data= and to="
BLOCK = 1 << 20  # values


def default_cache_dir() -> Path:
    """$ROUNDROUND_CACHE, else roundround/ in $XDG_CACHE_HOME, else roundround/ in ~/.cache."""
    own, shared = os.environ.get("ROUNDROUND_CACHE"), os.environ.get("XDG_CACHE_HOME")
    if own:
        return home_expanded(own, "ROUNDROUND_CACHE")
    return (Path(shared) if shared else home_expanded("~/.cache", "ROUNDROUND_CACHE is not set")) / "roundround"


@final
class Store:
    """A folder of files, on this machine or at an address. A file appears only when it is complete.

    path: the folder; None for an address. The methods raise UserError, with the reason, if the address cannot be
    reached, and FileNotFoundError if a file does not exist.
    """

    def __init__(self, address: str | Path) -> None:
        self.address = str(address).rstrip("/") or "/"
        self.path = None if ADDRESS.match(self.address) else Path(self.address)
        if self.path is None:
            with self._reaching():
                from fsspec.core import url_to_fs

                self._fs, root = url_to_fs(self.address)
            self._root = root.rstrip("/")

    def read_text(self, name: str) -> str:
        """The text of a small file."""
        if self.path is not None:
            return (self.path / name).read_text(encoding="utf-8")
        with self._reaching():
            content: bytes = self._fs.cat_file(f"{self._root}/{name}")
        return content.decode()

    def write_text(self, name: str, text: str) -> None:
        """Write a small file."""
        if self.path is not None:
            return write_atomically(self.path / name, text)
        with self._reaching():
            self._fs.pipe_file(f"{self._root}/{name}", text.encode())

    def put(self, file: Path, name: str) -> None:
        """Move a finished file from `scratch` into the store, as `name`."""
        if self.path is not None:
            return os.replace(file, self.path / name)
        with self._reaching():
            self._fs.put_file(str(file), f"{self._root}/{name}")

    def fetch(self, name: str, to: Path) -> None:
        """Copy a file from the address to the local path `to`."""
        with self._reaching():
            self._fs.get_file(f"{self._root}/{name}", str(to))

    def sizes(self) -> dict[str, int]:
        """{name: size in bytes} for the files in the store; empty if the folder does not exist yet."""
        try:
            if self.path is not None:
                return {path.name: path.stat().st_size if path.exists() else 0 for path in self.path.iterdir()}
            with self._reaching():
                self._fs.invalidate_cache()
                return {file["name"].rpartition("/")[2]: file["size"] for file in self._fs.ls(self._root, detail=True)}
        except OSError:  # the first write will report it
            return {}

    @contextmanager
    def scratch(self, cache_dir: Path) -> Iterator[Path]:
        """A folder on this machine for files that are written before `put` moves them."""
        if self.path is not None:
            self.path.mkdir(parents=True, exist_ok=True)
            yield self.path
        else:
            cache_dir.mkdir(parents=True, exist_ok=True)
            with TemporaryDirectory(dir=cache_dir) as folder:
                yield Path(folder)

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        """Inside the block, any exception from a service's library becomes a one-line UserError.

        All are caught because each library has exception classes of its own. FileNotFoundError is raised unchanged.
        """
        try:
            yield
        except FileNotFoundError:
            raise
        except Exception as error:
            raise UserError(
                f"{self.address}: cannot be reached ({type(error).__name__}: {first_line(error)}); check the address "
                "and the credentials; s3:// needs pip install 'roundround[s3]', gs:// 'roundround[gcs]'"
            ) from None


def open_store(address: str, option: str) -> Store:
    """The store at `address`, the value of `option`. Raises UserError for an address with credentials or a query.

    An @ in a key of s3:// or in a local path does not count as a credential.
    """
    if not address.strip():
        raise UserError(f"{option} is empty; give a folder or an address such as s3://BUCKET/FOLDER")
    if not ADDRESS.match(address):
        return Store(os.path.abspath(home_expanded(address.removeprefix("file://"), option)))
    check_no_credentials(address, option)
    if "?" in address:
        raise UserError(
            f"{option}: the part of the address after the ? would be recorded with the run; give the address without it"
        )
    return Store(address)


@dataclass(frozen=True, kw_only=True)
class ShardFile:
    """The file of one array of a shard: where it is, and the length, type and hash that it must have."""

    store: Store
    name: str
    n_values: int
    dtype: np.dtype[Any]
    sha256: str

    @property
    def n_bytes(self) -> int:
        return self.n_values * self.dtype.itemsize


class OpenFile:
    """An open file, which can be read even after it is deleted.

    The file is not memory-mapped, because mapped pages would count as used memory.
    """

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._handle)

    def read(self, n_bytes: int, begin: int) -> bytes:
        return os.pread(self._handle, n_bytes, begin)


class Shards:
    """Reads the files of shards: directly if they are in a local folder, otherwise from local copies.

    All jobs and ranks of a machine share the copies, which are in `folder`. A copy is named by its sha256, which is
    checked after the download. The least recently used copies are removed until the others have at most `most_bytes`; a
    process that has a removed copy open can still read it.
    """

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self.folder, self.most_bytes = folder, most_bytes
        self._opened = lru_cache(MOST_OPEN)(self._open)

    def read(self, file: ShardFile, begin: int, end: int) -> Array:
        """Values `begin` to `end` - 1 of a file: [end - begin]. Raises UserError if the file is missing or damaged."""
        size = file.dtype.itemsize
        return np.frombuffer(self._opened(file).read((end - begin) * size, begin * size), file.dtype)

    def _open(self, file: ShardFile) -> OpenFile:
        if file.store.path is not None:
            with reading(file.store.path, AGAIN):
                return OpenFile(file.store.path / file.name)
        path = self.folder / f"{file.sha256}.bin"
        with reading(self.folder, MORE_SPACE, done="written"):
            self.folder.mkdir(parents=True, exist_ok=True)
            with FileLock(self.folder / "lock"):
                if not path.exists():
                    temporary = path.with_suffix(".tmp")
                    where = f"{file.store.address}/{file.name}"
                    with reading(where, AGAIN):
                        file.store.fetch(file.name, temporary)
                    if sha256(temporary) != file.sha256:
                        raise UserError(
                            f"{where}: the file is not the one that was written (its sha256 differs); {AGAIN}"
                        )
                    os.replace(temporary, path)
                os.utime(path)
                opened = OpenFile(path)
                copies = sorted(self.folder.glob("*.bin"), key=lambda copy: -copy.stat().st_mtime_ns)
                up_to = accumulate([copy.stat().st_size for copy in copies])
                for copy, n_bytes in list(zip(copies, up_to, strict=True))[1:]:
                    if n_bytes > self.most_bytes:
                        copy.unlink()
        return opened


@dataclass(frozen=True)
class Segment:
    """Values `begin` to `end` - 1 of a shard's file."""

    file: ShardFile
    begin: int
    end: int

    def __len__(self) -> int:
        return self.end - self.begin


class TokenStream:
    """Concatenated segments, as a one-dimensional array. A slice is a stream and copies nothing; `read` copies."""

    def __init__(self, segments: Sequence[Segment], dtype: np.dtype[Any], shards: Shards) -> None:
        self.segments, self.dtype, self._shards = list(segments), dtype, shards
        self._ends = list(accumulate(map(len, self.segments)))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, piece: slice) -> TokenStream:
        begin, end, step = piece.indices(len(self))
        assert step == 1, "a stream has no gaps"
        return TokenStream(list(self._pieces(begin, end)), self.dtype, self._shards)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        return np.asarray(self.read(0, len(self)), dtype)

    def read(self, begin: int, end: int) -> Array:
        """Values `begin` to `end` - 1: [end - begin]."""
        parts = [self._shards.read(piece.file, piece.begin, piece.end) for piece in self._pieces(begin, end)]
        return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, self.dtype), *parts])

    def blocks(self) -> Iterator[Array]:
        """All values, in blocks of `BLOCK`."""
        for begin in range(0, len(self), BLOCK):
            yield self.read(begin, min(begin + BLOCK, len(self)))

    def sum(self) -> int:
        return sum(int(block.sum(dtype=np.int64)) for block in self.blocks())

    def sizes(self) -> list[int]:
        """The number of values of each segment; in a stream that was not sliced, each segment is a shard."""
        return [len(segment) for segment in self.segments]

    def only(self, segments: Sequence[int]) -> TokenStream:
        """The stream of the segments with these numbers, in this order."""
        return TokenStream([self.segments[n] for n in segments], self.dtype, self._shards)

    def _pieces(self, begin: int, end: int) -> Iterator[Segment]:
        number = bisect_right(self._ends, begin)
        while begin < end:
            segment, last = self.segments[number], self._ends[number]
            first, upto = last - len(segment), min(end, last)
            yield Segment(segment.file, segment.begin + begin - first, segment.begin + upto - first)
            begin, number = upto, number + 1


def joined(streams: Sequence[TokenStream]) -> TokenStream:
    """Streams of the same type, one after another."""
    first = streams[0]
    return TokenStream([segment for stream in streams for segment in stream.segments], first.dtype, first._shards)


@dataclass(frozen=True)
class Mix:
    """The streams of a mixture's sources. shares: the share of each source in the windows; positive, with sum 1."""

    streams: tuple[TokenStream, ...]
    shares: tuple[float, ...]
    names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return sum(map(len, self.streams))
