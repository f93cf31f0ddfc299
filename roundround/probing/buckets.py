"""Ranges of positions that hold enough targets for their mean to mean something.

Shapes: T positions.

Tested by tests/training/test_eval.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from roundround.model.scoring import PositionLoss

FEWEST = 100  # targets; the standard error of a mean loss is about 0.2 nats there
FEW = "*"  # what marks a number from fewer

Range = tuple[int, int]


def n_targets(loss: PositionLoss, first: int = 0, last: int | None = None) -> int:
    """Number of targets at the positions first..last."""
    return int(loss.count_T[first:last].sum())


def merged(ranges: Sequence[Range], loss: PositionLoss) -> list[Range]:
    """The same ranges, each with the next ones until it has FEWEST targets; what is left over goes to the last."""
    found: list[Range] = []
    begin: int | None = None
    for first, last in ranges:
        begin = first if begin is None else begin
        if n_targets(loss, begin, last) >= FEWEST:
            found.append((begin, last))
            begin = None
    if begin is not None:
        first = found.pop()[0] if found else begin
        found.append((first, ranges[-1][1]))
    return found


def mark(loss: PositionLoss, first: int = 0, last: int | None = None) -> str:
    """What stands behind a number of these positions: nothing, or the mark of a small sample."""
    return "" if n_targets(loss, first, last) >= FEWEST else f" {FEW}"
