"""`roundround prepare`: a corpus tokenised once.

Tested by tests/config/test_verbs.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from roundround.config.verb import HOW, PAIRS, TASKS, TRAIN, WHERE, Verb, at_least_one, key
from roundround.support.errors import UserError

MOST_PROCESSES = 256  # one process reads the text for all: beyond about twenty the others wait for it


@dataclass(kw_only=True, repr=False, eq=False)
class PrepareConfig:
    """What `roundround prepare` reads."""

    data: Any
    tokenizer: Any
    to: str | None = key(WHERE)
    n_processes: int | None = key(HOW)
    outputs: str = key(WHERE)
    logger: Any = key(WHERE)

    def check(self) -> None:
        at_least_one(n_processes=self.n_processes)
        if self.n_processes is not None and self.n_processes > MOST_PROCESSES:
            raise UserError(f"n_processes={self.n_processes} must be at most {MOST_PROCESSES}")
        if self.to is not None and not self.to.strip():
            raise UserError("to= is empty; give a folder or an address, or leave it out for the token cache")


VERB = Verb(
    name="prepare",
    run="roundround.verbs.prepare.run:prepare",
    place=2,
    purpose=TRAIN,
    help="Tokenise a corpus once, in parallel, into shards.",
    config=PrepareConfig,
    refuses={
        "data": (*TASKS, *PAIRS, "roundround.data.prepared."),
        "tokenizer": ("roundround.data.tokenizers.OfCorpus",),
    },
    title="Prepare",
)
