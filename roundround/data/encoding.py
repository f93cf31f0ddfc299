"""Documents become tokens, a batch at a time and in order, in this process or in several.

Tested by tests/data/test_tokens.py and tests/data/test_tokenizers.py.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from roundround.data.entry import BYTES, SPLITS, dtype_of_ids
from roundround.data.tokenizers import Bytes, Vocabulary, open_vocabulary
from roundround.distributed.interruption import interrupts_blocked
from roundround.support.errors import Failed

Document = tuple[bool, str]  # is held out, text
Numbered = tuple[int, list[Document]]  # a batch, and the shard that it lies in
Ids = NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True, eq=False)
class Encoded:
    """The arrays of some documents, by the names of `entry.FILES`, and the counts of each split."""

    arrays: dict[str, NDArray[Any]]
    counts: dict[str, dict[str, int]]


class Encoder:
    """Documents to arrays: each document's ids, and the id that ends it after them."""

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
        n_bytes = np.concatenate([np.empty(0, BYTES), *parts])
        arrays = {"train": self._joined(self._ids(train)), "held_out": self._joined(ids), "held_out_bytes": n_bytes}
        counts = {
            split: {
                "documents": len(texts),
                "tokens": len(arrays[split]),
                "bytes": sum(len(text.encode()) for text in texts),
            }
            for split, texts in zip(SPLITS, (train, held_out), strict=True)
        }
        return Encoded(arrays, counts)

    def _ids(self, texts: list[str]) -> Iterator[Sequence[int] | NDArray[np.uint8]]:
        if self.of_bytes:  # a byte is its own id: a hundred times as fast
            return (np.frombuffer(text.encode(), np.uint8) for text in texts)
        return (encoding.ids for encoding in self.tokenizer.encode_batch_fast(texts, add_special_tokens=False))

    def _joined(self, documents: Iterable[Sequence[int] | NDArray[Any]]) -> Ids:
        end = np.asarray([self.end], self.dtype)
        parts = [part for ids in documents for part in (np.asarray(ids, self.dtype), end)]
        return np.concatenate([np.empty(0, self.dtype), *parts])


def bytes_of_tokens(text: str, offsets: Sequence[tuple[int, int]]) -> NDArray[np.uint32]:
    """UTF-8 bytes of the text that each token stands for, and 0 for the end of the document: [n_tokens + 1].

    offsets: (first, last + 1) character of each token, as `tokenizers` gives them. Characters that no token claims,
    such as a dropped space, count with the next token, or the last one; of tokens that share a character the first has
    all its bytes.
    """
    codes = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    up_to = np.concatenate([[0], np.cumsum(1 + (codes > 0x7F) + (codes > 0x7FF) + (codes > 0xFFFF))])
    reached = np.maximum.accumulate(up_to[[last for _, last in offsets]]) if offsets else np.empty(0, up_to.dtype)
    reached[-1:] = up_to[-1]
    return np.append(np.diff(reached, prepend=0), 0).astype(BYTES)


def _bytes_of_bytes(values: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """`bytes_of_tokens` where every byte is a token: the first byte of a character has all its bytes."""
    begins = np.flatnonzero((values & 0xC0) != 0x80)
    found = np.zeros(len(values) + 1, BYTES)
    found[begins] = np.diff(begins, append=len(values))
    return found


@contextmanager
def encoding(
    vocabulary: Vocabulary, n_processes: int | None
) -> Iterator[Callable[[Iterable[Numbered]], Iterator[tuple[int, Encoded]]]]:
    """A function from numbered batches to what they become, in the same order.

    n_processes: 1 for this one, with one thread; more for as many beside this one, of one thread each; None for this
    one and the threads of the tokenizer. `Failed` where the system ends one of them.
    """
    if n_processes is None or n_processes == 1:
        with tokenizer_threads(n_processes is None):
            encoder = Encoder(vocabulary)
            yield lambda batches: ((number, encoder(batch)) for number, batch in batches)
        return
    start = (vocabulary.tokenizer.to_str(), vocabulary.end_of_document, vocabulary.reads_special_tokens)
    pool = ProcessPoolExecutor(n_processes, get_context("spawn"), initializer=_begin, initargs=start)
    try:
        with interrupts_blocked():  # Ctrl-C reaches all processes of a terminal: this one ends the others
            pool.submit(os.getpid)
        yield lambda batches: _in_order(pool, batches, 2 * n_processes)
    except BrokenProcessPool as error:
        raise Failed("a process that tokenises was ended by the system (is the memory full?); start again") from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _in_order(pool: ProcessPoolExecutor, batches: Iterable[Numbered], most: int) -> Iterator[tuple[int, Encoded]]:
    """At most so many batches are on their way at once: memory does not grow with the corpus."""
    waiting: deque[tuple[int, Future[Encoded]]] = deque()
    for number, batch in batches:
        waiting.append((number, pool.submit(_encode, batch)))
        if len(waiting) > most:
            first, found = waiting.popleft()
            yield first, found.result()
    for number, found in waiting:
        yield number, found.result()


_encoder: list[Encoder] = []  # of a process that `encoding` started


def _begin(tokenizer_json: str, end_of_document: int, reads_special_tokens: bool) -> None:
    """The first thing that such a process does. It ends with the one that started it, however that ends."""
    threading.Thread(target=_end_with_the_first, daemon=True).start()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    tokenizer = Tokenizer.from_str(tokenizer_json)
    _encoder.append(Encoder(open_vocabulary(tokenizer, end_of_document, reads_special_tokens=reads_special_tokens)))


def _end_with_the_first() -> None:
    first = parent_process()
    if first is not None:
        first.join()
        os._exit(1)


def _encode(batch: list[Document]) -> Encoded:
    return _encoder[0](batch)


@contextmanager
def tokenizer_threads(wanted: bool) -> Iterator[None]:
    """Lets the tokenizer use threads inside or not, and never after it, unless the user decided: forks warn of them."""
    chosen = wanted and "TOKENIZERS_PARALLELISM" in os.environ
    before = os.environ.get("TOKENIZERS_PARALLELISM")
    if not chosen:
        os.environ["TOKENIZERS_PARALLELISM"] = "true" if wanted else "false"
    try:
        yield
    finally:
        if not chosen:
            os.environ["TOKENIZERS_PARALLELISM"] = "false" if before is None or wanted else before
