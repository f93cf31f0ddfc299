"""Tokens that lie in shards, read as one array: nothing is in memory until it is asked for."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from roundround.data.entry import ShardFile
from roundround.data.shard_cache import OpenFile, ShardCache

Array = NDArray[np.unsignedinteger[Any]]
MOST_OPEN = 64  # files: those of the group of shards at hand, of the next one, and of what is held out
FETCHED_AT_ONCE = 4
BLOCK = 1 << 20  # values


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
        key = (file.place.address, file.name)
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

    @classmethod
    def of_files(cls, files: Sequence[ShardFile], dtype: np.dtype[Any], opened: OpenShards) -> TokenStream:
        return cls([Segment(file, 0, file.n_values) for file in files], dtype, opened)

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


def joined(streams: Sequence[TokenStream]) -> TokenStream:
    """Streams of the same type, one after another."""
    first = streams[0]
    return TokenStream([segment for stream in streams for segment in stream.segments], first.dtype, first._opened)


@dataclass(frozen=True)
class Mix:
    """Streams of which each has its share of the windows. shares: positive, and 1 together. names: of the sources."""

    streams: tuple[TokenStream, ...]
    shares: tuple[float, ...]
    names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return sum(map(len, self.streams))
