"""The base class of corpora. A corpus has an identity and a stream of documents, some of which are held out."""

from __future__ import annotations

import hashlib
import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

from roundround.kernels.variants import FinalVariants
from roundround.support.errors import UserError

MORE_SPACE = "free space there, or choose another folder (to=DIR; for the cache: ROUNDROUND_CACHE=DIR)"


class Source(FinalVariants, ABC):
    """Base class of the objects that a config node `data` describes: corpora, tasks and pairs of sentences."""

    @abstractmethod
    def identity(self) -> str:
        """sha256 (hex) of everything that determines the texts or examples.

        If two sources have equal identities, they have equal texts or examples.
        """


class Corpus(Source):
    """A fixed sequence of documents, some or all of which are held out for evaluation.

    A document is held out if the sha256 of its text, read as a number in [0, 1), is below `held_out`. So copies of a
    text are always in the same split, and one pass is enough to split a corpus larger than memory.

    separate_documents: whether tokens attend only to tokens of their own document. It does not change the tokens.
    """

    def __init__(self, *, held_out: float | None, separate_documents: bool = False) -> None:
        """held_out: the fraction of documents to hold out; None if the subclass splits documents in another way."""
        if not 0 <= (held_out or 0) <= 1:
            raise ValueError(
                f"held_out is {held_out}; give a fraction of the documents, from 0 to 1 (1 holds out all, to evaluate "
                "on them)"
            )
        self.held_out, self.separate_documents = held_out, separate_documents

    @abstractmethod
    def texts(self) -> Iterator[str]:
        """The documents' texts, in a fixed order. Raises UserError if they cannot be read."""

    def documents(self) -> Iterator[tuple[bool, str]]:
        """(is held out, text) of every document that has a visible character, in a fixed order.

        Raises UserError, not OSError, if a file cannot be read, because to callers an OSError means that tokens could
        not be written.
        """
        with reading("the corpus"):
            for raw in self.texts():
                text = well_formed(raw)
                if text and not text.isspace():
                    yield is_held_out(text, self.held_out or 0.0), text

    def training_texts(self) -> Iterator[str]:
        """The texts that are not held out."""
        return (text for held_out, text in self.documents() if not held_out)


def is_held_out(text: str, fraction: float) -> bool:
    """Whether the text's sha256, read as a number in [0, 1), is below the fraction."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") < fraction * 2.0**64


def well_formed(text: str) -> str:
    """The text with U+FFFD in place of lone surrogates, which JSON can contain and UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def fingerprint(**fields: object) -> str:
    """sha256 (hex) of named values that JSON can represent; the order of the names does not matter."""
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


@contextmanager
def reading(what: object, remedy: str = "repair it, or choose another text", *, done: str = "read") -> Iterator[None]:
    """Inside the block, an OSError becomes a UserError that names the file or folder and says what to do.

    what: the name to use if the error names no file. remedy: the advice in the message. done: the word in the message
    for what was tried, such as read or written.
    """
    try:
        yield
    except OSError as error:
        path = what if error.filename is None else os.fsdecode(error.filename)
        reason = error.strerror or first_line(error)
        raise UserError(f"{path}: cannot be {done} ({reason}); {remedy}") from error


def first_line(error: Exception) -> str:
    """The first line of another library's error message."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def compiled(name: str, pattern: str | None) -> re.Pattern[str] | None:
    """The compiled pattern of the option `data.<name>`; None if it is null. Raises UserError for an invalid pattern."""
    try:
        return None if pattern is None else re.compile(pattern)
    except re.error as error:
        raise UserError(f"data.{name} '{pattern}' is not a regular expression: {error}") from None
