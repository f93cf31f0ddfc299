"""`roundround check`: which rotation a model really performs, and vectors to hold an implementation against.

Tested by tests/asking/test_applied_rotations.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from roundround.config.verb import (
    ARCHITECTURES,
    ELSEWHERE,
    HOW,
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

FARTHEST = 2**24  # float32 knows no position beyond by itself


@dataclass(kw_only=True, repr=False, eq=False)
class CheckConfig:
    """What `roundround check` reads: a run, a model, or an encoding with a file to write or to hold it against."""

    run: str | None = key(WHERE)
    checkpoint: str
    to: str | None = key(WHERE)
    against: str | None = key(WHERE)
    n_heads: int
    n_key_heads: int
    head_dim: int
    train_length: int
    positions: list[int]
    seed: int = key(REPLICATE)
    device: str = key(HOW)
    trust: bool = key(WHERE)
    outputs: str = key(WHERE)
    logger: Node[Logger] = key(WHERE)
    model: Node[Pretrained] | None = None
    pe: Node[PositionalEncoding] | None = None

    def check(self) -> None:
        check_checkpoint(self.checkpoint)
        check_seed(seed=self.seed)
        given = [name for name in ("run", "model", "pe") if getattr(self, name) is not None]
        if len(given) != 1:
            if given:
                raise UserError(f"{' and '.join(f'{name}=' for name in given)} are to be checked; give one of them")
            raise UserError(
                "there is nothing to check; give run=last, model=stories260k (or model=hf model.path=DIR), or pe=... "
                "with to=FILE or against=FILE"
            )
        files = [name for name in ("to", "against") if getattr(self, name) is not None]
        if given == ["pe"] and len(files) != 1:
            raise UserError("pe= is for vectors: give to=FILE.safetensors to write them, or against=FILE to compare")
        if given != ["pe"] and files:
            raise UserError(f"{files[0]}= is for the vectors of an encoding; give pe=... in place of {given[0]}=")
        at_least_one(n_heads=self.n_heads, n_key_heads=self.n_key_heads, train_length=self.train_length)
        at_least_one(head_dim=self.head_dim)
        if self.n_heads % self.n_key_heads:
            raise UserError(f"n_heads={self.n_heads} must be a multiple of n_key_heads={self.n_key_heads}")
        ascending = all(a < b for a, b in zip(self.positions, self.positions[1:], strict=False))
        if not self.positions or not ascending or self.positions[0] < 0 or self.positions[-1] > FARTHEST:
            raise UserError(f"positions={self.positions} must ascend, from 0 to {FARTHEST:,}")


VERB = Verb(
    name="check",
    run="roundround.verbs.check.run:check",
    order=15,
    purpose=ELSEWHERE,
    help="Which rotation a model really performs; test vectors.",
    config=CheckConfig,
    refuses={"model": ARCHITECTURES},
    title="Check",
)
