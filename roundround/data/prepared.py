"""A tokenised corpus, as training and evaluation read it: prepared earlier, tokenised now, or mixed from several.

Tested by tests/data/test_tokens.py, test_shards.py, test_data_yaml.py and tests/training/test_prepared_runs.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import final

import numpy as np
from tokenizers import Tokenizer

from roundround.data.corpora import Corpus, fingerprint
from roundround.data.shards import (
    CACHE_BYTES,
    GROUP,
    Array,
    Mix,
    Segment,
    Shards,
    TokenStream,
    default_cache_dir,
    joined,
    open_store,
)
from roundround.data.tokenising import (
    BYTES,
    FILES,
    SPLITS,
    Entry,
    dtype_of_ids,
    make,
    read_entry,
    shard_files,
)
from roundround.data.tokenizers import AlreadyOpen, OfCorpus, TokenizerRecipe, check_known, unknown_token
from roundround.support.errors import UserError

__all__ = ["TokenData", "default_cache_dir", "make", "opened", "prepare"]

CYCLE = 1 << 16  # tokens; in each piece of this size of a mixture's held-out text, every source has its share
MOST_HELD_OUT = 1 << 24  # tokens
SAMPLE = 2**20  # the number of tokens, from the beginning of a split, among which unknown tokens are counted
MUCH_SHORTER = 0.25  # a share of the context; if documents have this mean length, 3/4 of a window is unrelated text


@final
class Prepared(Corpus):
    """A corpus that was tokenised earlier, in a folder or at an address that fsspec can read.

    The identity equals that of the original corpus, because the two give the same tokens in the same order. cache_gb:
    the largest total size, in GB, of the local copies of remote shards.
    """

    def __init__(self, *, path: str, cache_gb: float, separate_documents: bool = False) -> None:
        super().__init__(held_out=None, separate_documents=separate_documents)
        self.path, self.cache_bytes = path, int(cache_gb * 1e9)

    @cached_property
    def entry(self) -> Entry:
        """The prepared corpus at `path`. Raises UserError if it is incomplete."""
        return read_entry(open_store(self.path, "data.path"))

    def identity(self) -> str:
        return str(self.entry.meta["corpus_hash"])

    def check_tokenizer(self, recipe: TokenizerRecipe) -> None:
        """Raises UserError if the recipe does not give the tokenizer with which the corpus was prepared."""
        known = self.entry.meta["tokenizer"], self.entry.meta["tokenizer_content"]
        if not isinstance(recipe, OfCorpus) and recipe.identity() not in known:
            raise UserError(
                f"{self.path} was not prepared with the tokenizer that you ask for; leave tokenizer= out, or prepare "
                "the corpus again with the tokenizer that you ask for; the tokenizer of a pretrained model also needs "
                "model.special_tokens=plain, because a prepared corpus has special tokens as plain text"
            )

    def texts(self) -> Iterator[str]:
        """The held-out documents, decoded from their tokens."""
        vocabulary, document = self.entry.vocabulary, list[int]()
        held_out = opened(self.entry, default_cache_dir(), self.cache_bytes).held_out
        assert isinstance(held_out, TokenStream)
        for token in (token for block in held_out.blocks() for token in block.tolist()):
            if token != vocabulary.end_of_document:
                document.append(token)
            else:
                yield vocabulary.decode(document)
                document = []

    def documents(self) -> Iterator[tuple[bool, str]]:
        return ((True, text) for text in self.texts())


@final
class Mixture(Corpus):
    """Windows of several corpora, the sources, in the shares that the weights give.

    The share of a source is its weight divided by the sum of all weights. Each window comes from one source; in a block
    of 1,000 windows, each source has its share of the windows, to within one window. All sources use one tokenizer; if
    it is learnt, it is learnt from all sources in their shares. Held-out text has the same shares in every `CYCLE`
    tokens; it ends before a source would run out, or at `MOST_HELD_OUT` tokens.
    """

    def __init__(
        self, *, weights: dict[str, float], sources: Mapping[str, Corpus], separate_documents: bool = False
    ) -> None:
        super().__init__(held_out=None, separate_documents=separate_documents)
        if not sources or weights.keys() != sources.keys():
            raise ValueError(
                f"weights are given for {sorted(weights)}, but sources are {sorted(sources)}; give each source a weight"
            )
        if not all(0 <= weight < math.inf for weight in weights.values()) or not any(weights.values()):
            raise ValueError(f"weights are {weights}; each must be a number of at least 0, and one of them above 0")
        if any(source.separate_documents for source in sources.values()):
            raise ValueError(
                "separate_documents=true is set for one source, but it holds for all; give "
                "data.separate_documents=true instead"
            )
        total = sum(weights.values())
        self.sources = {name: source for name, source in sources.items() if weights[name] > 0}
        self.shares = [weights[name] / total for name in self.sources]

    def identity(self) -> str:
        sources = [[share, source.identity()] for share, source in zip(self.shares, self.sources.values(), strict=True)]
        return fingerprint(corpus="mixture", sources=sources)

    def texts(self) -> Iterator[str]:
        return (text for _, text in self.documents())

    def documents(self) -> Iterator[tuple[bool, str]]:
        """Each document comes from the source with the fewest bytes relative to its share, until a source runs out."""
        iterators = [source.documents() for source in self.sources.values()]
        given = [0.0] * len(iterators)
        while True:
            number = min(range(len(given)), key=given.__getitem__)
            document = next(iterators[number], None)
            if document is None:
                return
            yield document
            given[number] += len(document[1].encode()) / self.shares[number]

    def held_out_streams(
        self, parts: Sequence[tuple[TokenStream, TokenStream]], end: int
    ) -> tuple[TokenStream, TokenStream]:
        """The held-out tokens of all sources in their shares, and the number of bytes of each token (`TokenData`).

        parts: (tokens, numbers of bytes) of each source. end: the token that ends a document. The streams consist of
        pieces of the sources. If `separate_documents`, each piece is cut after the last `end` in the piece.
        """
        ends = [round(sum(self.shares[: n + 1]) * CYCLE) for n in range(len(parts))]
        sizes = [last - first for first, last in zip([0, *ends], ends, strict=False)]
        cycles = min(
            MOST_HELD_OUT // CYCLE, *(len(ids) // size for (ids, _), size in zip(parts, sizes, strict=True) if size)
        )
        if cycles == 0:  # one cycle, smaller
            scale = min(len(ids) / size for (ids, _), size in zip(parts, sizes, strict=True) if size)
            sizes, cycles = [int(size * scale) for size in sizes], 1
        pieces = [
            (number, slice(cycle * size, (cycle + 1) * size))
            for cycle in range(cycles)
            for number, size in enumerate(sizes)
        ]
        if self.separate_documents:
            for place, (number, piece) in enumerate(pieces):
                (found,) = np.nonzero(np.asarray(parts[number][0][piece]) == end)
                if len(found):
                    pieces[place] = number, slice(piece.start, piece.start + int(found[-1]) + 1)
        ids, n_bytes = ([parts[number][which][piece] for number, piece in pieces] for which in (0, 1))
        return joined(ids), joined(n_bytes)


@dataclass(frozen=True, eq=False, kw_only=True)
class TokenData:
    """A tokenised corpus or mixture, read from shards.

    train, held_out: the tokens, [n_tokens], uint16 if the vocabulary fits, else uint32. In a mixture, `train` holds a
    stream for each source.
    held_out_bytes: [n_tokens], uint32, the number of UTF-8 bytes of text that each held-out token stands for; 0 for the
    end of a document.
    n_vocab: one more than the largest id. corpus_hash: `Corpus.identity`. tokenizer_hash: sha256 of tokenizer.json.
    n_groups: the number of groups of shards (`WindowSampler`), on which the order of training depends; for a mixture, a
    list with one number for each source.
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
        """The text of `end_of_document`."""
        return str(self.tokenizer.id_to_token(self.end_of_document))

    def bytes_of_targets(self, n: int) -> int:
        """The number of UTF-8 bytes that the first n held-out targets (tokens 1..n) stand for."""
        return int(self.held_out_bytes[1 : n + 1].sum())

    def about_documents(self, split: str, length: int) -> str | None:
        """A warning of one line if the documents of the split are much shorter than a window of `length` tokens."""
        n_tokens, n_documents = {
            "train": (len(self.train), self.n_train_documents),
            "held_out": (len(self.held_out), self.n_held_out_documents),
        }[split]
        mean = n_tokens / n_documents - 1
        if mean >= MUCH_SHORTER * length:
            return None
        return (
            f"documents have {mean:,.0f} tokens on average and the context has {length:,}, so most of a window is text "
            "of other documents; in plain text, data.split_regex says where a document ends (null: at the end of its "
            "file)"
        )


