"""Prepared corpora: a corpus is tokenised once, into a place from which every later run reads its tokens.

The place is an entry of the token cache, a folder named by the hash of corpus and tokenizer, or wherever a user wants
it. Each opening checks it (`entry.py` says how, and what that promises). A document's tokens are followed by the
end-of-document token.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from roundround.data.corpora import Corpus, fingerprint, reading
from roundround.data.disk import MOVE, claimed
from roundround.data.entry import (
    BEGUN,
    META,
    SPLITS,
    Damaged,
    Entry,
    read_entry,
    read_sealed,
)
from roundround.data.mixture import Mixture
from roundround.data.places import Folder, Place
from roundround.data.prepared import Prepared
from roundround.data.stream import Mix, TokenStream
from roundround.data.token_data import TokenData, default_cache_dir, opened
from roundround.data.tokenising import is_ours, is_unfinished, write_corpus
from roundround.data.tokenizers import AlreadyOpen, OfCorpus, TokenizerRecipe
from roundround.support.errors import UserError

log = logging.getLogger(__name__)

FORMAT = 4  # of the files; raised with any change to them, so that old entries are not taken for new ones

__all__ = ["TokenData", "default_cache_dir", "make", "opened", "prepare"]


def prepare(corpus: Corpus, tokenizer: TokenizerRecipe, cache_dir: Path, *, needs: Sequence[str] = SPLITS) -> TokenData:
    """The corpus in tokens, from where it lies prepared, from the cache, or tokenised now.

    Safe with many processes: one works, the others wait. UserError where the corpus cannot be read, where a split that
    the caller needs has no document, or the disk is full.
    """
    if isinstance(corpus, Mixture):
        return _mixed(corpus, tokenizer, cache_dir, needs)
    if isinstance(corpus, Prepared):
        ready = _of_prepared(corpus, tokenizer, cache_dir)
    else:
        if corpus.held_out == 1 and "train" in needs:
            raise UserError(
                "data.held_out=1 holds every document out and leaves none to train on; give a smaller fraction"
            )
        ready = opened(make(corpus, tokenizer, None, cache_dir), cache_dir)
    _require(needs, ready, corpus.held_out)
    return ready


def make(
    corpus: Corpus, recipe: TokenizerRecipe, to: Place | None, cache_dir: Path, *, n_processes: int | None = None
) -> Entry:
    """The corpus prepared at a place, None: an entry of the cache. What is there already is not made again.

    n_processes: as `encoding` takes it. UserError as `prepare`, and where something else lies at the place.
    """
    with reading("the corpus"):
        corpus_hash = corpus.identity()
    place = to or entry_of(corpus_hash, recipe, cache_dir)

    def there(*, warn: bool) -> Entry | None:
        ready = _load(place, warn=warn)
        if to is not None:
            _refuse_others(to, ready, corpus_hash, recipe)
        return ready

    ready = there(warn=False)
    if ready is None:
        with claimed(place, cache_dir):  # perhaps after somebody has prepared another corpus there
            ready = there(warn=True) or _build(corpus, corpus_hash, recipe, place, cache_dir, n_processes)
    return ready


def entry_of(corpus_hash: str, recipe: TokenizerRecipe, cache_dir: Path) -> Folder:
    """Where the cache has a corpus in these tokens."""
    name = fingerprint(format=FORMAT, corpus=corpus_hash, tokenizer=recipe.identity())[:32]
    return Folder(cache_dir / name, disk=cache_dir, way_out=MOVE)


def _load(place: Place, *, warn: bool = False) -> Entry | None:
    """A whole prepared corpus, or None where there is none or it is damaged, of which `warn` makes a line."""
    there = place.names()
    if META not in there and not _is_no_folder(place):
        return None  # not there, or begun and not ended
    try:
        return read_entry(place)
    except Damaged as damage:
        if warn:
            log.warning("the tokens in %s are damaged (%s) and are made again", place.address, damage)
        return None


def _is_no_folder(place: Place) -> bool:
    """Whether something else lies where the folder is to be."""
    return isinstance(place, Folder) and os.path.lexists(place.path) and not os.path.isdir(place.path)


def _build(
    corpus: Corpus,
    corpus_hash: str,
    recipe: TokenizerRecipe,
    place: Place,
    cache_dir: Path,
    n_processes: int | None,
) -> Entry:
    """Tokenises what is not there yet. The place is claimed."""
    log.info(
        "tokenising the corpus once; %s in %s",
        "cached" if place.address.startswith(f"{cache_dir}") else "kept",
        place.address,
    )
    if isinstance(place, Folder) and _is_no_folder(place):
        place.path.unlink()  # a file where the entry was
    with place.writing():
        try:
            meta = write_corpus(corpus, corpus_hash, recipe, place, cache_dir, format=FORMAT, n_processes=n_processes)
        except BaseException:
            with suppress(Exception):
                _leave_whole_shards(place)
            raise
    log.info("tokenised: %s", "; ".join(_summary(split, meta[split]) for split in SPLITS))
    ready = _load(place)
    if ready is None:
        raise UserError(f"the tokens just written in {place.address} read back otherwise; does the disk fail? {MOVE}")
    return ready


def _leave_whole_shards(place: Place) -> None:
    """After a failure: what the next preparation can go on from stays, and nothing where there is no shard."""
    names = place.names()
    some = any(name.startswith("shard-") for name in names)
    for name in names:
        if is_ours(name) and (not some or is_unfinished(name)):
            place.remove(name)
    if isinstance(place, Folder) and not some:
        (place.path / ".lock").unlink(missing_ok=True)
        place.path.rmdir()


def _refuse_others(to: Place, ready: Entry | None, corpus_hash: str, recipe: TokenizerRecipe) -> None:
    """UserError where files of the user's, or another corpus, lie where this one is to be prepared."""
    if _is_no_folder(to):
        raise UserError(f"to={to.address} is no folder; {to.way_out}")
    names = [name for name in to.names() if name != ".lock"]
    if any(not is_ours(name) for name in names):
        raise UserError(f"to={to.address} holds other files; {to.way_out}, or an empty one")
    if not names:
        return
    with suppress(Damaged):
        begun = read_sealed(to, BEGUN) if ready is None else ready.meta
        if begun.get("corpus_hash") != corpus_hash or begun.get("tokenizer") != recipe.identity():
            raise UserError(f"to={to.address} holds another corpus, or this one in other tokens; {to.way_out}")


