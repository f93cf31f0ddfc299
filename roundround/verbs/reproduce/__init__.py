"""`roundround reproduce`: the papers' figures and tables, made again.

Tested by tests/config/test_verbs.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from roundround.config.verb import ARCHITECTURES, HOW, PAIRS, PAPERS, TASKS, WHERE, FigureStyle, Flag, Verb, key
from roundround.support.errors import UserError

if TYPE_CHECKING:
    from roundround.config.verb import Node
    from roundround.data.corpora import Source
    from roundround.hf.load import Pretrained
    from roundround.records.loggers.base import Logger


@dataclass(kw_only=True, repr=False, eq=False)
class ReproduceConfig:
    """The config of `roundround reproduce`. model: None for the papers' own models."""

    item: list[str]
    device: str = key(HOW)
    trust: bool = key(WHERE)
    write_docs: bool = key(WHERE)
    outputs: str = key(WHERE)
    figures: FigureStyle = key(WHERE)
    logger: Node[Logger] = key(WHERE)
    model: Node[Pretrained] | None = None
    data: Node[Source] | None = None

    def check(self) -> None:
        for name in ("model", "data"):
            if getattr(self, name) is not None and not self.item:
                raise UserError(
                    f"{name}= is only for items that are to be made; name some items, such as rope.fig3, or all"
                )


VERB = Verb(
    name="reproduce",
    run="roundround.verbs.reproduce.run:reproduce",
    order=9,
    purpose=PAPERS,
    help="Make the papers' figures and tables, and compare them.",
    config=ReproduceConfig,
    refuses={"model": ARCHITECTURES, "data": (*TASKS, *PAIRS)},
    words="item",
    names=True,
    flags={"--write-docs": Flag(override="write_docs=true")},
    title="Reproduction",
)
