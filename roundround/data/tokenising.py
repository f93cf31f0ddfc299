"""A corpus on its way to a place: shard after shard, in memory that does not grow with it.

Where shards begin and end depends on the corpus alone, so that a preparation that was stopped goes on behind its whole
shards, and any number of processes writes the same bytes.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

from numpy.typing import NDArray

from roundround.data.corpora import Corpus, reading
from roundround.data.encoding import Document, Encoded, encoding, tokenizer_threads
from roundround.data.entry import (
    BEGUN,
    COUNTS,
    FILES,
    META,
    SPLITS,
    STAMPS,
    TOKENIZER,
    Damaged,
    checking,
    file_name,
    is_whole,
    read_sealed,
    read_vocabulary,
    record_name,
    write_sealed,
)
from roundround.data.places import Place
from roundround.data.tokenizers import TokenizerRecipe
from roundround.data.vocabulary import Vocabulary, content_hash, content_identity
from roundround.support.errors import UserError
from roundround.support.files import TEMPORARY

Item = TypeVar("Item")
BATCH_CHARACTERS = 1 << 18
SHARD_BYTES = 1 << 26  # UTF-8 bytes of text, in whole batches: a file of tokens is read in a fraction of a second
FIRST_SHARD_BYTES = 1 << 20  # the next ones have twice as much each: of a small corpus a kill loses little as well


def write_corpus(
    corpus: Corpus,
    corpus_hash: str,
    recipe: TokenizerRecipe,
    place: Place,
    cache_dir: Path,
    *,
    format: int,
    n_processes: int | None,
) -> dict[str, Any]:
    """Writes what is not there yet; returns what meta.json holds. The place is claimed. UserError without text.

    Whatever stops it, whole shards stay, and of the others nothing.
    """
    scratch = place.scratch(cache_dir)
    for name in place.names():
        if is_ours(name) and is_unfinished(name):
            place.remove(name)  # of a killed preparation
    begun, vocabulary = _begin(corpus, corpus_hash, recipe, place, format)
    whole: dict[int, dict[str, Any]] = {}

    def missing(numbered: Iterable[tuple[int, list[Document]]]) -> Iterator[tuple[int, list[Document]]]:
        """The batches of shards that are not whole; `whole` is filled."""
        for number, batches in groupby(numbered, key=lambda item: item[0]):
            record = _record(place, begun, number)
            if record is None:
                yield from batches
            else:
                whole[number] = record
                for _ in batches:
                    pass

    numbers: list[int] = []  # of the batches that are on their way

    def batches() -> Iterator[list[Document]]:
        for number, batch in missing(_batches(_read(corpus.documents()))):
            numbers.append(number)
            yield batch

    with encoding(vocabulary, n_processes) as encode:
        encoded = ((numbers.pop(0), arrays) for arrays in encode(batches()))
        for number, parts in groupby(encoded, key=lambda item: item[0]):
            whole[number] = _write_shard((arrays for _, arrays in parts), number, place, scratch)
    meta = begun | _counted([whole[number] for number in sorted(whole)])
    if not whole:
        raise UserError("the corpus holds no text: check data.path or data.column")
    write_sealed(place, META, meta)
    return meta


def _begin(
    corpus: Corpus, corpus_hash: str, recipe: TokenizerRecipe, place: Place, format: int
) -> tuple[dict[str, Any], Vocabulary]:
    """What begun.json holds, and the vocabulary: of an earlier beginning, or learnt now."""
    wanted = {"format": format, "corpus_hash": corpus_hash, "tokenizer": recipe.identity()}
    with suppress(Damaged), checking():
        begun = read_sealed(place, BEGUN)
        if wanted.items() <= begun.items():
            vocabulary = read_vocabulary(place, begun)
            for name in (META, STAMPS):
                place.remove(name)  # where the corpus was there and a shard of it is not
            return begun, vocabulary
    for name in place.names():
        if is_ours(name):
            place.remove(name)
    with tokenizer_threads(True):
        vocabulary = recipe.build(_read(corpus.training_texts()))
    begun = wanted | {
        "n_vocab": vocabulary.size,
        "end_of_document": vocabulary.end_of_document,
        "tokenizer_hash": content_hash(vocabulary.tokenizer),
        "tokenizer_content": content_identity(vocabulary),
        **({"reads_special_tokens": True} if vocabulary.reads_special_tokens else {}),
    }
    place.write_text(TOKENIZER, vocabulary.tokenizer.to_str())
    write_sealed(place, BEGUN, begun)
    return begun, vocabulary


def is_ours(name: str) -> bool:
    """Whether a file of a place is one of a prepared corpus, or what a killed preparation left of one."""
    temporary = TEMPORARY.fullmatch(name)
    stem = temporary["name"] if temporary else name.removesuffix(".tmp")
    numbered = tuple(f"{array}-" for array in (*FILES, "shard"))
    return stem in (BEGUN, META, TOKENIZER, STAMPS) or stem.startswith(numbered)


def is_unfinished(name: str) -> bool:
    return name.endswith(".tmp") or TEMPORARY.fullmatch(name) is not None


def _record(place: Place, begun: dict[str, Any], number: int) -> dict[str, Any] | None:
    """The record of a shard that is whole."""
    try:
        record = read_sealed(place, record_name(number))
    except Damaged:
        return None
    return record if is_whole(place, begun, record, number) else None


def _write_shard(parts: Iterable[Encoded], number: int, place: Place, scratch: Path) -> dict[str, Any]:
    """Writes the arrays of a shard and then its record, which it returns."""
    record: dict[str, Any] = {split: dict.fromkeys(COUNTS, 0) for split in SPLITS}
    for name in (record_name(number), *(file_name(array, number) for array in FILES)):
        place.remove(name)  # of a damaged one
    with ExitStack() as files:
        arrays = {name: files.enter_context(_Array(scratch / f"{file_name(name, number)}.tmp")) for name in FILES}
        for part in parts:
            for name, array in arrays.items():
                array.add(part.arrays[name])
            for split in SPLITS:
                for count in COUNTS:
                    record[split][count] += part.counts[split][count]
        for name, array in arrays.items():
            array.close()
            if record[name.removesuffix("_bytes")]["tokens"]:
                place.put(array.path, file_name(name, number))
    record["sha256"] = {name: array.digest.hexdigest() for name, array in arrays.items()}
    write_sealed(place, record_name(number), record)
    return record


def _counted(shards: list[dict[str, Any]]) -> dict[str, Any]:
    """The shards, and the sums of their counts."""
    sums = {split: {count: sum(shard[split][count] for shard in shards) for count in COUNTS} for split in SPLITS}
    return sums | {"shards": shards}


class _Array:
    """An array on its way to the disk, piece by piece, hashed; its temporary file is gone when the block is left."""

    def __init__(self, path: Path) -> None:
        self.path, self.file, self.digest = path, path.open("wb"), hashlib.sha256()

    def add(self, values: NDArray[Any]) -> None:
        content = values.tobytes()
        self.file.write(content)
        self.digest.update(content)

    def close(self) -> None:
        """Flush it to the disk."""
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()

    def __enter__(self) -> _Array:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # what was not written before a disk was full
            self.file.close()
        self.path.unlink(missing_ok=True)


def _read(documents: Iterable[Item]) -> Iterator[Item]:
    """The same; UserError where a file of the corpus cannot be read, so that it is not taken for one of the cache."""
    with reading("the corpus"):
        yield from documents


def _batches(documents: Iterable[Document]) -> Iterator[tuple[int, list[Document]]]:
    """(number of the shard, documents) of each batch. A batch lies in one shard."""
    batch: list[Document] = []
    number = n_characters = n_bytes = 0
    for document in documents:
        batch.append(document)
        n_characters += len(document[1])
        if n_characters >= BATCH_CHARACTERS:
            yield number, batch
            n_bytes += sum(len(text.encode()) for _, text in batch)
            if n_bytes >= min(SHARD_BYTES, FIRST_SHARD_BYTES << number):
                number, n_bytes = number + 1, 0
            batch, n_characters = [], 0
    if batch:
        yield number, batch
