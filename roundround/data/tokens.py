"""Token files: a corpus is tokenised once, into a cache from which every later run maps its tokens.

    <cache>/<hash of corpus and tokenizer>/train.bin  held_out.bin  tokenizer.json  meta.json

A document's tokens are followed by the end-of-document token. An entry appears whole, by a rename, or not at all.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from roundround.data.corpora import Corpus, fingerprint
from roundround.data.disk import claimed, writing
from roundround.data.tokenizers import TokenizerRecipe, Vocabulary, content_hash, open_vocabulary
from roundround.errors import UserError
from roundround.files import flush_folder, folder_in_one_step, write_atomically

log = logging.getLogger(__name__)

FORMAT = 1  # of the files; raised with any change to them, so that old entries are not taken for new ones
BATCH_CHARACTERS = 1 << 20
SPLITS = ("train", "held_out")


@dataclass(frozen=True, eq=False, kw_only=True)
class TokenData:
    """A tokenised corpus, mapped from its files.

    train, held_out: [n_tokens], uint16 where the vocabulary fits, else uint32.
    n_vocab: one more than the largest id. corpus_hash: `Corpus.identity`. tokenizer_hash: sha256 of tokenizer.json.
    held_out_bytes_per_token: UTF-8 bytes of the held-out texts over held-out tokens, ends of documents counted, so that
    bits per byte = nats per token / log(2) / held_out_bytes_per_token.
    """

    train: NDArray[np.unsignedinteger[Any]]
    held_out: NDArray[np.unsignedinteger[Any]]
    n_vocab: int
    end_of_document: int
    tokenizer: Tokenizer
    corpus_hash: str
    tokenizer_hash: str
    held_out_bytes_per_token: float


def default_cache_dir() -> Path:
    """$ROUNDROUND_CACHE, or roundround/ in $XDG_CACHE_HOME, or else in ~/.cache."""
    own, shared = os.environ.get("ROUNDROUND_CACHE"), os.environ.get("XDG_CACHE_HOME")
    if own:
        return Path(own).expanduser()
    return (Path(shared) if shared else Path.home() / ".cache") / "roundround"


def prepare(corpus: Corpus, tokenizer: TokenizerRecipe, cache_dir: Path) -> TokenData:
    """The corpus in tokens, from the cache or tokenised now. Safe with many processes: one works, the others wait.

    UserError where the corpus cannot be read, has too few documents to hold some out, or the disk is full.
    """
    corpus_hash = corpus.identity()
    entry = cache_dir / fingerprint(format=FORMAT, corpus=corpus_hash, tokenizer=tokenizer.identity())[:32]
    ready = load(entry)
    if ready is None:
        with claimed(entry):
            ready = load(entry) or _build(corpus, corpus_hash, tokenizer, entry)
    return ready


def load(entry: Path) -> TokenData | None:
    """The entry of the cache, or None where there is none or it is damaged."""
    try:
        meta = json.loads((entry / "meta.json").read_text())
        tokenizer_json = (entry / "tokenizer.json").read_text(encoding="utf-8")
        damaged = hashlib.sha256(tokenizer_json.encode()).hexdigest() != meta["tokenizer_hash"]
        for split in SPLITS:
            n_bytes = meta[split]["tokens"] * np.dtype(meta["dtype"]).itemsize
            damaged |= (entry / f"{split}.bin").stat().st_size != n_bytes
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, KeyError, TypeError):
        damaged = True
    if damaged:
        log.warning("the tokens in %s are damaged and are made again", entry)
        return None
    return _mapped(entry, meta, open_vocabulary(Tokenizer.from_str(tokenizer_json), meta["end_of_document"]))


def _mapped(entry: Path, meta: Mapping[str, Any], vocabulary: Vocabulary) -> TokenData:
    return TokenData(
        train=np.memmap(entry / "train.bin", dtype=meta["dtype"], mode="r"),
        held_out=np.memmap(entry / "held_out.bin", dtype=meta["dtype"], mode="r"),
        n_vocab=meta["n_vocab"],
        end_of_document=vocabulary.end_of_document,
        tokenizer=vocabulary.tokenizer,
        corpus_hash=meta["corpus_hash"],
        tokenizer_hash=meta["tokenizer_hash"],
        held_out_bytes_per_token=meta["held_out"]["bytes"] / meta["held_out"]["tokens"],
    )


def _build(corpus: Corpus, corpus_hash: str, recipe: TokenizerRecipe, entry: Path) -> TokenData:
    """Tokenises into a temporary folder beside the entry, then renames it. The lock is held."""
    log.info("tokenising the corpus once; cached in %s", entry)
    temporary = entry.with_suffix(".tmp")
    with writing(entry.parent):
        with folder_in_one_step(entry, temporary), _threads():
            meta = _write(corpus, recipe, temporary) | {"corpus_hash": corpus_hash, "format": FORMAT}
            write_atomically(temporary / "meta.json", json.dumps(meta, indent=1))
            shutil.rmtree(entry, ignore_errors=True)  # a damaged one
        flush_folder(entry.parent)
    log.info("tokenised: %s", "; ".join(_summary(split, meta[split]) for split in SPLITS))
    ready = load(entry)
    assert ready is not None, f"{entry} was just written"
    return ready


def _write(corpus: Corpus, recipe: TokenizerRecipe, folder: Path) -> dict[str, Any]:
    """Writes tokenizer and tokens; returns what meta.json says of them. UserError where a split got no document."""
    vocabulary = recipe.build(corpus.training_texts())
    dtype = np.dtype("uint16" if vocabulary.size <= 2**16 else "uint32")
    write_atomically(folder / "tokenizer.json", vocabulary.tokenizer.to_str())
    train, held_out = (_TokenFile(folder / f"{split}.bin", dtype) for split in SPLITS)
    try:
        for batch in _batches(corpus.documents()):
            texts = [text for _, text in batch]
            encodings = vocabulary.tokenizer.encode_batch_fast(texts, add_special_tokens=False)
            for (is_held_out, text), encoding in zip(batch, encodings, strict=True):
                file = held_out if is_held_out else train
                file.add([*encoding.ids, vocabulary.end_of_document], len(text.encode()))
    finally:
        train.close()
        held_out.close()
    _require_both(train, held_out, corpus.held_out)
    sizes = {"dtype": dtype.name, "n_vocab": vocabulary.size, "end_of_document": vocabulary.end_of_document}
    hashes = {"tokenizer_hash": content_hash(vocabulary.tokenizer)}
    return {"train": train.counts, "held_out": held_out.counts, **sizes, **hashes}


class _TokenFile:
    """One split's tokens on their way to the disk, counted."""

    def __init__(self, path: Path, dtype: np.dtype[Any]) -> None:
        self.dtype = dtype
        self.file = path.open("wb")
        self.counts = {"documents": 0, "tokens": 0, "bytes": 0}

    def add(self, ids: list[int], n_bytes: int) -> None:
        """One document's ids and the UTF-8 bytes of its text."""
        self.file.write(np.asarray(ids, dtype=self.dtype).tobytes())
        for name, n in ("documents", 1), ("tokens", len(ids)), ("bytes", n_bytes):
            self.counts[name] += n

    def close(self) -> None:
        """On the disk when it returns."""
        with self.file:
            self.file.flush()
            os.fsync(self.file.fileno())


