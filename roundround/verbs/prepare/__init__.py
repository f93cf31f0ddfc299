"""`roundround prepare`: a corpus tokenised once. Tested by tests/training/test_prepared_runs.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from roundround.config.verb import HOW, PAIRS, TASKS, TRAIN, WHERE, Verb, at_least_one, key

if TYPE_CHECKING:
    from roundround.config.verb import Node
    from roundround.data.corpora import Source
    from roundround.data.tokenizers import TokenizerRecipe
    from roundround.records.loggers.base import Logger


@dataclass(kw_only=True, repr=False, eq=False)
class PrepareConfig:
    """The config of `roundround prepare`."""

    data: Node[Source]
    tokenizer: Node[TokenizerRecipe]
    to: str | None = key(WHERE)
    n_processes: int | None = key(HOW)
    outputs: str = key(WHERE)
    logger: Node[Logger] = key(WHERE)

    def check(self) -> None:
        at_least_one(n_processes=self.n_processes)


VERB = Verb(
    name="prepare",
    run="roundround.verbs.prepare.run:prepare",
    order=2,
    purpose=TRAIN,
    help="Tokenise a corpus once, in parallel, into shards.",
    config=PrepareConfig,
    refuses={
        "data": (*TASKS, *PAIRS, "roundround.data.prepared.Prepared"),
        "tokenizer": ("roundround.data.tokenizers.OfCorpus",),
    },
    title="Prepare",
)