def prepare(corpus: Corpus, tokenizer: TokenizerRecipe, cache_dir: Path, *, needs: Sequence[str] = SPLITS) -> TokenData:
    """The tokenised corpus: prepared earlier, read from the cache, or tokenised now.

    needs: the splits that must not be empty. Raises UserError if one of these splits has no document, and in the cases
    in which `make` raises UserError.
    """
    if isinstance(corpus, Mixture):
        return _mixed(corpus, tokenizer, cache_dir, needs)
    if isinstance(corpus, Prepared):
        corpus.check_tokenizer(tokenizer)
        ready = opened(corpus.entry, cache_dir, corpus.cache_bytes)
    else:
        ready = opened(make(corpus, tokenizer, None, cache_dir), cache_dir)
    counts = {"train": ready.n_train_documents, "held_out": ready.n_held_out_documents}
    for split in needs:
        if counts[split] == 0:
            raise UserError(
                f"the corpus has {sum(counts.values())} documents, and none to "
                f"{'train on' if split == 'train' else 'hold out'} with data.held_out={corpus.held_out}; change "
                "data.held_out, or cut the text into more documents (data=text: data.split_regex)"
            )
    some = ready.held_out if isinstance(ready.train, Mix) or "train" not in needs else ready.train
    check_known(np.asarray(some[:SAMPLE]), unknown_token(ready.tokenizer, ready.end_of_document), "the corpus")
    return ready


