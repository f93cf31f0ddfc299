"""What a statement is: a class whose check compares numbers of this program's own code with where they must lie.

Tested by tests/papers/test_claims.py and tests/verbs/test_theory.py.
"""

from __future__ import annotations

import importlib
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from roundround.papers import CLAIMS
from roundround.probing.probed_model import ProbedModel
from roundround.support.errors import UserError, nearest
from roundround.support.panels import Panel


@dataclass(frozen=True)
class Comparison:
    """A number that a check looks at, and the interval in which it must lie, ends included.

    published: the paper's number, where it prints one. An end is infinite where there is none.
    Of a measured number (`roundround reproduce`): error, half of the 95 % interval of its difference from the published
    one, infinite where that is not known; signed, whether 0 means no effect.
    """

    what: str
    ours: float
    low: float
    high: float
    published: float | None = None
    error: float = 0.0
    signed: bool = False

    @property
    def holds(self) -> bool:
        return self.low <= self.ours <= self.high  # NaN does not

    @property
    def is_judged(self) -> bool:
        return math.isfinite(self.low) or math.isfinite(self.high)

    @property
    def margin(self) -> float:
        """How far from failing: 1 in the middle of the interval, 0 at an end, negative outside.

        Where there is one end alone, the distance to it as a share of the end (of 1 where it is 0).
        """
        room = min(self.ours - self.low, self.high - self.ours)
        if math.isfinite(self.low) and math.isfinite(self.high):
            half = (self.high - self.low) / 2
            return room / half if half else float(room == 0)
        end = self.low if math.isfinite(self.low) else self.high
        return math.inf if math.isinf(end) else room / (abs(end) or 1.0)


def near(
    what: str, ours: float, expected: float, tolerance: float, published: float | None = None, error: float = 0.0
) -> Comparison:
    """Must lie within `tolerance` of `expected`."""
    return Comparison(what, float(ours), expected - tolerance, expected + tolerance, published, error)


def as_printed(what: str, ours: float, published: float, tolerance: float, error: float = 0.0) -> Comparison:
    """Must be the paper's number, within `tolerance` for its rounding."""
    return near(what, ours, published, tolerance, published, error)


def at_least(what: str, ours: float, bound: float, error: float = 0.0) -> Comparison:
    return Comparison(what, float(ours), bound, math.inf, error=error)


def at_most(what: str, ours: float, bound: float, error: float = 0.0) -> Comparison:
    return Comparison(what, float(ours), -math.inf, bound, error=error)


def shown(what: str, ours: float, published: float | None = None) -> Comparison:
    """A number that is shown and not judged."""
    return Comparison(what, float(ours), -math.inf, math.inf, published)


@dataclass(frozen=True)
class Finding:
    """What a check found. remark: a sentence beside the numbers, where they need one.

    can_fail: False where the numbers follow from algebra whatever the model, or are measurements: such a finding is
    shown. An interval is then there for faults of this program alone.
    """

    comparisons: Sequence[Comparison]
    picture: Panel | None = None
    remark: str = ""
    can_fail: bool = True

    @property
    def holds(self) -> bool:
        """Whether no number speaks against it."""
        return self.verdict != "FAILS"

    @property
    def verdict(self) -> str:
        """holds; shown, where no number could have failed; FAILS."""
        words = [self.verdict_of(comparison) for comparison in self.comparisons]
        return "FAILS" if "FAILS" in words or not words else "holds" if "holds" in words else "shown"

    def verdict_of(self, comparison: Comparison) -> str:
        if not comparison.holds:
            return "FAILS" if comparison.is_judged else "shown"
        return "holds" if self.can_fail and comparison.is_judged else "shown"

    @property
    def closest(self) -> Comparison:
        """The number that is nearest to failing, or fails most."""
        return min(self.comparisons, key=lambda comparison: np.nan_to_num(comparison.margin, nan=-math.inf))


@dataclass(frozen=True)
class Trained:
    """A trained model, and texts as token ids, for the statements that can be asked of one."""

    probed: ProbedModel
    texts: Sequence[Sequence[int]]


class Claim(ABC):
    """A statement. The docstring of a class says it in one sentence, then the formula, then where it stands.

    title: a few words for a table.
    """

    title: ClassVar[str]

    @abstractmethod
    def check(self) -> Finding:
        """The statement on the paper's construction, in float64 unless stated otherwise; seconds, no network."""

    def check_model(self, trained: Trained) -> Finding | None:
        """The statement asked of a trained model; None where it is about no model.

        What is true of every model by algebra, and what a theorem that such a thing exists does not promise of each, is
        a finding that cannot fail.
        """
        return None

    @classmethod
    def words(cls) -> tuple[str, str, str]:
        """(statement, formula, source): the paragraphs of the docstring, the first, those between, and the last."""
        paragraphs = [" ".join(part.split()) for part in (cls.__doc__ or "").split("\n\n") if part.strip()]
        return paragraphs[0], "; ".join(paragraphs[1:-1]), paragraphs[-1]


@dataclass(frozen=True)
class Answer:
    """What came of asking one statement, such as rope.thm_6_1: of its construction, or of the model of that name."""

    name: str
    claim: Claim
    finding: Finding
    model: str | None = None

    @property
    def label(self) -> str:
        return self.name if self.model is None else f"{self.name} ({self.model})"


def claim_of(name: str) -> Claim:
    """The statement of this name. UserError where there is none."""
    if name not in CLAIMS:
        raise UserError(f"no claim '{name}'{nearest(name, CLAIMS)}")
    module, _, kind = CLAIMS[name].rpartition(".")
    claim: Claim = getattr(importlib.import_module(f"roundround.papers.{module}"), kind)()
    return claim
