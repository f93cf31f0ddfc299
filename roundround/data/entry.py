"""An entry of the token cache: its files, and how an opening finds out that they are what was written.

    train.bin  held_out.bin  held_out_bytes.bin  tokenizer.json  meta.json  stamps.json (where an array is large)

meta.json holds counts, the sha256 of the other files and one of itself, so that no edited number is taken. The types of
the arrays follow from the size of the vocabulary. Of the arrays, an opening reads those below 32 MiB whole (about a
GB/s), and a larger one where its size, times or inode differ from those that stamps.json has from its last reading, as
git does: 20 GB would otherwise take half a minute at each start. So other bytes are noticed at any size, whoever wrote
them; what a failing disk changes beneath the file system is noticed in arrays below 32 MiB alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roundround.data.corpora import fingerprint
from roundround.data.token_bytes import BYTES
from roundround.errors import one_line
from roundround.files import check_is_file, parse_json, read_text, write_atomically

SPLITS = ("train", "held_out")
FILES = (*SPLITS, "held_out_bytes")
LARGE = 1 << 25  # bytes of an array that is not read whole at every opening
BLOCK = 1 << 22


class Damaged(Exception):
    """The files are not those that were written; says in what."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What was written. meta: the counts and hashes of meta.json; arrays: by the names in FILES, mapped."""

    meta: dict[str, Any]
    tokenizer_json: str
    arrays: dict[str, NDArray[np.unsignedinteger[Any]]]


@contextmanager
def checking() -> Iterator[None]:
    """Makes Damaged of whatever goes wrong inside with files that ought to be right."""
    try:
        yield
    except Damaged:
        raise
    except Exception as error:  # OSError, a key or type that is not there, the plain Exception of tokenizers
        raise Damaged(one_line(error)) from error


def dtype_of_ids(n_vocab: int) -> np.dtype[Any]:
    """Two bytes an id as long as they suffice."""
    return np.dtype("uint16" if n_vocab <= 2**16 else "uint32")


def write_meta(folder: Path, meta: dict[str, Any]) -> None:
    """Writes meta.json of a folder that has its other files."""
    write_atomically(folder / "meta.json", json.dumps(meta | {"sha256_of_this": fingerprint(**meta)}, indent=1))
    _write_stamps(folder, _stamps(folder))


def read_entry(folder: Path) -> Entry:
    """The entry, checked; Damaged where anything in it is not as it was written, or is not there."""
    with checking():
        meta = parse_json(read_text(folder / "meta.json"))
        if meta.pop("sha256_of_this") != fingerprint(**meta):
            raise Damaged("meta.json was changed")
        tokenizer_json = read_text(folder / "tokenizer.json")
        if hashlib.sha256(tokenizer_json.encode()).hexdigest() != meta["tokenizer_hash"]:
            raise Damaged("tokenizer.json was changed")
        return Entry(meta=meta, tokenizer_json=tokenizer_json, arrays=_arrays(folder, meta))


def _arrays(folder: Path, meta: dict[str, Any]) -> dict[str, NDArray[Any]]:
    """The arrays, mapped, after a look at those that may have changed since they were read last."""
    before, arrays, large_ones_read = _read_stamps(folder), {}, False
    stamps = _stamps(folder)
    for name in FILES:
        path, dtype = folder / f"{name}.bin", BYTES if name == "held_out_bytes" else dtype_of_ids(meta["n_vocab"])
        n_tokens, n_bytes = meta[name.removesuffix("_bytes")]["tokens"], stamps[name][0]
        if n_bytes != n_tokens * dtype.itemsize:
            raise Damaged(f"{path.name} has {n_bytes:,} bytes")
        if n_bytes < LARGE or before.get(name) != stamps[name]:
            _check_contents(path, dtype, meta["sha256"][name], meta["n_vocab"] if name in SPLITS else None)
            large_ones_read |= n_bytes >= LARGE
        # an empty file cannot be mapped
        arrays[name] = np.memmap(path, dtype=dtype, mode="r") if n_tokens else np.empty(0, dtype)
    if large_ones_read:
        _write_stamps(folder, stamps)
    return arrays


def _check_contents(path: Path, dtype: np.dtype[Any], sha256: str, n_vocab: int | None) -> None:
    """Damaged where a file has another sha256, or an id beyond a vocabulary."""
    digest, largest = hashlib.sha256(), -1
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
            largest = max(largest, int(np.frombuffer(block, dtype).max()))
    if digest.hexdigest() != sha256 or (n_vocab is not None and largest >= n_vocab):
        raise Damaged(f"{path.name} has other bytes than were written")


def _stamp(path: Path) -> list[int]:
    """What changes with any writing: size, both times in ns, inode. OSError where it is no file, such as a pipe."""
    found = check_is_file(path)
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]


def _stamps(folder: Path) -> dict[str, list[int]]:
    """The stamps of the arrays. OSError where one is no file."""
    return {name: _stamp(folder / f"{name}.bin") for name in FILES}


def _write_stamps(folder: Path, stamps: dict[str, list[int]]) -> None:
    """Remembers large arrays as read; in a cache that cannot be written they are read at each opening.

    The stamps were taken before the arrays were read: later ones could be those of other bytes.
    """
    large = {name: stamp for name, stamp in stamps.items() if stamp[0] >= LARGE}
    if large:
        with suppress(OSError):
            write_atomically(folder / "stamps.json", json.dumps(large))


def _read_stamps(folder: Path) -> dict[str, list[int]]:
    """The stamps that are older than the file they stand in: where times are coarse, others may hide a change."""
    try:
        stamps = parse_json(read_text(folder / "stamps.json"))
        *_, written, _inode = _stamp(folder / "stamps.json")
        return {name: stamp for name, stamp in stamps.items() if stamp[2] < written}
    except (OSError, ValueError, TypeError, AttributeError, IndexError):
        return {}