def opened(entry: Entry, cache_dir: Path, most_bytes: int = CACHE_BYTES) -> TokenData:
    """The tokens of a prepared corpus. most_bytes: the largest total size of the local copies of remote shards."""
    meta, shards, streams = entry.meta, Shards(cache_dir / "shards", most_bytes), {}
    for array in FILES:
        segments = [
            Segment(file, 0, file.n_values)
            for number, record in enumerate(meta["shards"])
            for file in shard_files(entry.store, meta, number, record, [array])
        ]
        streams[array] = TokenStream(segments, dtype_of_ids(meta["n_vocab"]) if array in SPLITS else BYTES, shards)
    return TokenData(
        **streams,
        n_train_documents=meta["train"]["documents"],
        n_held_out_documents=meta["held_out"]["documents"],
        n_held_out_bytes=meta["held_out"]["bytes"],
        n_vocab=meta["n_vocab"],
        end_of_document=entry.vocabulary.end_of_document,
        tokenizer=entry.vocabulary.tokenizer,
        corpus_hash=meta["corpus_hash"],
        tokenizer_hash=meta["tokenizer_hash"],
        n_groups=max(1, -(-len(streams["train"].segments) // GROUP)),
    )


def shared_tokenizer(mixture: Mixture, recipe: TokenizerRecipe) -> TokenizerRecipe:
    """One tokenizer for all sources: from a prepared source if there is one, or else built from all sources."""
    for corpus in mixture.sources.values():
        if isinstance(corpus, Prepared):
            corpus.check_tokenizer(recipe)
            return AlreadyOpen(corpus.entry.vocabulary)
    return AlreadyOpen(recipe.build(mixture.training_texts()))


def _mixed(mixture: Mixture, recipe: TokenizerRecipe, cache_dir: Path, needs: Sequence[str]) -> TokenData:
    """A mixture, with all sources tokenised by one tokenizer."""
    tokenizer = shared_tokenizer(mixture, recipe)
    parts = [prepare(corpus, tokenizer, cache_dir, needs=needs) for corpus in mixture.sources.values()]
    first, streams = parts[0], [(part.held_out, part.held_out_bytes) for part in parts]
    held_out, held_out_bytes = mixture.held_out_streams(streams, first.end_of_document)  # type: ignore[arg-type]  # no array
    return TokenData(
        train=Mix(tuple(part.train for part in parts), tuple(mixture.shares), tuple(mixture.sources)),  # type: ignore[misc]  # no Mix
        held_out=held_out,
        held_out_bytes=held_out_bytes,
        n_train_documents=sum(part.n_train_documents for part in parts),
        n_held_out_documents=int(
            ((np.asarray(held_out) == first.end_of_document) & (np.asarray(held_out_bytes) == 0)).sum()
        ),
        n_held_out_bytes=held_out_bytes.sum(),
        n_vocab=first.n_vocab,
        end_of_document=first.end_of_document,
        tokenizer=first.tokenizer,
        corpus_hash=mixture.identity(),
        tokenizer_hash=first.tokenizer_hash,
        n_groups=[int(part.n_groups) for part in parts],  # type: ignore[arg-type]
    )
