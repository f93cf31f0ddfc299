"""Tokenises a corpus into shards. One process or several can do it; the memory does not grow with the corpus.

    begun.json  tokenizer.json  train-00000.bin  held_out-00000.bin  held_out_bytes-00000.bin  shard-00000.json  ...
    meta.json

A shard is a stretch of the corpus, in three arrays: the tokens of its training documents, the tokens of its held-out
documents, and the number of bytes of text of each held-out token. An empty array has no file. shard-NNNNN.json is
written after the arrays of a shard, and meta.json last of all. Only the corpus determines where shards begin and end.
So a stopped preparation resumes after its complete shards, and the files do not depend on the number of processes.

Tested by tests/data/test_tokens.py, test_shards.py and test_tokenizers.py.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import groupby
from multiprocessing import get_context, parent_process
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray
from tokenizers import Tokenizer

from roundround.data.corpora import MORE_SPACE, Corpus, fingerprint, reading
from roundround.data.shards import ShardFile, Store
from roundround.data.tokenizers import (
    Bytes,
    TokenizerRecipe,
    Vocabulary,
    content_hash,
    content_identity,
    open_vocabulary,
)
from roundround.distributed.interruption import interrupts_blocked
from roundround.support.errors import UserError, one_line
from roundround.support.files import leftovers

log = logging.getLogger(__name__)

Document = tuple[bool, str]  # is held out, text
Numbered = tuple[int, list[Document]]  # (the number of a shard, a batch of its documents)
Ids = NDArray[np.unsignedinteger[Any]]
Encoded = tuple[dict[str, NDArray[Any]], dict[str, dict[str, int]]]  # (arrays by names in FILES, COUNTS by split)

FORMAT = 4  # of the files; raised with any change, so that older entries are not read as new ones
BATCH_CHARACTERS = 1 << 18
SHARD_BYTES = 1 << 26  # UTF-8 bytes of text, in whole batches: a file of tokens is read in a fraction of a second
FIRST_SHARD_BYTES = 1 << 20  # each next shard has twice as much; so a kill loses little, even of a small corpus
SPLITS = ("train", "held_out")
FILES = (*SPLITS, "held_out_bytes")
COUNTS = ("documents", "tokens", "bytes")
BYTES = np.dtype("uint32")  # for the bytes of a token's text, which can be many for an unknown word
BEGUN, META, TOKENIZER = "begun.json", "meta.json", "tokenizer.json"
RECORD = "shard-{:05d}.json"  # its presence means that the shard is complete


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A complete prepared corpus. store: the corpus's folder or address. meta: the content of its meta.json."""

    store: Store
    meta: dict[str, Any]
    vocabulary: Vocabulary


def dtype_of_ids(n_vocab: int) -> np.dtype[Any]:
    """uint16 if it can hold every id, else uint32."""
    return np.dtype("uint16" if n_vocab <= 2**16 else "uint32")


def shard_files(
    store: Store, about: dict[str, Any], number: int, record: dict[str, Any], arrays: Sequence[str] = FILES
) -> list[ShardFile]:
    """The files of a shard. about: the content of begun.json or meta.json. record: the content of shard-NNNNN.json."""
    return [
        ShardFile(
            store=store,
            name=f"{array}-{number:05d}.bin",
            n_values=record[array.removesuffix("_bytes")]["tokens"],
            dtype=dtype_of_ids(about["n_vocab"]) if array in SPLITS else BYTES,
            sha256=record["sha256"][array],
        )
        for array in arrays
        if record[array.removesuffix("_bytes")]["tokens"]
    ]


def read_entry(store: Store) -> Entry:
    """The prepared corpus in the store. Raises UserError if it is incomplete."""
    try:
        meta = json.loads(store.read_text(META))
        sizes = {} if store.path is None else store.sizes()  # files from an address are checked after the download
        for number, record in enumerate(meta["shards"]):
            for file in shard_files(store, meta, number, record):
                if store.path is not None and sizes.get(file.name) != file.n_bytes:
                    raise ValueError(f"{file.name} does not have the {file.n_bytes:,} bytes that were written")
        return Entry(store=store, meta=meta, vocabulary=_read_vocabulary(store, meta))
    except UserError:
        raise
    except Exception as error:  # OSError, a key or type that is not there, the plain Exception of tokenizers
        raise UserError(
            f"{store.address} is not a complete prepared corpus ({one_line(error)}); to make the corpus, or to repair "
            f"damaged shards of it, type roundround prepare data=... to={store.address}"
        ) from error


