"""`roundround generate`: what a model writes.

Tested by tests/asking/test_generation.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from roundround.config.verb import (
    ARCHITECTURES,
    HOW,
    MEASURE,
    MEASURED,
    REPLICATE,
    WHERE,
    Verb,
    at_least_one,
    check_checkpoint,
    check_seed,
    key,
)
from roundround.support.errors import UserError

if TYPE_CHECKING:
    from roundround.config.verb import Node
    from roundround.hf.load import Pretrained
    from roundround.pe.base import PositionalEncoding
    from roundround.records.loggers.base import Logger
    from roundround.softmax.base import AttentionSoftmax


@dataclass(kw_only=True, repr=False, eq=False)
class GenerateConfig:
    """The config of `roundround generate`. model: None if a run is given. pe, softmax: None keeps the model's part."""

    checkpoint: str
    prompt: str = key(MEASURED)
    length: int = key(MEASURED)
    temperature: float
    top_k: int | None
    seed: int = key(REPLICATE)
    n: int
    interactive: bool = key(WHERE)
    device: str = key(HOW)
    trust: bool = key(WHERE)
    outputs: str = key(WHERE)
    logger: Node[Logger] = key(WHERE)
    run: str | None = key(WHERE, None)
    model: Node[Pretrained] | None = None
    pe: Node[PositionalEncoding] | None = None
    softmax: Node[AttentionSoftmax] | None = None

    def check(self) -> None:
        check_checkpoint(self.checkpoint)
        check_sampling(length=self.length, temperature=self.temperature, top_k=self.top_k, seed=self.seed, n=self.n)
        if self.interactive and self.n > 1:
            raise UserError(f"interactive=true continues one text; leave out n={self.n}")
        if (self.run is None) == (self.model is None):
            raise UserError("give run= for a model trained here or model= for a pretrained one, not both")


def check_sampling(*, length: int, temperature: float, top_k: int | None, seed: int, n: int) -> None:
    """Raises UserError for settings with which no text can be generated."""
    at_least_one(length=length, n=n, top_k=top_k)
    check_seed(seed=seed)
    if not 0 <= temperature < math.inf:
        raise UserError(f"temperature={temperature:g} must be a finite number, 0 or above")


VERB = Verb(
    name="generate",
    run="roundround.verbs.generate.run:generate",
    order=6,
    purpose=MEASURE,
    help="Let a model continue a text, token by token.",
    config=GenerateConfig,
    refuses={"model": ARCHITECTURES},
    title="Generated text",
    page="roundround.report.generated:view",
)
