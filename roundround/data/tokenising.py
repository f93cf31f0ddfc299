"""A corpus on its way to the disk: documents become tokens, batch by batch, in memory that does not grow with it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from roundround.data.corpora import Corpus, reading
from roundround.data.entry import FILES, dtype_of_ids
from roundround.data.token_bytes import bytes_of_tokens
from roundround.data.tokenizers import TokenizerRecipe
from roundround.data.vocabulary import content_hash
from roundround.errors import UserError
from roundround.files import write_atomically

Document = TypeVar("Document")
BATCH_CHARACTERS = 1 << 20


def write_tokens(corpus: Corpus, recipe: TokenizerRecipe, folder: Path) -> dict[str, Any]:
    """Writes tokenizer.json and the arrays into a folder; returns what meta.json holds. UserError without text."""
    vocabulary = recipe.build(_read(corpus.training_texts()))
    tokenizer, end = vocabulary.tokenizer, [vocabulary.end_of_document]
    dtype = dtype_of_ids(vocabulary.size)
    write_atomically(folder / "tokenizer.json", tokenizer.to_str())
    with ExitStack() as files:
        arrays = [files.enter_context(_Array(folder / f"{name}.bin")) for name in FILES]
        train, held_out, n_bytes = arrays
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
    return {
        "train": train.counts,
        "held_out": held_out.counts,
        "n_vocab": vocabulary.size,
        "end_of_document": vocabulary.end_of_document,
        "tokenizer_hash": content_hash(tokenizer),
        "sha256": {name: array.digest.hexdigest() for name, array in zip(FILES, arrays, strict=True)},
    }


class _Array:
    """An array on its way to the disk, piece by piece, counted and hashed; on the disk when the block is left."""

    def __init__(self, path: Path) -> None:
        self.file, self.digest = path.open("wb"), hashlib.sha256()
        self.counts = {"documents": 0, "tokens": 0, "bytes": 0}

    def add(self, values: NDArray[Any], text: str) -> None:
        """What is kept of one document."""
        content = values.tobytes()
        self.file.write(content)
        self.digest.update(content)
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
    with reading("the corpus"):
        yield from documents


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


@contextmanager
def tokenizer_threads() -> Iterator[None]:
    """Lets the tokenizer use threads inside and not after it, unless the user decided: forks would warn of them."""
    chosen = "TOKENIZERS_PARALLELISM" in os.environ
    if not chosen:
        os.environ["TOKENIZERS_PARALLELISM"] = "true"
    try:
        yield
    finally:
        if not chosen:
            os.environ["TOKENIZERS_PARALLELISM"] = "false"
