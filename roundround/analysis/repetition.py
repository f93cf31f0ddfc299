"""How a run is repeated from its manifest alone, which may be anybody's, and whether its numbers came out the same."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from roundround.analysis.past_run import PastRun, is_number
from roundround.analysis.then_and_now import NO_RESULT
from roundround.config.options import config_name
from roundround.config.recorded import overridden
from roundround.runs.directories import MANIFEST, RESULTS
from roundround.support.errors import UserError

REPEATABLE = ("train", "eval", "probe", "max-retrieval", "theory")
LOOKS_AT_RUNS = {"eval", "probe", "max-retrieval", "theory"}
EQUAL, CLOSE, DIFFERENT, MISSING = VERDICTS = ("equal", "close", "different", "missing")
TIMING = re.compile(r"(^|_)(seconds?|minutes|hours|milliseconds|ms|speed|per_second|memory)(_|$)")
OF_ONE_RUN = {"run", "step"}  # fields of a record in which a repetition may differ


# -- what is typed again


def check_repeatable(run: PastRun) -> None:
    """Raises UserError for a run that has nothing to be compared with."""
    if run.verb not in REPEATABLE:
        raise UserError(f"{run.directory} is a run of {run.verb}; rerun repeats {', '.join(REPEATABLE)} (verb=train)")
    if run.status != "done":
        raise UserError(f"{run.directory} is not finished ({run.status}); only a finished run can be compared with")
    if not run.results():
        raise UserError(f"{run.directory} has no {RESULTS} to compare with")


def overrides_of(run: PastRun) -> list[str]:
    """The recorded overrides that decide the numbers, and the run that this one looked at: never what `last` is now.

    UserError for an override that nobody can have typed as one, and for a run that is not there any more.
    """
    kept = []
    for word in run.manifest["overrides"]:
        (key,) = overridden([word])
        group = key.partition(".")[0]
        if word.startswith("-") or not group or group == "hydra":
            raise UserError(f"{run.directory / MANIFEST} has an override '{word}', which rerun does not take")
        if group not in NO_RESULT:
            kept.append(word)
    source = run.manifest.get("run")
    if source is None or run.verb not in LOOKS_AT_RUNS:
        return kept
    if not (Path(source) / MANIFEST).is_file():
        raise UserError(f"{run.directory} looked at the run in {source}, which is not there any more")
    return [*kept, f"run={source}"]


def recorded_config_dir(run: PastRun, *, trust: bool) -> str | None:
    """The conf folder that the recorded command names. UserError where it is not there any more, or not trusted."""
    try:
        words = shlex.split(run.manifest["command"])
    except ValueError:
        words = []
    parts = [part for word in words for part in (word.split("=", 1) if word.startswith("-") else [word])]
    flags = dict(pairwise(parts))
    name, folder = (flags.get(f"--config-{what}", flags.get(f"-c{what[0]}")) for what in ("name", "dir"))
    if name not in (None, config_name(run.verb)):
        raise UserError(f"{run.directory} was made with --config-name {name}, which rerun does not take")
    if folder is None:
        return None
    folder = str(folder_of(run) / folder)
    made = f"{run.directory} was made with --config-dir {folder}"
    if not Path(folder).is_dir():
        raise UserError(f"{made}, which is not there any more; give --config-dir DIR")
    if not trust:
        raise UserError(
            f"{made}, whose modules would run: give trust=true to repeat it with them, or --config-dir DIR, a folder "
            "of your own"
        )
    return folder


def folder_of(run: PastRun) -> Path:
    """Where the command was typed, for relative paths; the current folder where that is not known or not there."""
    recorded = run.manifest.get("cwd")
    return Path(recorded) if recorded is not None and Path(recorded).is_dir() else Path.cwd()


# -- whether the numbers came out the same


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
        if self.then == self.now:
            return EQUAL
        if self.then is None or self.now is None:
            return MISSING
        return CLOSE if self.difference is not None and self.difference <= self.rtol else DIFFERENT


def compared(
    then: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]], settings: Mapping[str, Any], rtol: float
) -> list[Pair]:
    """Every number of the records then, and those that only the records now have.

    Records are the same one where all their fields are that are neither measured nor of one run; where several are,
    they are taken in their order. `settings`: values by name that a record repeats from the config.
    """
    before, after = (numbers_of(records, settings) for records in (then, now))
    pairs = []
    for key in before | after:
        where, _ = before.get(key) or after[key]
        (_, old), (_, new) = (side.get(key, (None, None)) for side in (before, after))
        pairs.append(Pair(key[-1], where, old, new, rtol))
    return pairs


def numbers_of(
    records: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]
) -> dict[tuple[Any, ...], tuple[dict[str, Any], Any]]:
    """Every number but timings, with the fields that say what it is of: by these, which of several, and its name."""
    found = {}
    seen: Counter[tuple[Any, ...]] = Counter()
    for record in records:
        where = {name: value for name, value in record.items() if not is_measured(name, value, settings)}
        identity = tuple(sorted((name, repr(value)) for name, value in where.items() if name not in OF_ONE_RUN))
        seen[identity] += 1
        metric = str(record.get("metric"))
        for name in [name for name in record if name not in where]:
            if not TIMING.search(metric if name == "value" else name):
                of = metric if name == "value" else f"{metric}, {name}"
                found[*identity, seen[identity], of] = where, record[name]
    return found


def is_measured(name: str, value: Any, settings: Mapping[str, Any]) -> bool:
    """Whether a field of a record is a result: its value, and numbers beside it that are no settings."""
    if name in ("value", "step"):
        return name == "value" or value is not None
    return isinstance(value, float) and "." not in name and name not in settings
