"""A vocabulary: a tokenizer as it is used here, and what makes two of them the same."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

from roundround.data.corpora import fingerprint
from roundround.support.errors import UserError

LARGEST_VOCABULARY = 2**20  # tokens; the largest in use have 250 thousand to a million


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer with the id of the token that closes every document.

    first: the id of the token with which a text begins; None where that is the one that closes the text before it.

    Special tokens are not read out of a text: in a document "<|endoftext|>" is thirteen ordinary characters. With
    `reads_special_tokens` such text is the token that it spells, as transformers' `tokenizer(text)` reads it.
    """

    tokenizer: Tokenizer
    end_of_document: int
    first: int | None = None
    reads_special_tokens: bool = False

    @property
    def first_token(self) -> int:
        return self.end_of_document if self.first is None else self.first

    @property
    def size(self) -> int:
        """One more than the largest id, in case a vocabulary has holes."""
        return 1 + max(self.tokenizer.get_vocab(with_added_tokens=True).values())

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, without any special token."""
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, special tokens left out."""
        return self.tokenizer.decode(list(ids))


def vocabulary_of(
    tokenizer: Any, name: str, end_of_document: int | None = None, *, reads_special_tokens: bool = False
) -> Vocabulary:
    """A tokenizer of transformers as it is used here; its end-of-sequence token ends a document, or the one given.

    Raises UserError where it has no fast form, or none of these tokens.
    """
    from transformers import PreTrainedTokenizerFast

    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise UserError(f"tokenizer '{name}' has no fast form (tokenizer.json); choose another tokenizer.name")
    end = tokenizer.eos_token_id if end_of_document is None else end_of_document
    if end is None:
        raise UserError(f"tokenizer '{name}' has no end-of-sequence token; choose another tokenizer.name")
    try:
        check_ids(tokenizer.backend_tokenizer, end)
    except ValueError as error:
        raise UserError(f"tokenizer '{name}': {error}; choose another tokenizer.name") from None
    return open_vocabulary(
        Tokenizer.from_str(tokenizer.backend_tokenizer.to_str()), end, reads_special_tokens=reads_special_tokens
    )


def check_ids(tokenizer: Tokenizer, end_of_document: int) -> None:
    """ValueError where an id is far beyond the number of tokens, or no token ends a document.

    The library writes a tokenizer as json by going through all ids up to the largest, with a list as long: an id of
    4,000,000,000 in a file of a kilobyte takes 16 GiB and ends the process. An embedding has as many rows.
    """
    ids = tokenizer.get_vocab(with_added_tokens=True).values()
    allowed = max(LARGEST_VOCABULARY, 2 * len(ids))
    if max(ids, default=0) >= allowed:
        raise ValueError(f"it has the id {max(ids):,} with {len(ids):,} tokens; ids below {allowed:,} are allowed")
    if tokenizer.id_to_token(end_of_document) is None:
        raise ValueError(f"it has no token {end_of_document}, which is to end a document")


def open_vocabulary(tokenizer: Tokenizer, end_of_document: int, *, reads_special_tokens: bool = False) -> Vocabulary:
    """The vocabulary as it is used: nothing cut, nothing padded, special tokens read out of a text or not."""
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = not reads_special_tokens  # not saved in tokenizer.json, so set at each loading
    return Vocabulary(tokenizer, end_of_document, reads_special_tokens=reads_special_tokens)


def content_hash(tokenizer: Tokenizer) -> str:
    """sha256 (hex) of the tokenizer's json."""
    return hashlib.sha256(tokenizer.to_str().encode()).hexdigest()


def content_identity(vocabulary: Vocabulary) -> str:
    """The identity of a tokenizer that is there already: where it came from does not matter."""
    reading = {"special_tokens": "read"} if vocabulary.reads_special_tokens else {}
    return fingerprint(json=content_hash(vocabulary.tokenizer), end_of_document=vocabulary.end_of_document, **reading)
