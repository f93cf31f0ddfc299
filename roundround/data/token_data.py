"""A prepared corpus as it is used: streams of tokens, read from its shards as they are asked for."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from roundround.data.entry import FILES, SPLITS, Entry, dtype_of_ids, files_of
from roundround.data.sampling import GROUP
from roundround.data.shard_cache import ShardCache
from roundround.data.stream import Array, Mix, OpenShards, TokenStream
from roundround.data.token_bytes import BYTES
from roundround.support.files import home_expanded

MUCH_SHORTER = 0.25  # documents of this share of the context: three quarters of what a token could see is unrelated
SHARDS = "shards"  # below the cache: copies of those that lie at addresses
CACHE_BYTES = 20 * 10**9  # of these copies, where no corpus says otherwise


@dataclass(frozen=True, eq=False, kw_only=True)
class TokenData:
    """A tokenised corpus, read from its shards; of a mixture, the streams of its sources.

    train, held_out: [n_tokens], uint16 where the vocabulary fits, else uint32.
    held_out_bytes: [n_tokens], uint32, the UTF-8 bytes of text that each held-out token stands for, 0 for the end of a
    document: the bytes of any stretch of tokens are a sum.
    n_vocab: one more than the largest id. corpus_hash: `Corpus.identity`. tokenizer_hash: sha256 of tokenizer.json.
    n_groups: of shards that are shuffled together, on which the order of training depends; a list for a mixture.
    """

    train: TokenStream | Mix
    held_out: TokenStream | Array
    held_out_bytes: TokenStream | Array
    n_train_documents: int
    n_held_out_documents: int
    n_held_out_bytes: int
    n_vocab: int
    end_of_document: int
    tokenizer: Tokenizer
    corpus_hash: str
    tokenizer_hash: str
    n_groups: int | list[int]

    @property
    def joining_token(self) -> str:
        """What `end_of_document` reads as."""
        return str(self.tokenizer.id_to_token(self.end_of_document))

    def bytes_of_targets(self, n: int) -> int:
        """UTF-8 bytes of text that the first n held-out targets stand for, the tokens 1..n."""
        return int(self.held_out_bytes[1 : n + 1].sum())

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


def opened(entry: Entry, cache_dir: Path, most_bytes: int = CACHE_BYTES) -> TokenData:
    """The tokens of a prepared corpus; copies of what lies at an address take at most so much of the disk."""
    meta, shards = entry.meta, OpenShards(ShardCache(cache_dir / SHARDS, most_bytes))
    types = dict.fromkeys(SPLITS, dtype_of_ids(meta["n_vocab"])) | {"held_out_bytes": BYTES}
    train, held_out, held_out_bytes = (
        TokenStream.of_files(files_of(entry, name), types[name], shards) for name in FILES
    )
    return TokenData(
        train=train,
        held_out=held_out,
        held_out_bytes=held_out_bytes,
        n_train_documents=meta["train"]["documents"],
        n_held_out_documents=meta["held_out"]["documents"],
        n_held_out_bytes=meta["held_out"]["bytes"],
        n_vocab=meta["n_vocab"],
        end_of_document=entry.vocabulary.end_of_document,
        tokenizer=entry.vocabulary.tokenizer,
        corpus_hash=meta["corpus_hash"],
        tokenizer_hash=meta["tokenizer_hash"],
        n_groups=max(1, -(-len(train.segments) // GROUP)),
    )