def _require_both(train: _TokenFile, held_out: _TokenFile, fraction: float) -> None:
    n_train, n_held_out = train.counts["documents"], held_out.counts["documents"]
    if n_train + n_held_out == 0:
        raise UserError("the corpus holds no text: check data.path or data.column")
    if n_train == 0 or n_held_out == 0:
        empty = "train on" if n_train == 0 else "hold out"
        raise UserError(
            f"the corpus has {n_train + n_held_out} documents and none to {empty} at data.held_out={fraction}; change "
            f"that fraction, or cut the text into more documents (data=text: data.split_regex)"
        )


def _batches(documents: Iterable[tuple[bool, str]]) -> Iterator[list[tuple[bool, str]]]:
    batch: list[tuple[bool, str]] = []
    n_characters = 0
    for document in documents:
        batch.append(document)
        n_characters += len(document[1])
        if n_characters >= BATCH_CHARACTERS:
            yield batch
            batch, n_characters = [], 0
    if batch:
        yield batch


def _summary(split: str, counts: Mapping[str, int]) -> str:
    return f"{split} {counts['documents']:,} documents, {counts['tokens']:,} tokens, {counts['bytes']:,} bytes"


@contextmanager
def _threads() -> Iterator[None]:
    """Lets the tokenizer use threads inside and not after it, unless the user decided: forks would warn of them."""
    chosen = "TOKENIZERS_PARALLELISM" in os.environ
    if not chosen:
        os.environ["TOKENIZERS_PARALLELISM"] = "true"
    try:
        yield
    finally:
        if not chosen:
            os.environ["TOKENIZERS_PARALLELISM"] = "false"
