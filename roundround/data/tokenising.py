"""A corpus becomes a prepared one: shard after shard, in memory that does not grow with it, and once.

It goes to an entry of the token cache, a folder named by the hash of corpus and tokenizer, or wherever a user wants it.
Where shards begin and end depends on the corpus alone, so that a stopped preparation is resumed behind its whole
shards, and any number of processes writes the same bytes. A document's tokens are followed by the end-of-document
token.

Tested by tests/data/test_tokens.py and tests/data/test_shards.py.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

from roundround.data.corpora import Corpus, fingerprint, reading
from roundround.data.encoding import Document, Encoded, encoding, tokenizer_threads
from roundround.data.entry import (
    BEGUN,
    COUNTS,
    FILES,
    META,
    OF_A_SHARD,
    SPLITS,
    STAMPS,
    TOKENIZER,
    Damaged,
    Entry,
    checking,
    file_name,
    read_entry,
    read_sealed,
    read_vocabulary,
    record_name,
    shard_file,
    summed,
    write_sealed,
)
from roundround.data.store import MOVE, Folder, Store, claimed, writing
from roundround.data.tokenizers import TokenizerRecipe, Vocabulary, content_hash, content_identity
from roundround.support.errors import UserError
from roundround.support.files import TEMPORARY

log = logging.getLogger(__name__)

Item = TypeVar("Item")
FORMAT = 4  # of the files; raised with any change to them, so that old entries are not taken for new ones
BATCH_CHARACTERS = 1 << 18
SHARD_BYTES = 1 << 26  # UTF-8 bytes of text, in whole batches: a file of tokens is read in a fraction of a second
FIRST_SHARD_BYTES = 1 << 20  # the next ones have twice as much each: of a small corpus a kill loses little as well


def make(
    corpus: Corpus, recipe: TokenizerRecipe, to: Store | None, cache_dir: Path, *, n_processes: int | None = None
) -> Entry:
    """The corpus prepared in `to`, None: an entry of the cache. What is there already is not made again.

    Safe with many processes: one works, the others wait. n_processes: as `encoding` takes it. UserError where the
    corpus cannot be read or has no text, the disk is full, or something else lies in `to`.
    """
    with reading("the corpus"):
        corpus_hash = corpus.identity()
    name = fingerprint(format=FORMAT, corpus=corpus_hash, tokenizer=recipe.identity())[:32]
    store = to or Folder(cache_dir / name, disk=cache_dir, way_out=MOVE)

    def there(*, warn: bool) -> Entry | None:
        ready = _load(store, warn=warn)
        if to is not None:
            _refuse_others(to, ready, corpus_hash, recipe)
        return ready

    ready = there(warn=False)
    if ready is None:
        with claimed(store, cache_dir):  # perhaps after another process has prepared another corpus there
            ready = there(warn=True) or _build(corpus, corpus_hash, recipe, store, cache_dir, n_processes)
    return ready


def _load(store: Store, *, warn: bool = False) -> Entry | None:
    """A whole prepared corpus, or None where there is none or it is damaged, which `warn` reports in a line."""
    if META not in store.names() and not _is_no_folder(store):
        return None  # not there, or begun and not ended
    try:
        return read_entry(store)
    except Damaged as damage:
        if warn:
            log.warning("the tokens in %s are damaged (%s) and are made again", store.address, damage)
        return None


def _is_no_folder(store: Store) -> bool:
    """Whether something else lies where the folder is to be."""
    return isinstance(store, Folder) and os.path.lexists(store.path) and not os.path.isdir(store.path)


def _refuse_others(to: Store, ready: Entry | None, corpus_hash: str, recipe: TokenizerRecipe) -> None:
    """UserError where files of the user's, or another corpus, lie where this one is to be prepared."""
    if _is_no_folder(to):
        raise UserError(f"to={to.address} is no folder; {to.way_out}")
    names = [name for name in to.names() if name != ".lock"]
    is_begun = not {BEGUN, META}.isdisjoint(names) or all(map(is_unfinished, names))  # begun.json is the first of all
    folders = [name for name in names if isinstance(to, Folder) and (to.path / name).is_dir()]
    if not is_begun or folders or not all(map(is_ours, names)):
        raise UserError(f"to={to.address} holds other files; {to.way_out}, or an empty one")
    if not names:
        return
    with suppress(Damaged):
        begun = read_sealed(to, BEGUN) if ready is None else ready.meta
        if begun.get("corpus_hash") != corpus_hash or begun.get("tokenizer") != recipe.identity():
            raise UserError(f"to={to.address} holds another corpus, or this one in other tokens; {to.way_out}")


def _build(
    corpus: Corpus,
    corpus_hash: str,
    recipe: TokenizerRecipe,
    store: Store,
    cache_dir: Path,
    n_processes: int | None,
) -> Entry:
    """Tokenises what is not there yet; the store is claimed. Whole shards stay whatever stops it, and nothing else."""
    kept = "cached" if store.address.startswith(f"{cache_dir}") else "kept"
    log.info("tokenising the corpus once; %s in %s", kept, store.address)
    if isinstance(store, Folder) and _is_no_folder(store):
        store.path.unlink()  # a file where the entry was
    with writing(store.disk, store.way_out):
        try:
            meta = _write_corpus(corpus, corpus_hash, recipe, store, cache_dir, n_processes)
        except BaseException:
            with suppress(Exception):  # what the next preparation can resume from stays, where there is a whole shard
                names = store.names()
                some = any(name.startswith("shard-") for name in names)
                for name in names:
                    if is_ours(name) and (not some or is_unfinished(name)):
                        store.remove(name)
                if isinstance(store, Folder) and not some:
                    (store.path / ".lock").unlink(missing_ok=True)
                    store.path.rmdir()
            raise
    found = (f"{split} {', '.join(f'{meta[split][count]:,} {count}' for count in COUNTS)}" for split in SPLITS)
    log.info("tokenised: %s", "; ".join(found))
    ready = _load(store)
    if ready is None:
        raise UserError(f"the tokens just written in {store.address} read back otherwise; does the disk fail? {MOVE}")
    return ready


