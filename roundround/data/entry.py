"""A prepared corpus: its files, and how an opening finds out that they are what was written.

    begun.json  tokenizer.json  train-00000.bin  held_out-00000.bin  held_out_bytes-00000.bin  shard-00000.json  ...
    meta.json  stamps.json (in a folder, where an array is large)

A shard is a stretch of the corpus: the tokens of its training documents, and of its held-out ones with the bytes of
text that each stands for. shard-NNNNN.json comes last of a shard and says that it is whole, meta.json last of all.
Each of these holds counts, the sha256 of the files it speaks of and one of itself, so that no edited number is taken.
The types of the arrays follow from the size of the vocabulary; an array without a value has no file.

Of the arrays in a folder, an opening reads those of a corpus of one shard below 32 MiB whole (about a GB/s), and others
where their size, times or inode differ from those that stamps.json has from their last reading, as git does: 20 GB
would otherwise take half a minute at each start. So other bytes are noticed at any size, whoever wrote them; what a
failing disk changes beneath the file system is noticed in small corpora alone. What comes from an address is read
whole when it arrives (`stream.py`).

Tested by tests/data/test_tokens.py and tests/data/test_shards.py.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from roundround.data.corpora import fingerprint
from roundround.data.store import Folder, Store
from roundround.data.tokenizers import Vocabulary, check_ids, open_vocabulary
from roundround.support.errors import UserError, one_line
from roundround.support.files import check_is_file, leftovers, parse_json, read_text, write_atomically

SPLITS = ("train", "held_out")
FILES = (*SPLITS, "held_out_bytes")
COUNTS = ("documents", "tokens", "bytes")
BYTES = np.dtype("uint32")  # of text that a token stands for; one for a whole unknown word can have many
BEGUN, META, TOKENIZER, STAMPS = "begun.json", "meta.json", "tokenizer.json", "stamps.json"
LARGE = 1 << 25  # bytes of an array that is not read whole at every opening
BLOCK = 1 << 22


class Damaged(Exception):
    """The files are not those that were written; says in what."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What was written. meta: the counts and hashes of meta.json."""

    store: Store
    meta: dict[str, Any]
    vocabulary: Vocabulary


@dataclass(frozen=True, kw_only=True)
class ShardFile:
    """An array of a shard: where it lies, and what it has to be. n_vocab: one more than the largest id; None: any."""

    store: Store
    name: str
    n_values: int
    dtype: np.dtype[Any]
    sha256: str
    n_vocab: int | None

    @property
    def n_bytes(self) -> int:
        return self.n_values * self.dtype.itemsize

    def check(self, path: Path) -> None:
        """Damaged where a file has another size or sha256, or an id beyond the vocabulary."""
        size = check_is_file(path).st_size
        if size != self.n_bytes:
            raise Damaged(f"{self.name} has {size:,} bytes where {self.n_bytes:,} were written")
        digest, largest = hashlib.sha256(), -1
        with path.open("rb") as file:
            while block := file.read(BLOCK):
                digest.update(block)
                largest = max(largest, int(np.frombuffer(block, self.dtype).max()))
        if digest.hexdigest() != self.sha256 or (self.n_vocab is not None and largest >= self.n_vocab):
            raise Damaged(f"{self.name} has other bytes than were written")


@contextmanager
def checking() -> Iterator[None]:
    """Makes Damaged of whatever goes wrong inside with files that ought to be right."""
    try:
        yield
    except (Damaged, UserError):
        raise
    except Exception as error:  # OSError, a key or type that is not there, the plain Exception of tokenizers
        raise Damaged(one_line(error)) from error


def dtype_of_ids(n_vocab: int) -> np.dtype[Any]:
    """Two bytes an id as long as they suffice."""
    return np.dtype("uint16" if n_vocab <= 2**16 else "uint32")


def dtype_of(array: str, meta: dict[str, Any]) -> np.dtype[Any]:
    """Of train, held_out or held_out_bytes."""
    return dtype_of_ids(meta["n_vocab"]) if array in SPLITS else BYTES


def file_name(array: str, number: int) -> str:
    return f"{array}-{number:05d}.bin"


OF_A_SHARD = re.compile(rf"(({'|'.join(FILES)})-[0-9]{{5,}}\.bin|shard-[0-9]{{5,}}\.json)")


def record_name(number: int) -> str:
    """The file that says that a shard is whole."""
    return f"shard-{number:05d}.json"


def write_sealed(store: Store, name: str, values: dict[str, Any]) -> None:
    """Write json that holds its own hash."""
    store.write_text(name, json.dumps(values | {"sha256_of_this": fingerprint(**values)}, indent=1))


