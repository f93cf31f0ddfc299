"""Token files: a corpus is tokenised once, into a cache from which every later run maps its tokens.

An entry is a folder named by the hash of corpus and tokenizer. It appears whole, by a rename, or not at all, and each
opening checks it (`entry.py` says how, and what that promises). A document's tokens are followed by the end-of-document
token.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from roundround.data.corpora import Corpus, fingerprint, reading
from roundround.data.disk import MOVE, claimed, remove, writing
from roundround.data.entry import SPLITS, Damaged, checking, read_entry, write_meta
from roundround.data.tokenising import tokenizer_threads, write_tokens
from roundround.data.tokenizers import TokenizerRecipe
from roundround.data.vocabulary import open_vocabulary
from roundround.errors import UserError
from roundround.files import flush_folder, folder_in_one_step, home_expanded

log = logging.getLogger(__name__)

FORMAT = 3  # of the files; raised with any change to them, so that old entries are not taken for new ones
MUCH_SHORTER = 0.25  # documents of this share of the context: three quarters of what a token could see is unrelated


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
    """$ROUNDROUND_CACHE, or roundround/ in $XDG_CACHE_HOME, or else in ~/.cache. UserError without a home folder."""
    own, shared = os.environ.get("ROUNDROUND_CACHE"), os.environ.get("XDG_CACHE_HOME")
    if own:
        return home_expanded(own, "ROUNDROUND_CACHE")
    return (Path(shared) if shared else home_expanded("~/.cache", "ROUNDROUND_CACHE is not set")) / "roundround"


def prepare(corpus: Corpus, tokenizer: TokenizerRecipe, cache_dir: Path, *, needs: Sequence[str] = SPLITS) -> TokenData:
    """The corpus in tokens, from the cache or tokenised now. Safe with many processes: one works, the others wait.

    UserError where the corpus cannot be read, where a split that the caller needs has no document, or the disk is full.
    """
    if corpus.held_out == 1 and "train" in needs:
        raise UserError("data.held_out=1 holds every document out and leaves none to train on; give a smaller fraction")
    with reading("the corpus"):
        corpus_hash = corpus.identity()
    entry = cache_dir / fingerprint(format=FORMAT, corpus=corpus_hash, tokenizer=tokenizer.identity())[:32]
    ready = load(entry)
    if ready is None:
        with claimed(entry):
            ready = load(entry, warn=True) or _build(corpus, corpus_hash, tokenizer, entry)
    _require(needs, ready, corpus.held_out)
    return ready


def load(entry: Path, *, warn: bool = False) -> TokenData | None:
    """The entry of the cache, or None where there is none or it is damaged, of which `warn` makes a line."""
    if not os.path.lexists(entry):
        return None
    try:
        return _opened(entry)
    except Damaged as damage:
        if warn:
            log.warning("the tokens in %s are damaged (%s) and are made again", entry, damage)
        return None


def _opened(folder: Path) -> TokenData:
    entry = read_entry(folder)
    meta = entry.meta
    with checking():
        vocabulary = open_vocabulary(Tokenizer.from_str(entry.tokenizer_json), meta["end_of_document"])
        return TokenData(
            **entry.arrays,
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
        with folder_in_one_step(entry, temporary), tokenizer_threads():
            meta = write_tokens(corpus, recipe, temporary) | {"corpus_hash": corpus_hash, "format": FORMAT}
            write_meta(temporary, meta)
            remove(entry)  # a damaged one
        flush_folder(entry.parent)
    log.info("tokenised: %s", "; ".join(_summary(split, meta[split]) for split in SPLITS))
    ready = load(entry)
    if ready is None:
        raise UserError(f"the tokens just written in {entry} read back otherwise; does the disk fail? {MOVE}")
    return ready


def _require(needs: Sequence[str], data: TokenData, fraction: float) -> None:
    counts = {"train": data.n_train_documents, "held_out": data.n_held_out_documents}
    for split in needs:
        if counts[split] == 0:
            purpose = {"train": "train on", "held_out": "hold out"}[split]
            raise UserError(
                f"the corpus has {sum(counts.values())} documents and none to {purpose} at data.held_out={fraction}; "
                f"change that fraction, or cut the text into more documents (data=text: data.split_regex)"
            )


def _summary(split: str, counts: Mapping[str, int]) -> str:
    return f"{split} {counts['documents']:,} documents, {counts['tokens']:,} tokens, {counts['bytes']:,} bytes"
