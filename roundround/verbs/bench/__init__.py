"""`roundround bench`: variants on the standard set.

Tested by tests/config/test_verbs.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from roundround.config.verb import HOW, REPLICATE, TRAIN, WHERE, Verb, at_least_one, check_seed, key
from roundround.support.errors import UserError

if TYPE_CHECKING:
    from roundround.config.verb import Node
    from roundround.records.loggers.base import Logger


@dataclass(kw_only=True, repr=False, eq=False)
class BenchConfig:
    """The config of `roundround bench`.

    where: the key=value filters that choose variants. files: the files with further stored values.
    """

    where: list[str]
    files: list[str]
    seeds: int = key(REPLICATE)
    set: str
    size: str
    baseline: list[str]
    tune: bool
    device: str = key(HOW)
    trust: bool = key(WHERE)
    history: str | None = key(WHERE)
    format: str = key(WHERE)
    outputs: str = key(WHERE)
    logger: Node[Logger] = key(WHERE)
    seed: int | None = key(REPLICATE)

    def check(self) -> None:
        at_least_one(seeds=self.seeds)
        if self.seed is not None:
            check_seed(seed=self.seed)
        if self.format not in ("table", "json"):
            raise UserError(f"no format={self.format} (choices: table, json)")


VERB = Verb(
    name="bench",
    run="roundround.verbs.bench.run:bench",
    order=3,
    purpose=TRAIN,
    help="Train a variant on the standard set; compare it with all.",
    config=BenchConfig,
    words="files",
    filters="where",
    sweeps_filters=True,
    pairs=("baseline",),
    title="Standard set",
    page="roundround.report.bench:view",
)
