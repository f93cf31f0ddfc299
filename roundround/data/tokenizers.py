"""Tokenizers: raw bytes, byte-level BPE learnt from the corpus, or the tokenizer of a model on the Hugging Face hub.

A `TokenizerRecipe` builds a `Vocabulary`. Two vocabularies are the same if their `content_identity` is equal.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from roundround.data.corpora import fingerprint, first_line
from roundround.data.hub import hub_is_reachable
from roundround.kernels.variants import FinalVariants
from roundround.support.console import print_status
from roundround.support.errors import UserError
from roundround.support.files import home_expanded, read_text
from roundround.support.packaged import model_path

END_OF_DOCUMENT = "<|endoftext|>"
N_BYTES = 256
MANY_UNKNOWN = 0.01  # share of tokens


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer with the id of the token that ends every document.

    first: the id of the token that precedes a text; None if it is the same as `end_of_document`. reads_special_tokens:
    whether the name of a special token in a text, such as "<|endoftext|>", becomes that token, as in transformers'
    `tokenizer(text)`; otherwise the name is ordinary characters. documents_apart: whether the model was trained on
    separate documents; if so, no token precedes a text.
    """

    tokenizer: Tokenizer = field(repr=False)  # its repr prints the whole vocabulary
    end_of_document: int
    first: int | None = None
    reads_special_tokens: bool = False
    documents_apart: bool = False

    @property
    def first_token(self) -> int:
        return self.end_of_document if self.first is None else self.first

    @property
    def size(self) -> int:
        """One more than the largest id. Some smaller ids may be unused."""
        return 1 + max(self.tokenizer.get_vocab(with_added_tokens=True).values())

    def encode(self, text: str) -> list[int]:
        """The token ids of a text, without added special tokens."""
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """The text that the ids stand for, without special tokens."""
        return self.tokenizer.decode(list(ids))


class TokenizerRecipe(FinalVariants, ABC):
    """Base of the ways to get a tokenizer for a corpus."""

    @abstractmethod
    def identity(self) -> str:
        """sha256 (hex) of everything, apart from the corpus, that determines what `build` returns."""

    @abstractmethod
    def build(self, texts: Iterable[str]) -> Vocabulary:
        """The vocabulary. texts: the training documents, read only if the tokenizer is learnt from them."""


@final
class Bytes(TokenizerRecipe):
    """Every UTF-8 byte is a token, and its value is the id; 256 ends a document. Lossless; nothing is learnt."""

    def identity(self) -> str:
        return fingerprint(tokenizer="bytes")

    def build(self, texts: Iterable[str]) -> Vocabulary:
        vocabulary = {character: value for value, character in enumerate(byte_characters())}
        tokenizer = _byte_level(models.BPE(vocab=vocabulary, merges=[]), words=False)
        tokenizer.add_special_tokens([AddedToken(END_OF_DOCUMENT, special=True, normalized=False)])
        return open_vocabulary(tokenizer, tokenizer.get_vocab()[END_OF_DOCUMENT])


@final
class BPE(TokenizerRecipe):
    """Byte-level byte-pair encoding, learnt from the first `max_train_bytes` of the training documents. Lossless.

    These documents are in memory during learning. The method is from Sennrich et al. 2016, arXiv:1508.07909. Its use
    on bytes, and the pattern that splits words, are from Radford et al. 2019 (GPT-2).
    """

    def __init__(self, *, vocab_size: int, max_train_bytes: int) -> None:
        if vocab_size <= N_BYTES:
            raise ValueError(
                f"vocab_size is {vocab_size}; it must be at least {N_BYTES + 1}, so that each byte has a token"
            )
        self.vocab_size, self.max_train_bytes = vocab_size, max_train_bytes

    def identity(self) -> str:
        return fingerprint(tokenizer="bpe", vocab_size=self.vocab_size, max_train_bytes=self.max_train_bytes)

    def build(self, texts: Iterable[str]) -> Vocabulary:
        tokenizer = _byte_level(models.BPE(), words=True)
        trainer = trainers.BpeTrainer(
            vocab_size=self.vocab_size,
            special_tokens=[END_OF_DOCUMENT],
            initial_alphabet=byte_characters(),
            show_progress=False,
        )
        # A list, because the library would read an iterator in a thread of its own, where no signal stops it.
        tokenizer.train_from_iterator(list(_first_bytes(texts, self.max_train_bytes)), trainer=trainer)
        return open_vocabulary(tokenizer, tokenizer.get_vocab()[END_OF_DOCUMENT])


@final
class HuggingFace(TokenizerRecipe):
    """The tokenizer of a model on the hub, in a folder or inside roundround's package (`package:NAME`).

    The tokenizer's end-of-sequence token ends a document. Files in the local cache are used without a check for newer
    ones. Code from a repository is never run.
    """

    def __init__(self, *, name: str) -> None:
        self.name = name

    def identity(self) -> str:
        return content_identity(self._vocabulary)

    def build(self, texts: Iterable[str]) -> Vocabulary:
        return self._vocabulary

    @cached_property
    def _vocabulary(self) -> Vocabulary:
        return vocabulary_of(self._find(), self.name)

    def _find(self) -> Any:
        """The tokenizer from a folder or the local cache, else from the hub. Raises UserError if there is none."""
        from transformers import AutoTokenizer

        folder = home_expanded(model_path(self.name), "tokenizer.name")
        is_folder = os.path.isdir(folder)  # False as well for a name too long for a path
        name = str(folder) if is_folder else self.name
        for only_here in (True, False):
            try:
                return AutoTokenizer.from_pretrained(name, local_files_only=only_here, trust_remote_code=False)
            except Exception as error:  # not cached, or broken: transformers raises OSError, ValueError, KeyError, ...
                reason = first_line(error)
                if is_folder or not hub_is_reachable():
                    break
        raise UserError(
            f"tokenizer '{self.name}' cannot be loaded ({reason}); set tokenizer.name to a folder, or to a model of "
            "the Hugging Face hub if the hub can be reached, or use tokenizer=bpe or tokenizer=bytes"
        )


