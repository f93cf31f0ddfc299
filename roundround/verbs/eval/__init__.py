"""`roundround eval`: perplexity of a model, or right answers to a task.

Tested by tests/config/test_verbs.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from roundround.config.verb import (
    ARCHITECTURES,
    HOW,
    MEASURE,
    MEASURED,
    WHERE,
    FigureStyle,
    Verb,
    at_least_one,
    check_checkpoint,
    checked_bos,
    key,
)
from roundround.support.errors import UserError

if TYPE_CHECKING:
    from roundround.config.verb import Node
    from roundround.data.corpora import Source
    from roundround.hf.load import Pretrained
    from roundround.model.block import LayerKind
    from roundround.pe.base import PositionalEncoding
    from roundround.records.loggers.base import Logger
    from roundround.softmax.base import AttentionSoftmax

HARNESS = "lm_eval:"


@dataclass(kw_only=True, repr=False, eq=False)
class EvalConfig:
    """The config of `roundround eval`. pe, softmax, pattern, data: None keeps the run's parts and data."""

    run: str = key(WHERE)
    checkpoint: str
    length: list[int] = key(MEASURED)
    prefix: list[int] = key(MEASURED)
    stride: int | None
    bos: str = key(MEASURED)
    max_tokens: int | None
    examples: int
    by: str
    tasks: list[str] = key(MEASURED)
    tasks_path: str | None = key(MEASURED)
    batch_tokens: int = key(HOW)
    dispersion: bool = key(MEASURED)
    table: str = key(WHERE)
    device: str = key(HOW)
    trust: bool = key(WHERE)
    outputs: str = key(WHERE)
    figures: FigureStyle = key(WHERE)
    logger: Node[Logger] = key(WHERE)
    pe: Node[PositionalEncoding] | None = None
    softmax: Node[AttentionSoftmax] | None = None
    pattern: Node[LayerKind] | None = None
    data: Node[Source] | None = None
    model: Node[Pretrained] | None = None

    def check(self) -> None:
        if self.table not in ("stderr", "stdout"):
            raise UserError(f"table={self.table} must be stderr or stdout")
        at_least_one(examples=self.examples)
        check_windows(self.length, stride=self.stride, max_tokens=self.max_tokens, batch_tokens=self.batch_tokens)
        if self.by not in ("forcing", "generation"):
            raise UserError(
                f"by={self.by} must be forcing (the model gets the right tokens before each answer token) or "
                "generation (the model writes the answer)"
            )
        if self.by == "generation" and self.dispersion:
            raise UserError(
                "dispersion=true measures attention on whole examples, but with by=generation the model writes the "
                "answers; leave out one of the two"
            )
        names = [name.removeprefix(HARNESS) for name in self.tasks]  # the prefix may stand before the first task alone
        if names and not self.tasks[0].startswith(HARNESS):
            raise UserError(
                f"tasks={names[0]} needs the prefix of EleutherAI's harness; give tasks={HARNESS}{names[0]}"
            )
        self.tasks = names
        if self.tasks_path is not None and not self.tasks:
            raise UserError(
                "tasks_path= is a folder of lm_eval's tasks, but no task is named; give tasks=lm_eval:NAME too"
            )
        check_checkpoint(self.checkpoint)
        if not self.prefix or min(self.prefix) < 0:
            raise UserError(f"prefix={min(self.prefix, default='[]')} must be 0 or more tokens, such as prefix=0,512")
        self.bos = checked_bos(self.bos)


def check_windows(lengths: Sequence[int], *, stride: int | None, max_tokens: int | None, batch_tokens: int) -> None:
    """Raises UserError for lengths or a stride with which no text can be cut into windows."""
    at_least_one(batch_tokens=batch_tokens, max_tokens=max_tokens)
    at_least_one(length=min(lengths, default=0))
    if stride is not None and not 1 <= stride <= min(lengths):
        raise UserError(f"stride={stride} must be from 1 to the smallest length, {min(lengths)}")


VERB = Verb(
    name="eval",
    run="roundround.verbs.eval.run:evaluate",
    order=4,
    purpose=MEASURE,
    help="Perplexity, or accuracy on a task, at several lengths.",
    config=EvalConfig,
    refuses={"model": ARCHITECTURES},
    partly=("pattern",),
    parallel=True,
    measures=True,
    repeats=True,
    title="Evaluation",
    page="roundround.report.eval_panels:view",
)