def _read_vocabulary(store: Store, about: dict[str, Any]) -> Vocabulary:
    """The vocabulary of the tokenizer in the store. about: the content of begun.json or meta.json."""
    tokenizer, reads = Tokenizer.from_str(store.read_text(TOKENIZER)), about.get("reads_special_tokens", False)
    return open_vocabulary(tokenizer, about["end_of_document"], reads_special_tokens=reads)


def make(
    corpus: Corpus, recipe: TokenizerRecipe, to: Store | None, cache_dir: Path, *, n_processes: int | None = None
) -> Entry:
    """Prepares the corpus in `to` (None: an entry of the cache), unless it is there already.

    Many processes may call this at once: one does the work, the others wait. n_processes: as for `encoding`. Raises
    UserError if the corpus cannot be read or has no text, if the disk is full, or if `to` has other content.
    """
    with reading("the corpus"):
        wanted = {"format": FORMAT, "corpus_hash": corpus.identity(), "tokenizer": recipe.identity()}
    name = fingerprint(format=FORMAT, corpus=wanted["corpus_hash"], tokenizer=wanted["tokenizer"])[:32]
    store = to or Store(cache_dir / name)

    def whole() -> Entry | None:
        names = [name for name in store.sizes() if not name.startswith(".")]
        about = json.loads(store.read_text(BEGUN)) if BEGUN in names else {}
        if names and not wanted.items() <= about.items():
            raise UserError(f"to={store.address} holds other files, or another corpus; give another to=DIR")
        with suppress(UserError):
            return read_entry(store)
        return None

    entry = whole()
    if entry is None:
        in_cache = cache_dir / f"{fingerprint(address=store.address)[:32]}.lock"
        path = in_cache if store.path is None else store.path / ".lock"
        with reading(path.parent, MORE_SPACE, done="written"):
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = FileLock(path).acquire()  # the system releases it when the process ends
        with lock:  # while this process waited, another may have prepared the corpus
            entry = whole() or _build(corpus, wanted, recipe, store, cache_dir, n_processes)
    return entry


def _build(
    corpus: Corpus,
    wanted: dict[str, Any],
    recipe: TokenizerRecipe,
    store: Store,
    cache_dir: Path,
    n_processes: int | None,
) -> Entry:
    """Tokenises missing and incomplete shards; returns the prepared corpus. Complete shards stay after a stop."""
    for path in leftovers(store.path, ["*.json"]) if store.path is not None else []:
        path.unlink()
    sizes = store.sizes()
    log.info("tokenising the corpus once; the tokens are kept in %s", store.address)
    whole: dict[int, dict[str, Any]] = {}
    with reading(store.address, MORE_SPACE, done="written"), store.scratch(cache_dir) as scratch:
        about, vocabulary = _begin(corpus, wanted, recipe, store)

        def missing() -> Iterator[Numbered]:
            """The batches of all incomplete shards; puts the records of complete shards into the dict `whole`."""
            for number, batches in groupby(_batches(corpus.documents()), key=itemgetter(0)):
                if RECORD.format(number) in sizes:
                    record = json.loads(store.read_text(RECORD.format(number)))
                    files = shard_files(store, about, number, record)
                    if all(sizes.get(file.name) == file.n_bytes for file in files):
                        whole[number] = record
                        continue
                yield from batches

        with encoding(vocabulary, n_processes) as encode:
            for number, parts in groupby(encode(missing()), key=itemgetter(0)):
                whole[number] = _write_shard((part for _, part in parts), number, store, scratch)
        if not whole:
            raise UserError("the corpus has no text: check data.path, data.column and what data.keep_chars leaves out")
        shards = [whole[number] for number in sorted(whole)]
        meta = about | _summed(shards) | {"shards": shards}
        store.write_text(META, json.dumps(meta, indent=1))
    found = (f"{split} {', '.join(f'{meta[split][count]:,} {count}' for count in COUNTS)}" for split in SPLITS)
    log.info("tokenised: %s", "; ".join(found))
    return read_entry(store)