@final
class OfCorpus(TokenizerRecipe):
    """The tokenizer that is stored with a prepared corpus."""

    def identity(self) -> str:
        return fingerprint(tokenizer="of the corpus")

    def build(self, texts: Iterable[str]) -> Vocabulary:
        raise UserError("tokenizer=prepared is only for data=prepared; give tokenizer=bpe or tokenizer=bytes")


@final
class AlreadyOpen(TokenizerRecipe):
    """A vocabulary that exists already, such as that of a loaded model, of a run or of a mixture."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    @classmethod
    def from_file(cls, path: Path, end_of_document: int) -> AlreadyOpen:
        """The recipe for a run's tokenizer. path: the run's tokenizer.json. Raises UserError if it cannot be read."""
        try:
            return cls(open_vocabulary(Tokenizer.from_str(read_text(path)), end_of_document))
        except Exception as error:  # OSError, ValueError, or the library's plain Exception where it is no tokenizer
            raise UserError(f"{path}: not a readable tokenizer ({first_line(error)})") from None

    def identity(self) -> str:
        return content_identity(self._vocabulary)

    def build(self, texts: Iterable[str]) -> Vocabulary:
        return self._vocabulary


def byte_characters() -> list[str]:
    """The printable characters that stand for the bytes 0 to 255 in byte-level models (GPT-2's table)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = itertools.count(N_BYTES)
    return [chr(value) if value in printable else chr(next(others)) for value in range(N_BYTES)]


def _byte_level(model: Any, *, words: bool) -> Tokenizer:
    """A tokenizer of UTF-8 bytes. words: whether merges stay within a word of GPT-2's pattern."""
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=words)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _first_bytes(texts: Iterable[str], n_bytes: int) -> Iterator[str]:
    """The first texts, until they have at least `n_bytes` UTF-8 bytes together."""
    for text in texts:
        yield text
        n_bytes -= len(text.encode())
        if n_bytes <= 0:
            return


def vocabulary_of(
    tokenizer: Any, name: str, end_of_document: int | None = None, *, reads_special_tokens: bool = False
) -> Vocabulary:
    """The vocabulary of a tokenizer of transformers.

    end_of_document: the id of the token that ends a document; None for the tokenizer's end-of-sequence token. Raises
    UserError if the tokenizer has no fast form or no such token.
    """
    from transformers import PreTrainedTokenizerFast

    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise UserError(f"tokenizer '{name}' has no fast form (tokenizer.json); choose another tokenizer.name")
    end, own = tokenizer.eos_token_id if end_of_document is None else end_of_document, tokenizer.backend_tokenizer
    if end is None or own.id_to_token(end) is None:
        raise UserError(
            f"tokenizer '{name}' has no token that ends a text (its end-of-sequence token is {end}); choose another "
            "tokenizer.name"
        )
    return open_vocabulary(Tokenizer.from_str(own.to_str()), end, reads_special_tokens=reads_special_tokens)


def open_vocabulary(tokenizer: Tokenizer, end_of_document: int, *, reads_special_tokens: bool = False) -> Vocabulary:
    """Turns off truncation and padding in the tokenizer; returns its vocabulary. Arguments: as for `Vocabulary`."""
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = not reads_special_tokens  # tokenizer.json does not store it
    return Vocabulary(tokenizer, end_of_document, reads_special_tokens=reads_special_tokens)


def unknown_token(tokenizer: Tokenizer, *others: int | None) -> int | None:
    """The id of the token for unknown words; None if there is none, or if the id is among `others`."""
    model = json.loads(tokenizer.to_str())["model"]
    name = model.get("unk_token")  # Unigram has the id
    unknown: int | None = model.get("unk_id") if name is None else tokenizer.token_to_id(name)
    return None if unknown in others else unknown


def check_known(ids: Sequence[int] | NDArray[Any], unknown: int | None, what: str) -> None:
    """Prints the share of unknown tokens if it is above MANY_UNKNOWN; raises UserError if it is above one half.

    unknown: the id of the unknown token; None if there is none.
    """
    share = float(np.mean(np.asarray(ids) == unknown)) if unknown is not None and len(ids) else 0.0
    line = f"the tokenizer does not know {share:.0%} of the tokens of {what}"
    if share > 0.5:
        raise UserError(f"{line}; give a text for which this tokenizer was made, or a model with another tokenizer")
    if share > MANY_UNKNOWN:
        print_status(line)


def content_hash(tokenizer: Tokenizer) -> str:
    """sha256 (hex) of the tokenizer's JSON."""
    return hashlib.sha256(tokenizer.to_str().encode()).hexdigest()


def content_identity(vocabulary: Vocabulary) -> str:
    """The identity of a vocabulary. It depends on the content alone, not on the source."""
    reading = {"special_tokens": "read"} if vocabulary.reads_special_tokens else {}
    return fingerprint(json=content_hash(vocabulary.tokenizer), end_of_document=vocabulary.end_of_document, **reading)
