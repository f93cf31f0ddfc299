"""The numbers of two `results.json`, one by one: equal, close, different, or missing on one side."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

EQUAL, CLOSE, DIFFERENT, MISSING = VERDICTS = ("equal", "close", "different", "missing")
TIMING = re.compile(r"(^|_)(seconds?|minutes|hours|milliseconds|ms|speed|per_second|memory)(_|$)")
OF_THE_PLACE = {"run", "step"}  # fields that a repetition may have others of


@dataclass(frozen=True)
class Pair:
    """A number then and now, None where it is not there; `where`: the fields that say what it is of."""

    metric: str
    where: dict[str, Any]
    then: Any
    now: Any
    rtol: float

    @property
    def difference(self) -> float | None:
        """Relative to the larger of the two; None where they are no two finite numbers."""
        if not (is_number(self.then) and is_number(self.now)):
            return None
        largest = max(abs(self.then), abs(self.now))
        return abs(self.then - self.now) / largest if largest else 0.0

    @property
    def verdict(self) -> str:
        if self.then is None or self.now is None:
            return EQUAL if self.then is self.now else MISSING
        if self.then == self.now:
            return EQUAL
        return CLOSE if self.difference is not None and self.difference <= self.rtol else DIFFERENT


def compared(
    then: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]], settings: Mapping[str, Any], rtol: float
) -> list[Pair]:
    """Every number of the records then, and those that only the records now have.

    Records are the same one where all their fields are that are neither measured nor of the place; where several are,
    they are taken in their order. `settings`: values by name that a record repeats from the config.
    """
    before, after = by_identity(then, settings), by_identity(now, settings)
    pairs = []
    for identity in before | after:
        olds, news = before.get(identity, []), after.get(identity, [])
        for n in range(max(len(olds), len(news))):
            old, new = (records[n] if n < len(records) else None for records in (olds, news))
            pairs += pairs_of(old, new, settings, rtol)
    return pairs


def pairs_of(
    old: Mapping[str, Any] | None, new: Mapping[str, Any] | None, settings: Mapping[str, Any], rtol: float
) -> list[Pair]:
    """The numbers of a record, which is None on the side that lacks it."""
    sides = [record or {} for record in (old, new)]
    known = next(side for side in sides if side)
    metric, where = str(known.get("metric")), {k: v for k, v in known.items() if not is_measured(k, v, settings)}
    measured = dict.fromkeys(k for side in sides for k, value in side.items() if is_measured(k, value, settings))
    names = [name for name in measured if not TIMING.search(metric if name == "value" else name)]
    then, now = sides
    return [Pair(metric if k == "value" else f"{metric}, {k}", where, then.get(k), now.get(k), rtol) for k in names]


def by_identity(
    records: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]
) -> dict[tuple[tuple[str, str], ...], list[Mapping[str, Any]]]:
    found: dict[tuple[tuple[str, str], ...], list[Mapping[str, Any]]] = defaultdict(list)
    for record in records:
        own = {k: v for k, v in record.items() if k not in OF_THE_PLACE and not is_measured(k, v, settings)}
        found[tuple(sorted((k, repr(v)) for k, v in own.items()))].append(record)
    return dict(found)


def is_measured(name: str, value: Any, settings: Mapping[str, Any]) -> bool:
    """Whether a field of a record is a result: its value, and numbers beside it that are no settings."""
    if name in ("value", "step"):
        return name == "value" or value is not None
    return isinstance(value, float) and "." not in name and name not in settings


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
