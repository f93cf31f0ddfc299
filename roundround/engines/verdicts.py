"""The verdict on an engine's answers to a case: they agree, one mistake explains them, or nothing known does.

The rule. The distance of the answers from a hypothesis is the root mean square of the differences of log-probabilities.
The allowed distance is 3 times what the stated precision moves in transformers, and at least 0.003 nats. A mistake is
named if its distance is allowed and at most half of the distance from the right answers; all mistakes within 1.5 times
the smallest distance are named ("A or B"). Otherwise the answers agree if their distance from the right ones is
allowed. An engine that computes rightly is not named a mistake: its rounding moves it away from every hypothesis alike.

Tested by tests/engines/test_suite.py.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from roundround.engines.cases import WRONG, Case, rms

AGREES, MISTAKE, DIFFERS, REFUSED, MISSING = "agrees", "mistake", "differs", "refused", "missing"
LEAST, TIMES = 3e-3, 3.0  # nats, and times the rounding of the precision
NEARER, AS_NEAR = 0.5, 1.5
VISIBLE = 10.0  # times the allowed distance: where a difference begins


class Verdict(NamedTuple):
    """A verdict. difference: the largest, in nats. kind: one of the above. words: what is wrong."""

    difference: float | None = None
    kind: str = MISSING
    words: str = ""


def judge(case: Case, answers: Tensor, precision: str = "float32") -> Verdict:
    """The verdict on answers [T - 1]. precision: that of the engine, float32 or a name in PRECISIONS."""
    apart = (answers - case.right).abs()
    difference, from_right = float(apart.max()), rms(apart)
    allowed = max(LEAST, TIMES * rms(case.expected.get(f"rounded/{precision}", case.right) - case.right))
    distances = {
        name.removeprefix(WRONG): rms(answers - expected)
        for name, expected in case.expected.items()
        if name.startswith(WRONG)
    }
    nearest = min(distances.values(), default=float("inf"))
    if nearest <= min(allowed, NEARER * from_right):
        names = [name for name, distance in distances.items() if distance <= AS_NEAR * nearest + LEAST]
        return Verdict(kind=MISTAKE, words=" or ".join(names), difference=difference)
    if from_right <= allowed:
        return Verdict(kind=AGREES, difference=difference)
    first = next((i for i, one in enumerate(apart.tolist(), start=1) if not one <= VISIBLE * allowed), None)
    where = f"from token {first} on" if first is not None else "everywhere by a little"
    near = [f"; the nearest is: {name}" for name, x in distances.items() if x == nearest < NEARER * from_right]
    words = f"{where}, and no known mistake explains it{''.join(near)}"
    return Verdict(kind=DIFFERS, words=words, difference=difference)