def read_sealed(store: Store, name: str) -> dict[str, Any]:
    """The values that `write_sealed` was given; Damaged where they are others, or not there."""
    with checking():
        values: dict[str, Any] = parse_json(store.read_text(name))
        if values.pop("sha256_of_this") != fingerprint(**values):
            raise Damaged(f"{name} was changed")
        return values


def read_vocabulary(store: Store, about: dict[str, Any]) -> Vocabulary:
    """The tokenizer that lies there, as begun.json or meta.json describes it; else Damaged."""
    with checking():
        text, end = store.read_text(TOKENIZER), about["end_of_document"]
        if hashlib.sha256(text.encode()).hexdigest() != about["tokenizer_hash"]:
            raise Damaged("tokenizer.json was changed")
        tokenizer = Tokenizer.from_str(text)
        if type(end) is not int:
            raise Damaged(f"end_of_document is {end!r}, no whole number")
        check_ids(tokenizer, end)
        reads = about.get("reads_special_tokens", False)
        vocabulary = open_vocabulary(tokenizer, end, reads_special_tokens=reads)
        if vocabulary.size != about["n_vocab"]:
            raise Damaged("tokenizer.json has another vocabulary")
        return vocabulary


def read_entry(store: Store) -> Entry:
    """A whole prepared corpus, checked; Damaged where anything in it is not as it was written, or is not there."""
    with checking():
        meta = read_sealed(store, META)
        entry = Entry(store=store, meta=meta, vocabulary=read_vocabulary(store, meta))
        counts = [shard[split][count] for shard in meta["shards"] for split in SPLITS for count in COUNTS]
        texts = [meta[name] for name in ("corpus_hash", "tokenizer", "tokenizer_content")]
        right = all(type(n) is int and n >= 0 for n in counts) and all(isinstance(text, str) for text in texts)
        if not right or summed(meta["shards"]) != {split: meta[split] for split in SPLITS}:
            raise Damaged("meta.json was changed")
        if isinstance(store, Folder):
            _check_arrays(store, [file for array in FILES for file in files_of(entry, array)])
        return entry


def summed(shards: Sequence[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """The counts of each split over all shards."""
    return {split: {count: sum(shard[split][count] for shard in shards) for count in COUNTS} for split in SPLITS}


def files_of(entry: Entry, array: str) -> list[ShardFile]:
    """The files of an array (train, held_out, held_out_bytes), shard after shard; those without a value left out."""
    found = [shard_file(entry.store, entry.meta, shard, n, array) for n, shard in enumerate(entry.meta["shards"])]
    return [file for file in found if file.n_values]


def shard_file(store: Store, meta: dict[str, Any], shard: dict[str, Any], number: int, array: str) -> ShardFile:
    """An array of a shard as its record describes it."""
    return ShardFile(
        store=store,
        name=file_name(array, number),
        n_values=shard[array.removesuffix("_bytes")]["tokens"],
        dtype=dtype_of(array, meta),
        sha256=shard["sha256"][array],
        n_vocab=meta["n_vocab"] if array in SPLITS else None,
    )


def _check_arrays(folder: Folder, files: list[ShardFile]) -> None:
    """Look at the arrays that may have changed since they were read last. Damaged where one has."""
    before: dict[str, list[int]] = {}
    with suppress(OSError, ValueError, TypeError, AttributeError, IndexError):
        *_, written, _inode = _stamp(folder.path / STAMPS)
        kept = parse_json(read_text(folder.path / STAMPS)).items()
        before = {name: stamp for name, stamp in kept if stamp[2] < written}  # coarse times may hide a change in others
    small = len(files) <= len(FILES)
    stamps = {file.name: _stamp(folder.path / file.name) for file in files}
    read_large = False
    for file in files:
        large = not small or file.n_bytes >= LARGE
        if stamps[file.name][0] != file.n_bytes:
            raise Damaged(f"{file.name} has {stamps[file.name][0]:,} bytes where {file.n_bytes:,} were written")
        if not large or before.get(file.name) != stamps[file.name]:
            file.check(folder.path / file.name)
            read_large |= large
    if read_large:  # the stamps were taken before the arrays were read: later ones could be those of other bytes
        with suppress(OSError):  # in a folder that cannot be written they are read at each opening
            for left in leftovers(folder.path, [STAMPS]):
                left.unlink()  # of a process that was killed here; another that writes just now gives up
            write_atomically(folder.path / STAMPS, json.dumps(stamps))


def _stamp(path: Path) -> list[int]:
    """What changes with any writing: size, both times in ns, inode. OSError where it is no file, such as a pipe."""
    found = check_is_file(path)
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]
