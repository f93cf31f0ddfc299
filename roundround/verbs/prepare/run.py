"""`roundround prepare`: tokenises a corpus once, in parallel, into shards that training reads.

Tested by tests/training/test_prepared_runs.py and tests/faults/test_prepare.py.
"""

from __future__ import annotations

import os
import time
from typing import Any

from omegaconf import DictConfig

from roundround.config.build import build, checked
from roundround.data.corpora import Corpus
from roundround.data.prepared import Mixture, Prepared, default_cache_dir, make, shared_tokenizer
from roundround.data.shards import Store, open_store
from roundround.data.tokenising import COUNTS, SPLITS, Entry
from roundround.data.tokenizers import TokenizerRecipe
from roundround.records.opening import opened_run
from roundround.records.run import Invocation
from roundround.support.console import print_status
from roundround.support.errors import UserError, printable
from roundround.verbs.prepare import PrepareConfig


def prepare(cfg: DictConfig, invocation: Invocation) -> None:
    """Tokenise the corpus, or each source of a mixture, unless it is tokenised already.

    Prints the address and the counts of each prepared corpus.
    """
    config = checked(PrepareConfig, cfg)
    corpus = corpus_of(config)
    recipe = build(config.tokenizer, TokenizerRecipe)  # type: ignore[type-abstract]
    to = None if config.to is None else open_store(config.to, "to")
    own_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    n_processes = config.n_processes or own_cores or 1
    with opened_run(invocation, cfg) as run:
        began = time.monotonic()
        entries = prepared(corpus, recipe, to, n_processes)
        seconds = time.monotonic() - began
        run.note(data={"corpus_hash": corpus.identity(), "tokenizer_hash": entries[0].meta["tokenizer_hash"]})
        totals = {count: sum(entry.meta[split][count] for entry in entries for split in SPLITS) for count in COUNTS}
        numbers: dict[str, Any] = totals | {
            "shards": sum(len(entry.meta["shards"]) for entry in entries),
            "seconds": seconds,
            "tokens_per_second": totals["tokens"] / seconds,
        }
        addresses = [entry.store.address for entry in entries]
        records = [{"metric": name, "value": value} for name, value in numbers.items()]
        run.results([{"places": addresses, "n_processes": n_processes} | record for record in records], **numbers)
        for entry in entries:
            counted = ", ".join(f"{sum(entry.meta[split][count] for split in SPLITS):,} {count}" for count in COUNTS)
            address, shards = entry.store.address, entry.meta["shards"]
            print_status(printable(f"prepared in {address}: {counted} of text, {len(shards):,} shards"))
        print_status(f"in {seconds:,.1f} s with n_processes={n_processes}")


def corpus_of(config: PrepareConfig) -> Corpus:
    """The corpus. Raises UserError if it is prepared already, or if `data.separate_documents` is set."""
    source = build(config.data, Corpus)  # type: ignore[type-abstract]
    if isinstance(source, Prepared):
        raise UserError(
            f"{source.path} is prepared already; to train on it: roundround train data=prepared data.path={source.path}"
        )
    if source.separate_documents:
        raise UserError(
            "data.separate_documents does not change the tokens, so leave it out here; it is an option of: "
            "roundround train data=prepared"
        )
    return source


def prepared(corpus: Corpus, recipe: TokenizerRecipe, to: Store | None, n_processes: int) -> list[Entry]:
    """Prepare the corpus in `to`. In a mixture, each source that is not prepared yet gets a folder of its own name."""
    cache_dir = default_cache_dir()
    if not isinstance(corpus, Mixture):
        return [make(corpus, recipe, to, cache_dir, n_processes=n_processes)]
    tokenizer, entries = shared_tokenizer(corpus, recipe), []
    for name, source in corpus.sources.items():
        below = None if to is None else Store(f"{to.address}/{name}")
        own = source.entry if isinstance(source, Prepared) else None
        entries.append(own or make(source, tokenizer, below, cache_dir, n_processes=n_processes))
    return entries