def is_ours(name: str) -> bool:
    """Whether a file of a store is one of a prepared corpus, or what a killed preparation left of one."""
    temporary = TEMPORARY.fullmatch(name)
    stem = temporary["name"] if temporary else name.removesuffix(".tmp")
    return stem in (BEGUN, META, TOKENIZER, STAMPS) or OF_A_SHARD.fullmatch(stem) is not None


def is_unfinished(name: str) -> bool:
    return name.endswith(".tmp") or TEMPORARY.fullmatch(name) is not None


def _write_corpus(
    corpus: Corpus, corpus_hash: str, recipe: TokenizerRecipe, store: Store, cache_dir: Path, n_processes: int | None
) -> dict[str, Any]:
    """Writes what is not there yet; returns what meta.json holds. UserError without text."""
    scratch = store.scratch(cache_dir)
    for name in store.names():
        if is_ours(name) and is_unfinished(name):
            store.remove(name)  # of a killed preparation
    begun, vocabulary = _begin(corpus, corpus_hash, recipe, store)
    whole: dict[int, dict[str, Any]] = {}

    def missing() -> Iterator[tuple[int, list[Document]]]:
        """The batches of shards that are not whole; the records of the others go to `whole`."""
        for number, batches in groupby(_batches(_read(corpus.documents())), key=itemgetter(0)):
            record = _record(store, begun, number)
            if record is None:
                yield from batches
            else:
                whole[number] = record

    with encoding(vocabulary, n_processes) as encode:
        for number, parts in groupby(encode(missing()), key=itemgetter(0)):
            whole[number] = _write_shard((part for _, part in parts), number, store, scratch)
    shards = [whole[number] for number in sorted(whole)]
    if not shards:
        raise UserError("the corpus holds no text: check data.path, data.column and what data.keep_chars leaves out")
    meta = begun | summed(shards) | {"shards": shards}
    write_sealed(store, META, meta)
    return meta


def _begin(
    corpus: Corpus, corpus_hash: str, recipe: TokenizerRecipe, store: Store
) -> tuple[dict[str, Any], Vocabulary]:
    """What begun.json holds, and the vocabulary: of an earlier beginning, or learnt now."""
    wanted = {"format": FORMAT, "corpus_hash": corpus_hash, "tokenizer": recipe.identity()}
    with suppress(Damaged), checking():
        begun = read_sealed(store, BEGUN)
        if wanted.items() <= begun.items():
            vocabulary = read_vocabulary(store, begun)
            for name in (META, STAMPS):
                store.remove(name)  # where the corpus was there and a shard of it is not
            return begun, vocabulary
    for name in store.names():
        if is_ours(name):
            store.remove(name)
    with tokenizer_threads(True):
        vocabulary = recipe.build(_read(corpus.training_texts()))
    begun = wanted | {
        "n_vocab": vocabulary.size,
        "end_of_document": vocabulary.end_of_document,
        "tokenizer_hash": content_hash(vocabulary.tokenizer),
        "tokenizer_content": content_identity(vocabulary),
        **({"reads_special_tokens": True} if vocabulary.reads_special_tokens else {}),
    }
    write_sealed(store, BEGUN, begun)  # first: by it a folder is known as ours
    store.write_text(TOKENIZER, vocabulary.tokenizer.to_str())
    return begun, vocabulary


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


def _record(store: Store, begun: dict[str, Any], number: int) -> dict[str, Any] | None:
    """The record of a shard where its files are as it says: read in a folder, their sizes at an address. Else None."""
    with suppress(Damaged), checking():
        record = read_sealed(store, record_name(number))
        for file in (shard_file(store, begun, record, number, array) for array in FILES):
            if file.n_values and isinstance(store, Folder):
                file.check(store.path / file.name)
            elif file.n_values and store.size(file.name) != file.n_bytes:
                return None
        return record
    return None


def _write_shard(parts: Iterable[Encoded], number: int, store: Store, scratch: Path) -> dict[str, Any]:
    """Writes the arrays of a shard and then its record, which it returns."""
    for name in (record_name(number), *(file_name(array, number) for array in FILES)):
        store.remove(name)  # of a damaged one
    with ExitStack() as stack:
        paths = {name: scratch / f"{file_name(name, number)}.tmp" for name in FILES}
        for path in paths.values():
            stack.callback(path.unlink, missing_ok=True)
        files = {name: stack.enter_context(path.open("wb")) for name, path in paths.items()}
        digests, counts = {name: hashlib.sha256() for name in FILES}, []
        for part in parts:
            for name, file in files.items():
                content = part.arrays[name].tobytes()
                file.write(content)
                digests[name].update(content)
            counts.append(part.counts)
        record: dict[str, Any] = {**summed(counts)}
        for name, file in files.items():
            file.flush()
            os.fsync(file.fileno())
            file.close()
            if record[name.removesuffix("_bytes")]["tokens"]:
                store.put(paths[name], file_name(name, number))
    record["sha256"] = {name: digest.hexdigest() for name, digest in digests.items()}
    write_sealed(store, record_name(number), record)
    return record
