"""`roundround check`: which rotation a model really applies, and test vectors for implementations of an encoding.

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
    check_checkpoint,
    check_seed,
    key,
)
from roundround.support.errors import UserError

if TYPE_CHECKING:
    from roundround.config.verb import Node
    from roundround.data.corpora import Source
    from roundround.engines.engine import Engine
    from roundround.hf.load import Pretrained
    from roundround.pe.base import PositionalEncoding
    from roundround.records.loggers.base import Logger


@dataclass(kw_only=True, repr=False, eq=False)
class CheckConfig:
    """The config of `roundround check`. It names a run, a model or an encoding.

    to: the file of vectors to write. against: the file of vectors to compare. An encoding needs one of these two files.
    """

    run: str | None = key(WHERE)
    checkpoint: str
    weights: bool
    suite: list[str] = key(WHERE)
    answers: str | None = key(WHERE)
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
    data: Node[Source] | None = None
    engine: Node[Engine] | None = None

    def check(self) -> None:
        check_checkpoint(self.checkpoint)
        check_seed(seed=self.seed)
        beside = [name for name in ("to", "against", "answers", "engine") if getattr(self, name) is not None]
        allowed = {"pe": ("to", "against"), "suite": ("to", "answers", "engine")}.get("".join(self.given), ())
        if len(self.given) != 1 or len(beside) != bool(allowed) or not {*beside} <= {*allowed}:
            given = " ".join(f"{name}=" for name in (*self.given, *beside)) or "nothing"
            others = (
                "one of run=last, model=stories260k (or model=hf model.path=DIR), pe=... with to=FILE.safetensors (to "
                "write vectors), pe=... with against=FILE (to compare vectors), "
            )
            raise UserError(
                f"check got {given}; give {others * (self.given != ['suite'])}suite=all with to=DIR (to write cases), "
                "or suite=DIR with engine=NAME or answers=DIR (to judge them)"
            )
        if self.weights != (self.data is not None) or (self.weights and self.model is None):
            raise UserError("weights=true and text=FILE go together, with model=hf model.path=DIR")

    @property
    def given(self) -> list[str]:
        """The keys among run, model, pe and suite that have a value. A valid config has exactly one."""
        return [name for name in ("run", "model", "pe", "suite") if getattr(self, name)]


VERB = Verb(
    name="check",
    run="roundround.verbs.check.run:check",
    order=15,
    purpose=ELSEWHERE,
    help="Which rotation a model really applies; test vectors.",
    config=CheckConfig,
    refuses={"model": ARCHITECTURES},
    title="Check",
)