def _of_prepared(corpus: Prepared, recipe: TokenizerRecipe, cache_dir: Path) -> TokenData:
    """UserError where it was prepared with another tokenizer than the one that is wanted."""
    entry = corpus.entry()
    known = (entry.meta["tokenizer"], entry.meta["tokenizer_content"])
    if not isinstance(recipe, OfCorpus) and recipe.identity() not in known:
        raise UserError(
            f"{entry.place.address} was prepared with another tokenizer than the one asked for; leave tokenizer= out, "
            f"or prepare the corpus with that one (of a pretrained model: with model.special_tokens=plain, as it was "
            f"prepared)"
        )
    return opened(entry, cache_dir, corpus.cache_bytes)


def shared_tokenizer(mixture: Mixture, recipe: TokenizerRecipe) -> TokenizerRecipe:
    """One tokenizer for all sources: that of those that are prepared, else learnt from all in their shares."""
    for corpus in mixture.sources.values():
        if isinstance(corpus, Prepared):
            entry = corpus.entry()
            own = AlreadyOpen(entry.vocabulary)
            if not isinstance(recipe, OfCorpus) and recipe.identity() not in (entry.meta["tokenizer"], own.identity()):
                raise UserError(f"{corpus.path} was prepared with another tokenizer; leave tokenizer= out")
            return own
    with reading("the corpus"):
        return AlreadyOpen(recipe.build(mixture.training_texts()))


def _mixed(mixture: Mixture, recipe: TokenizerRecipe, cache_dir: Path, needs: Sequence[str]) -> TokenData:
    """The sources, in the tokens of one tokenizer."""
    tokenizer = shared_tokenizer(mixture, recipe)
    parts = [prepare(corpus, tokenizer, cache_dir, needs=needs) for corpus in mixture.sources.values()]
    first, trains = parts[0], [part.train for part in parts]
    streams = [(part.held_out, part.held_out_bytes) for part in parts]
    held_out, held_out_bytes = mixture.held_out_streams(streams)  # type: ignore[arg-type]  # what was prepared is no array
    assert all(isinstance(train, TokenStream) for train in trains), "a mixture holds no mixtures"
    return TokenData(
        train=Mix(tuple(trains), tuple(mixture.shares), tuple(mixture.sources)),  # type: ignore[arg-type]
        held_out=held_out,
        held_out_bytes=held_out_bytes,
        n_train_documents=sum(part.n_train_documents for part in parts),
        n_held_out_documents=sum(part.n_held_out_documents for part in parts),
        n_held_out_bytes=held_out_bytes.sum(),
        n_vocab=first.n_vocab,
        end_of_document=first.end_of_document,
        tokenizer=first.tokenizer,
        corpus_hash=mixture.identity(),
        tokenizer_hash=first.tokenizer_hash,
        n_groups=[int(part.n_groups) for part in parts],  # type: ignore[arg-type]
    )


def _require(needs: Sequence[str], data: TokenData, fraction: float | None) -> None:
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
