"""`roundround max-retrieval`: finding the largest item in sets that are larger than in training.

Tested by tests/config/test_verbs.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from roundround.config.verb import (
    HOW,
    MEASURE,
    MEASURED,
    REPLICATE,
    WHERE,
    FigureStyle,
    Flag,
    Verb,
    at_least_one,
    key,
)
from roundround.support.errors import UserError, nearest

if TYPE_CHECKING:
    from roundround.config.verb import Node
    from roundround.papers.max_retrieval.model import MaxRetrieval
    from roundround.records.loggers.base import Logger
    from roundround.softmax.base import AttentionSoftmax
    from roundround.training.optim import OptimizerFactory


@dataclass(kw_only=True, repr=False, eq=False)
class MaxRetrievalConfig:
    """The config of `roundround max-retrieval`."""

    model: Node[MaxRetrieval]
    optim: Node[OptimizerFactory]
    normalisers: Node[AttentionSoftmax] = key(MEASURED)
    logger: Node[Logger] = key(WHERE)
    outputs: str = key(WHERE)
    figures: FigureStyle = key(WHERE)
    seed: int = key(REPLICATE)
    seeds: int = key(REPLICATE)
    max_steps: int
    batch_size: int
    min_items: int
    max_items: int
    size_of_each_set: bool
    evaluate: list[str] = key(MEASURED)
    test_sizes: list[int] = key(MEASURED)
    test_sets: int
    fit: bool
    fit_sizes: list[int]
    fit_inputs: int
    log_every: int = key(HOW)
    checkpoint_every: int = key(HOW)
    device: str = key(HOW)
    run: str | None = key(WHERE)
    resume: str | None = key(WHERE)
    trust: bool = key(WHERE)
    bfloat16: str
    one_temperature: bool

    def check(self) -> None:
        at_least_one(
            seeds=self.seeds,
            max_steps=self.max_steps,
            batch_size=self.batch_size,
            min_items=self.min_items,
            test_sets=self.test_sets,
            fit_inputs=self.fit_inputs,
            log_every=self.log_every,
            checkpoint_every=self.checkpoint_every,
        )
        self.bfloat16 = self.bfloat16.lower()  # true and false come as True and False
        if self.bfloat16 not in ("false", "true", "factors"):
            raise UserError(f"bfloat16={self.bfloat16} must be false, true or factors")
        for name, sizes in (("test_sizes", self.test_sizes), ("fit_sizes", self.fit_sizes)):
            if not sizes or min(sizes) < 1 or sorted(set(sizes)) != sizes:
                raise UserError(f"{name}={sizes} must be numbers of items from 1 up, each larger than the one before")
        names = [str(name) for name in self.normalisers]
        for name in self.evaluate:
            if name not in (*names, "all"):
                raise UserError(f"no normaliser '{name}' to evaluate{nearest(name, [*names, 'all'])}")

    @property
    def names(self) -> list[str]:
        """The normalisers to evaluate, in the order of `normalisers`; the plain softmax is always the first."""
        names = [str(name) for name in self.normalisers]
        wanted = {"softmax", *(names if "all" in self.evaluate else self.evaluate)}
        if self.fit or "fitted" in wanted:
            wanted |= {"adaptive_temperature", "fitted"}
        return [name for name in names if name in wanted]


VERB = Verb(
    name="max-retrieval",
    aliases=("maxkey",),
    run="roundround.verbs.max_retrieval.run:max_retrieval",
    order=7,
    purpose=MEASURE,
    help="Max retrieval: how attention disperses with more items.",
    config=MaxRetrievalConfig,
    refuses={"optim": ("roundround.training.optim.Muon",)},
    flags={
        "--temp": Flag(
            override="evaluate=[softmax,{}]",
            short={"adaptive": "adaptive_temperature"},
        )
    },
    parallel=True,
    measures=True,
    repeats=True,
    title="Max retrieval",
    page="roundround.report.max_retrieval:view",
)
