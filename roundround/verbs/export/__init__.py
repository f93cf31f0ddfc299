"""`roundround export`: a trained run as a folder for Hugging Face's transformers.

Tested by tests/trained/test_export_command.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from roundround.config.verb import ELSEWHERE, PAIRS, TASKS, WHERE, Verb, check_checkpoint, key
from roundround.support.errors import UserError

if TYPE_CHECKING:
    from roundround.config.verb import Node
    from roundround.data.corpora import Source
    from roundround.records.loggers.base import Logger


@dataclass(kw_only=True, repr=False, eq=False)
class ExportConfig:
    """The config of `roundround export`. data: None for the run's own data."""

    run: str = key(WHERE)
    to: str | None = key(WHERE)
    checkpoint: str
    stock: bool
    trust: bool = key(WHERE)
    outputs: str = key(WHERE)
    logger: Node[Logger] = key(WHERE)
    data: Node[Source] | None = None

    def check(self) -> None:
        check_checkpoint(self.checkpoint)
        if not self.to:
            raise UserError("to has no value; give to=DIR, the folder to write")


VERB = Verb(
    name="export",
    run="roundround.verbs.export.run:export",
    order=16,
    purpose=ELSEWHERE,
    help="Save a run as a folder for Hugging Face transformers.",
    config=ExportConfig,
    refuses={"data": (*TASKS, *PAIRS)},
    title="Export",
)
