"""A number beside the interval in which it must lie, the one rule that judges it, and what a statement is.

Tested by tests/papers/test_claims.py, tests/papers/test_figure.py and tests/verbs/test_theory.py.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from roundround.papers import ASKED_OF_MODELS, CLAIMS
from roundround.probing.probed_model import ProbedModel
from roundround.support.errors import UserError, nearest
from roundround.support.panels import Panel

AGREES, SIGN_AGREES, NOT_TOLD_APART, DIFFERS = "agrees", "sign agrees", "not told apart", "differs"
JUDGED = (AGREES, SIGN_AGREES, NOT_TOLD_APART, DIFFERS)  # from best to worst
SHOWN = "shown"  # the verdict on a number that is not judged
HOLDS, FAILS = "holds", "FAILS"  # the verdicts on a statement


@dataclass(frozen=True)
class CheckedNumber:
    """A number that a check computed, and the interval in which it must lie, ends included.

    published: the paper's number, where it prints one. An end is infinite where there is none. error: for a measured
    number, half of the 95 % interval of its difference from the published one, infinite where that is not known.
    signed: whether 0 means no effect.
    """

    what: str
    ours: float
    low: float
    high: float
    published: float | None = None
    error: float = 0.0
    signed: bool = False

    @property
    def is_judged(self) -> bool:
        return math.isfinite(self.low) or math.isfinite(self.high)

    @property
    def verdict(self) -> str:
        """By the one rule, `figures.RULE`. NaN differs, because it would hide what is broken."""
        if not self.is_judged:
            return SHOWN
        low, high = self.ours - self.error, self.ours + self.error
        if math.isnan(self.ours) or high < self.low or low > self.high:
            return DIFFERS
        if self.low <= low and high <= self.high:
            return AGREES if math.isfinite(self.low) and math.isfinite(self.high) else SIGN_AGREES
        if self.signed and self.published and (low > 0 if self.published > 0 else high < 0):
            return SIGN_AGREES
        return NOT_TOLD_APART

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
) -> CheckedNumber:
    """Must lie within `tolerance` of `expected`."""
    return CheckedNumber(what, float(ours), expected - tolerance, expected + tolerance, published, error)


def as_printed(what: str, ours: float, published: float, tolerance: float, error: float = 0.0) -> CheckedNumber:
    """Must be the paper's number, within `tolerance` for its rounding."""
    return near(what, ours, published, tolerance, published, error)


def at_least(what: str, ours: float, bound: float, error: float = 0.0) -> CheckedNumber:
    return CheckedNumber(what, float(ours), bound, math.inf, error=error)


def at_most(what: str, ours: float, bound: float, error: float = 0.0) -> CheckedNumber:
    return CheckedNumber(what, float(ours), -math.inf, bound, error=error)


def shown(what: str, ours: float, published: float | None = None) -> CheckedNumber:
    """A number that is shown and not judged."""
    return CheckedNumber(what, float(ours), -math.inf, math.inf, published)


def worst_of(numbers: Iterable[CheckedNumber]) -> str | None:
    """The worst verdict of the numbers that are judged; None where none is."""
    return max((c.verdict for c in numbers if c.is_judged), key=JUDGED.index, default=None)


@dataclass(frozen=True)
class Finding:
    """What a check of a statement found. remark: a sentence beside the numbers, where they need one."""

    comparisons: Sequence[CheckedNumber]
    picture: Panel | None = None
    remark: str = ""

    @property
    def verdict(self) -> str:
        """HOLDS where some number is judged and none differs."""
        return FAILS if worst_of(self.comparisons) in (None, DIFFERS) else HOLDS

    @property
    def closest(self) -> CheckedNumber:
        """The number that is nearest to failing, or fails most."""
        return min(self.comparisons, key=lambda c: np.nan_to_num(c.margin, nan=-math.inf))


@dataclass(frozen=True)
class Trained:
    """A trained model, and texts as token ids, for the statements that can be asked of one."""

    probed: ProbedModel
    texts: Sequence[Sequence[int]]


@dataclass(frozen=True)
class Claim:
    """A statement. title: a few words for a table.

    check: on the paper's construction, in float64 unless stated otherwise; seconds, no network. Its docstring says the
    statement in one sentence, then the formula, then where it stands. check_model: of a trained model; None where no
    model could fail it.
    """

    name: str
    title: str
    check: Callable[[], Finding]
    check_model: Callable[[Trained], Finding] | None

    def words(self) -> tuple[str, str, str]:
        """(statement, formula, source): the first paragraph of the docstring, the middle ones, and the last."""
        paragraphs = [" ".join(part.split()) for part in (self.check.__doc__ or "").split("\n\n") if part.strip()]
        return paragraphs[0], "; ".join(paragraphs[1:-1]), paragraphs[-1]


@dataclass(frozen=True)
class Answer:
    """The finding on one statement: on its construction, or on the model of that name."""

    claim: Claim
    finding: Finding
    model: str | None = None

    @property
    def label(self) -> str:
        return self.claim.name if self.model is None else f"{self.claim.name} ({self.model})"


def claim_of(name: str) -> Claim:
    """The statement of this name. UserError where there is none."""
    if name not in CLAIMS:
        raise UserError(f"no claim '{name}'{nearest(name, CLAIMS)}")
    check, title = CLAIMS[name]
    return Claim(name, title, function(check), function(ASKED_OF_MODELS[name]) if name in ASKED_OF_MODELS else None)


def function(path: str) -> Callable[..., Finding]:
    """The function of this dotted path below the package."""
    module, _, name = path.rpartition(".")
    found: Callable[..., Finding] = getattr(importlib.import_module(f"roundround.papers.{module}"), name)
    return found
