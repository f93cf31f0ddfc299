"""`key=value` as a question to runs: verb=train, status=failed, since=2d, pe=rope,p_rope, optim.lr=1e-3."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from roundround.analysis.past_run import DIED, PastRun
from roundround.runs.manifest import is_date, time_of
from roundround.support.errors import UserError, nearest

STATUSES = ("done", "running", "interrupted", "failed", DIED)
UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


@dataclass
class Filters:
    """What is asked of every run, all of it at once. It notes which settings the runs have, for a misspelt one."""

    asked: Mapping[str, Callable[[PastRun], bool]]
    settings: Mapping[str, list[str]]  # key: the values that are taken
    known: set[str] = field(default_factory=set)
    unmet: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.unmet = set(self.settings)

    def take(self, run: PastRun) -> bool:
        """Whether a run is one of those that are meant."""
        return all(fits(run) for fits in self.asked.values()) and (not self.settings or self.admit(run.settings))

    def admit(self, settings: Mapping[str, Any]) -> bool:
        """Whether settings are among those that are meant."""
        self.known |= settings.keys()
        self.unmet -= settings.keys()
        return all(key in settings and is_one_of(settings[key], values) for key, values in self.settings.items())

    def check(self) -> None:
        """Raises UserError for a setting that none of the runs has; to be called when all have been seen."""
        if self.unmet and self.known:
            key = min(self.unmet)
            own = {*self.asked, "verb", "status", "since", *self.known}
            guess, _, _ = nearest(key, own).partition(" (choices")
            raise UserError(f"no run has a setting '{key}'{guess if guess.startswith(';') else ''}")


def filters_of(given: Mapping[str, str]) -> Filters:
    """The filters of what is typed. UserError for a status or a time that is none."""
    asked: dict[str, Callable[[PastRun], bool]] = {}
    rest = {key: value.split(",") for key, value in given.items()}
    if "verb" in rest:
        verbs = [{"maxkey": "max-retrieval"}.get(verb, verb) for verb in rest.pop("verb")]
        asked["verb"] = lambda run: run.verb in verbs
    if "since" in rest:
        since = time_since(",".join(rest.pop("since")))
        asked["since"] = lambda run: run.started >= since
    if "status" in rest:
        statuses = rest.pop("status")
        for status in statuses:
            if status not in STATUSES:
                raise UserError(f"no status={status}{nearest(status, STATUSES)}")
        asked["status"] = lambda run: run.status.partition(":")[0] in statuses
    return Filters(asked, rest)


def time_since(text: str) -> datetime:
    """`2d`, `90m`, or a date such as 2026-11-20. UserError for anything else."""
    length = re.fullmatch(r"(\d{1,6})([smhdw])", text)
    if length is not None:
        with suppress(OverflowError):  # before the year 1
            return datetime.now().astimezone() - timedelta(**{UNITS[length[2]]: int(length[1])})
    if is_date(text):
        return time_of(text)
    raise UserError(f"since={text}: give 30m, 12h, 2d, 1w, or a date such as 2026-01-31")


def is_one_of(value: Any, wanted: Iterable[str]) -> bool:
    return any(is_same(value, text) for text in wanted)


def is_same(value: Any, text: str) -> bool:
    """Whether a recorded value is what was typed: 0.001 is 1e-3, true is True, a list any of its items."""
    if isinstance(value, list):
        return any(is_same(item, text) for item in value)
    if value is None or isinstance(value, bool):
        return text.lower() == {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int | float):
        try:
            return math.isclose(float(text), value, rel_tol=1e-12)
        except ValueError:
            return False
    return text == str(value)