def _begin(
    corpus: Corpus, wanted: dict[str, Any], recipe: TokenizerRecipe, store: Store
) -> tuple[dict[str, Any], Vocabulary]:
    """(the content of begun.json, the vocabulary): both are read from a stopped preparation, or both are made now."""
    with suppress(Exception):  # not there, or damaged
        about = json.loads(store.read_text(BEGUN))
        if wanted.items() <= about.items():
            return about, _read_vocabulary(store, about)
    vocabulary = recipe.build(corpus.training_texts())
    about = wanted | {
        "n_vocab": vocabulary.size,
        "end_of_document": vocabulary.end_of_document,
        "tokenizer_hash": content_hash(vocabulary.tokenizer),
        "tokenizer_content": content_identity(vocabulary),
        **({"reads_special_tokens": True} if vocabulary.reads_special_tokens else {}),
    }
    store.write_text(BEGUN, json.dumps(about, indent=1))  # first, because it marks the folder as a prepared corpus
    store.write_text(TOKENIZER, vocabulary.tokenizer.to_str())
    return about, vocabulary


def _batches(documents: Iterable[Document]) -> Iterator[Numbered]:
    """(number of the shard, documents) of each batch of documents. A batch belongs to one shard."""
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


def _summed(shards: Sequence[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """The counts of each split, summed over all shards."""
    return {split: {count: sum(shard[split][count] for shard in shards) for count in COUNTS} for split in SPLITS}


def _write_shard(parts: Iterable[Encoded], number: int, store: Store, scratch: Path) -> dict[str, Any]:
    """Writes the arrays of a shard, then its record. Returns the record."""
    digests, counts = {name: hashlib.sha256() for name in FILES}, []
    paths = {name: scratch / f"{name}-{number:05d}.bin.tmp" for name in FILES}
    with ExitStack() as stack:
        files = {name: stack.enter_context(path.open("wb")) for name, path in paths.items()}
        for arrays, counted in parts:
            for name, file in files.items():
                content = arrays[name].tobytes()
                file.write(content)
                digests[name].update(content)
            counts.append(counted)
        for file in files.values():
            file.flush()
            os.fsync(file.fileno())
    record: dict[str, Any] = _summed(counts)
    for path in paths.values():
        if path.stat().st_size:
            store.put(path, path.stem)
        path.unlink(missing_ok=True)
    record["sha256"] = {name: digest.hexdigest() for name, digest in digests.items()}
    store.write_text(RECORD.format(number), json.dumps(record, indent=1))
    return record


class Encoder:
    """Turns documents into arrays of ids. The ids of each document are followed by the id that ends a document."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.tokenizer, self.end = vocabulary.tokenizer, vocabulary.end_of_document
        self.dtype = dtype_of_ids(vocabulary.size)
        same = self.tokenizer.to_str() == Bytes().build([]).tokenizer.to_str()
        self.of_bytes = same and not vocabulary.reads_special_tokens

    def __call__(self, documents: Sequence[Document]) -> Encoded:
        train = [text for is_held_out, text in documents if not is_held_out]
        held_out = [text for is_held_out, text in documents if is_held_out]
        if self.of_bytes:
            ids: list[Any] = list(self._ids(held_out))
            parts = [_bytes_of_bytes(values) for values in ids]
        else:
            encodings = self.tokenizer.encode_batch(held_out, add_special_tokens=False)
            ids = [encoding.ids for encoding in encodings]
            parts = [bytes_of_tokens(text, found.offsets) for text, found in zip(held_out, encodings, strict=True)]
        arrays = {
            "train": self._joined(self._ids(train)),
            "held_out": self._joined(ids),
            "held_out_bytes": np.concatenate([np.empty(0, BYTES), *parts]),
        }
        counts = {
            split: {
                "documents": len(texts),
                "tokens": len(arrays[split]),
                "bytes": sum(len(text.encode()) for text in texts),
            }
            for split, texts in zip(SPLITS, (train, held_out), strict=True)
        }
        return arrays, counts

    def _ids(self, texts: list[str]) -> Iterator[Sequence[int] | NDArray[np.uint8]]:
        if self.of_bytes:  # a byte is its own id: this is a hundred times as fast
            return (np.frombuffer(text.encode(), np.uint8) for text in texts)
        return (encoding.ids for encoding in self.tokenizer.encode_batch_fast(texts, add_special_tokens=False))

    def _joined(self, documents: Iterable[Sequence[int] | NDArray[Any]]) -> Ids:
        end = np.asarray([self.end], self.dtype)
        parts = [part for ids in documents for part in (np.asarray(ids, self.dtype), end)]
        return np.concatenate([np.empty(0, self.dtype), *parts])


def bytes_of_tokens(text: str, offsets: Sequence[tuple[int, int]]) -> NDArray[np.uint32]:
    """The number of UTF-8 bytes of each token's text, then 0 for the end of the document: [n_tokens + 1].

    offsets: (first, last + 1) character of each token, as `tokenizers` gives them. Characters without a token, such as
    a dropped space, count for the next token, or, at the end of the text, for the last one. If tokens share a
    character, all its bytes count for the first of these tokens.
    """
    codes = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    up_to = np.concatenate([[0], np.cumsum(1 + (codes > 0x7F) + (codes > 0x7FF) + (codes > 0xFFFF))])
    reached = np.maximum.accumulate(up_to[[last for _, last in offsets]]) if offsets else np.empty(0, up_to.dtype)
    reached[-1:] = up_to[-1]
    return np.append(np.diff(reached, prepend=0), 0).astype(BYTES)


def _bytes_of_bytes(values: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """`bytes_of_tokens` for tokens that are single bytes: all bytes of a character count for its first byte."""
    begins = np.flatnonzero((values & 0xC0) != 0x80)
    found = np.zeros(len(values) + 1, BYTES)
    found[begins] = np.diff(begins, append=len(values))
    return found


@contextmanager
def encoding(
    vocabulary: Vocabulary, n_processes: int | None
) -> Iterator[Callable[[Iterable[Numbered]], Iterator[tuple[int, Encoded]]]]:
    """A function that encodes numbered batches and keeps their order.

    n_processes: the number of processes to start, with one thread each; with 1, this process does the work. With None,
    this process does the work in the tokenizer's own threads. The threads are disabled after the block, because the
    tokenizer would print a warning if the process forked later.
    """
    if n_processes is not None:
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if n_processes is None or n_processes == 1:
        encoder = Encoder(vocabulary)
        yield lambda batches: ((number, encoder(batch)) for number, batch in batches)
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        return
    start = (vocabulary.tokenizer.to_str(), vocabulary.end_of_document, vocabulary.reads_special_tokens)
    pool = ProcessPoolExecutor(n_processes, get_context("spawn"), initializer=_start, initargs=start)
    try:
        with interrupts_blocked():  # Ctrl-C reaches all processes of a terminal, but only this one shall handle it
            pool.submit(os.getpid)
        yield lambda batches: _in_order(pool, batches, 2 * n_processes)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _in_order(pool: ProcessPoolExecutor, batches: Iterable[Numbered], most: int) -> Iterator[tuple[int, Encoded]]:
    """The encoded batches, in order. At most `most` batches wait at a time, so memory does not grow with the corpus."""
    waiting: deque[tuple[int, Future[Encoded]]] = deque()
    for number, batch in batches:
        waiting.append((number, pool.submit(_encode, batch)))
        if len(waiting) > most:
            first, found = waiting.popleft()
            yield first, found.result()
    for number, found in waiting:
        yield number, found.result()


_encoder: list[Encoder] = []  # has one item in a process that `encoding` started


def _start(tokenizer_json: str, end_of_document: int, reads_special_tokens: bool) -> None:
    """Sets up a worker process of `encoding`. The worker exits as soon as the process that started it has ended."""
    threading.Thread(target=_end_with_the_first, daemon=True).start()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    tokenizer = Tokenizer.from_str(tokenizer_json)
    _encoder.append(Encoder(open_vocabulary(tokenizer, end_of_document, reads_special_tokens=reads_special_tokens)))


def _end_with_the_first() -> None:
    if (first := parent_process()) is not None:
        first.join()
        os._exit(1)


def _encode(batch: list[Document]) -> Encoded:
    return _encoder[0](batch)
