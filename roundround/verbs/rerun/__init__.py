"""`roundround rerun`: a run once more.

Tested by tests/config/test_verbs.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from roundround.config.verb import PAST, WHERE, Verb, key
from roundround.support.errors import UserError

if TYPE_CHECKING:
    from roundround.config.verb import Node
    from roundround.records.loggers.base import Logger


@dataclass(kw_only=True, repr=False, eq=False)
class RerunConfig:
    """The config of `roundround rerun`."""

    paths: list[str]
    verb: str | None
    rtol: float
    trust: bool = key(WHERE)
    outputs: str = key(WHERE)
    logger: Node[Logger] = key(WHERE)

    def check(self) -> None:
        if len(self.paths) != 1:
            given = f"; given are {len(self.paths)}" if self.paths else ""
            raise UserError(f"give one run: a run directory, last, or last~3{given}")


VERB = Verb(
    name="rerun",
    run="roundround.verbs.rerun.run:rerun",
    order=14,
    purpose=PAST,
    help="Do a run again: do its numbers come out the same?",
    config=RerunConfig,
    words="paths",
    title="Rerun",
)
