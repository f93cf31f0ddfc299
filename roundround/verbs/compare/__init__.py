"""`roundround compare`: runs compared.

Tested by tests/config/test_verbs.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from roundround.config.verb import PAST, WHERE, FigureStyle, Verb, key
from roundround.support.errors import UserError, nearest

if TYPE_CHECKING:
    from roundround.config.verb import Node
    from roundround.records.loggers.base import Logger

COMPARISON_FORMATS = ("table", "csv", "latex", "markdown", "json")


@dataclass(kw_only=True, repr=False, eq=False)
class CompareConfig:
    """The config of `roundround compare`. where: the key=value filters that choose runs."""

    paths: list[str]
    baseline: list[str]
    metric: list[str]
    where: list[str]
    format: str = key(WHERE)
    outputs: str = key(WHERE)
    figures: FigureStyle = key(WHERE)
    logger: Node[Logger] = key(WHERE)

    def check(self) -> None:
        if self.format not in COMPARISON_FORMATS:
            raise UserError(f"no format={self.format}{nearest(self.format, COMPARISON_FORMATS)}")


VERB = Verb(
    name="compare",
    run="roundround.verbs.compare.run:compare",
    order=13,
    purpose=PAST,
    help="Compare runs: means over seeds, intervals, paired tests.",
    config=CompareConfig,
    words="paths",
    filters="where",
    pairs=("baseline",),
    title="Comparison",
    page="roundround.report.comparison:view",
)
