"""Token files: a corpus is tokenised once, into a cache from which every later run maps its tokens.

    <cache>/<hash of corpus and tokenizer>/train.bin  held_out.bin  held_out_bytes.bin  tokenizer.json  meta.json

A document's tokens are followed by the end-of-document token. An entry appears whole, by a rename, or not at all.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from roundround.data.corpora import Corpus, fingerprint
from roundround.data.disk import claimed, writing
from roundround.data.token_bytes import BYTES, bytes_of_tokens
from roundround.data.tokenizers import TokenizerRecipe, Vocabulary, content_hash, open_vocabulary
from roundround.errors import UserError
from roundround.files import flush_folder, folder_in_one_step, write_atomically

log = logging.getLogger(__name__)
Document = TypeVar("Document")

FORMAT = 2  # of the files; raised with any change to them, so that old entries are not taken for new ones
BATCH_CHARACTERS = 1 << 20
MUCH_SHORTER = 0.25  # documents of this share of the context: three quarters of what a token could see is unrelated
SPLITS = ("train", "held_out")
FILES = (*SPLITS, "held_out_bytes")


@dataclass(frozen=True, eq=False, kw_only=True)
class TokenData:
    """A tokenised corpus, mapped from its files.

    train, held_out: [n_tokens], uint16 where the vocabulary fits, else uint32.
    held_out_bytes: [n_tokens], uint32, the UTF-8 bytes of text that each held-out token stands for, 0 for the end of a
    document: the bytes of any stretch of tokens are a sum.
    n_vocab: one more than the largest id. corpus_hash: `Corpus.identity`. tokenizer_hash: sha256 of tokenizer.json.
    """

    train: NDArray[np.unsignedinteger[Any]]
    held_out: NDArray[np.unsignedinteger[Any]]
    held_out_bytes: NDArray[np.uint32]
    n_train_documents: int
    n_held_out_documents: int
    n_vocab: int
    end_of_document: int
    tokenizer: Tokenizer
    corpus_hash: str
    tokenizer_hash: str

    @property
    def joining_token(self) -> str:
        """What `end_of_document` reads as."""
        return str(self.tokenizer.id_to_token(self.end_of_document))

    def bytes_of_targets(self, n: int) -> int:
        """UTF-8 bytes of text that the first n held-out targets stand for, the tokens 1..n."""
        return int(self.held_out_bytes[1 : n + 1].sum(dtype=np.int64))

    def about_documents(self, split: str, length: int) -> str | None:
        """A line where the documents of a split are much shorter than the `length` tokens of a window."""
        n_tokens, n_documents = {
            "train": (len(self.train), self.n_train_documents),
            "held_out": (len(self.held_out), self.n_held_out_documents),
        }[split]
        mean = n_tokens / n_documents - 1
        if mean >= MUCH_SHORTER * length:
            return None
        return (
            f"documents have {mean:,.0f} tokens on average and the context {length:,}, so that most of a window is "
            "other documents; in plain text data.split_regex says where a document ends (null: where its file ends)"
        )


def default_cache_dir() -> Path:
    """$ROUNDROUND_CACHE, or roundround/ in $XDG_CACHE_HOME, or else in ~/.cache."""
    own, shared = os.environ.get("ROUNDROUND_CACHE"), os.environ.get("XDG_CACHE_HOME")
    if own:
        return Path(own).expanduser()
    return (Path(shared) if shared else Path.home() / ".cache") / "roundround"


def prepare(corpus: Corpus, tokenizer: TokenizerRecipe, cache_dir: Path, *, needs: Sequence[str] = SPLITS) -> TokenData:
    """The corpus in tokens, from the cache or tokenised now. Safe with many processes: one works, the others wait.

    UserError where the corpus cannot be read, where a split that the caller needs has no document, or the disk is full.
    """
    if corpus.held_out == 1 and "train" in needs:
        raise UserError("data.held_out=1 holds every document out and leaves none to train on; give a smaller fraction")
    corpus_hash = corpus.identity()
    entry = cache_dir / fingerprint(format=FORMAT, corpus=corpus_hash, tokenizer=tokenizer.identity())[:32]
    ready = load(entry)
    if ready is None:
        with claimed(entry):
            ready = load(entry) or _build(corpus, corpus_hash, tokenizer, entry)
    _require(needs, ready, corpus.held_out)
    return ready


def load(entry: Path) -> TokenData | None:
    """The entry of the cache, or None where there is none or it is damaged."""
    try:
        meta = json.loads((entry / "meta.json").read_text())
        tokenizer_json = (entry / "tokenizer.json").read_text(encoding="utf-8")
        damaged = hashlib.sha256(tokenizer_json.encode()).hexdigest() != meta["tokenizer_hash"]
        for name in FILES:
            damaged |= (entry / f"{name}.bin").stat().st_size != _n_tokens(meta, name) * _dtype(meta, name).itemsize
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, KeyError, TypeError):
        damaged = True
    if damaged:
        log.warning("the tokens in %s are damaged and are made again", entry)
        return None
    return _mapped(entry, meta, open_vocabulary(Tokenizer.from_str(tokenizer_json), meta["end_of_document"]))


def _dtype(meta: Mapping[str, Any], name: str) -> np.dtype[Any]:
    return BYTES if name == "held_out_bytes" else np.dtype(meta["dtype"])


def _n_tokens(meta: Mapping[str, Any], name: str) -> int:
    return int(meta[name.removesuffix("_bytes")]["tokens"])


def _mapped(entry: Path, meta: Mapping[str, Any], vocabulary: Vocabulary) -> TokenData:
    arrays = {}
    for name in FILES:
        dtype, empty = _dtype(meta, name), _n_tokens(meta, name) == 0  # an empty file cannot be mapped
        arrays[name] = np.empty(0, dtype) if empty else np.memmap(entry / f"{name}.bin", dtype=dtype, mode="r")
    return TokenData(
        **arrays,
        n_train_documents=meta["train"]["documents"],
        n_held_out_documents=meta["held_out"]["documents"],
        n_vocab=meta["n_vocab"],
        end_of_document=vocabulary.end_of_document,
        tokenizer=vocabulary.tokenizer,
        corpus_hash=meta["corpus_hash"],
        tokenizer_hash=meta["tokenizer_hash"],
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
    """Writes tokenizer and tokens; returns what meta.json says of them. UserError where there is no text."""
    vocabulary = recipe.build(_read(corpus.training_texts()))
    tokenizer, end = vocabulary.tokenizer, [vocabulary.end_of_document]
    dtype = np.dtype("uint16" if vocabulary.size <= 2**16 else "uint32")
    write_atomically(folder / "tokenizer.json", tokenizer.to_str())
    with ExitStack() as files:
        train, held_out, n_bytes = (files.enter_context(_Array(folder / f"{name}.bin")) for name in FILES)
        for batch in _batches(_read(corpus.documents())):
            texts = [text for is_held_out, text in batch if not is_held_out]
            for text, encoding in zip(texts, tokenizer.encode_batch_fast(texts, add_special_tokens=False), strict=True):
                train.add(np.asarray(encoding.ids + end, dtype), text)
            texts = [text for is_held_out, text in batch if is_held_out]
            for text, encoding in zip(texts, tokenizer.encode_batch(texts, add_special_tokens=False), strict=True):
                held_out.add(np.asarray(encoding.ids + end, dtype), text)
                n_bytes.add(bytes_of_tokens(text, encoding.offsets), text)
    if train.counts["documents"] + held_out.counts["documents"] == 0:
        raise UserError("the corpus holds no text: check data.path or data.column")
    sizes = {"dtype": dtype.name, "n_vocab": vocabulary.size, "end_of_document": vocabulary.end_of_document}
    return {
        "train": train.counts,
        "held_out": held_out.counts,
        **sizes,
        "tokenizer_hash": content_hash(tokenizer),
    }


class _Array:
    """An array on its way to the disk, piece by piece, its documents counted; on the disk when the block is left."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("wb")
        self.counts = {"documents": 0, "tokens": 0, "bytes": 0}

    def add(self, values: NDArray[Any], text: str) -> None:
        """What is kept of one document."""
        self.file.write(values.tobytes())
        for name, n in ("documents", 1), ("tokens", len(values)), ("bytes", len(text.encode())):
            self.counts[name] += n

    def __enter__(self) -> _Array:
        return self

    def __exit__(self, *_: object) -> None:
        with self.file:
            self.file.flush()
            os.fsync(self.file.fileno())


def _read(documents: Iterable[Document]) -> Iterator[Document]:
    """The same; UserError where a file of the corpus cannot be read, so that it is not taken for one of the cache."""
    try:
        yield from documents
    except OSError as error:
        raise UserError(f"the corpus cannot be read: {error}") from error


def _require(needs: Sequence[str], data: TokenData, fraction: float) -> None:
    counts = {"train": data.n_train_documents, "held_out": data.n_held_out_documents}
    for split in needs:
        if counts[split] == 0:
            purpose = {"train": "train on", "held_out": "hold out"}[split]
            raise UserError(
                f"the corpus has {sum(counts.values())} documents and none to {purpose} at data.held_out={fraction}; "
                f"change that fraction, or cut the text into more documents (data=text: data.split_regex)"
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
