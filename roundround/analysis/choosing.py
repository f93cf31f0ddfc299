"""Which runs are meant: by words and by filters.

A word is a run directory, a sweep, a folder of runs, a pattern such as `outputs/*/*`, last or last~3. A filter is
`key=value`: verb=train, status=failed, since=2d, pe=rope,p_rope, optim.lr=1e-3.
"""

from __future__ import annotations

import glob
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from roundround.analysis.past_run import DIED, PastRun, past_run
from roundround.runs.directories import MANIFEST
from roundround.runs.manifest import is_date, time_of
from roundround.support.errors import UserError, nearest
from roundround.support.files import home_expanded

LAST = re.compile(r"last(?:~(?P<before>\d{1,9}))?")
STARTED = re.compile(rb'"started": "([^"]+)"')
HEAD = 4096  # bytes of a manifest in which it says when it started; the fields before it are short
BEGINNING = datetime.fromisoformat("0001-01-02T00:00:00+00:00")
NOT_RUNS = {"checkpoints", "figures", "variants", "conf", "wandb", "tensorboard"}  # folders inside run directories

STATUSES = ("done", "running", "interrupted", "failed", DIED)
UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def directories_of(word: str, outputs: str, *verbs: str | None) -> list[Path]:
    """The run directories that a word means, oldest first. UserError where it means none.

    verbs: among whose runs `last` is looked for under `outputs`; none for all.
    """
    reference = LAST.fullmatch(word)
    if reference is not None and not os.path.lexists(word):
        return [last(int(reference["before"] or 0), outputs, *verbs)]
    path = home_expanded(word, "the run")
    if word and os.path.exists(path):
        found = list(runs_below(path.absolute()))
    elif glob.has_magic(word):
        matches = sorted(glob.glob(str(path), recursive=True))
        found = [run for match in matches for run in runs_below(Path(match).absolute())]
    else:
        raise UserError(f"'{word}' is no folder; give a run directory, a sweep, a pattern in quotes, last or last~3")
    if not found:
        raise UserError(f"{word} holds no run (a folder with a {MANIFEST})")
    return sorted(dict.fromkeys(found), key=started_at)


def last(before: int, outputs: str, *verbs: str | None) -> Path:
    """The run that started last under `outputs`, or the one so many before it. UserError where there are too few."""
    folder = home_expanded(outputs, "outputs")
    newest = newest_first(*(folder / verb for verb in verbs if verb)) if any(verbs) else newest_first(folder)
    if before < len(newest):
        return newest[before]
    there = f"{len(newest)} run{'s are' if len(newest) != 1 else ' is'} there" if newest else "no run is there"
    raise UserError(f"last{f'~{before}' if before else ''}: {there}, under {folder}")


def directories_of_all(words: Sequence[str], outputs: str, *verbs: str | None) -> list[Path]:
    """The run directories that words mean, newest first; without words all under `outputs`. UserError for none.

    verbs: as `directories_of` has them.
    """
    if words:
        found = {directory for word in words for directory in directories_of(word, outputs, *verbs)}
        return sorted(found, key=started_at, reverse=True)
    folder = home_expanded(outputs, "outputs")
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}; outputs=DIR names another one")
    return newest_first(folder)


def newest_first(*folders: Path) -> list[Path]:
    """The run directories below folders, the one that started last first."""
    found = [run for folder in folders for run in runs_below(folder.absolute())]
    return sorted(found, key=started_at, reverse=True)


def runs_below(folder: Path) -> Iterator[Path]:
    """The folder itself where it is a run, else the runs below it. Links to folders are not followed."""
    try:
        entries = list(os.scandir(folder))
    except OSError:  # a file, or a folder of somebody else's
        return
    if any(entry.name == MANIFEST for entry in entries):
        yield folder
        return
    for entry in sorted(entries, key=lambda entry: entry.name):
        if entry.is_dir(follow_symlinks=False) and entry.name not in NOT_RUNS and not entry.name.startswith("."):
            yield from runs_below(Path(entry.path))


def started_at(directory: Path) -> datetime:
    """When a run started, read off the head of its manifest: thousands are put in order before one is parsed."""
    try:
        with open(directory / MANIFEST, "rb") as file:
            found = STARTED.search(file.read(HEAD))
    except OSError:
        return BEGINNING
    text = found[1].decode(errors="replace") if found is not None else ""
    return time_of(text) if is_date(text) else BEGINNING


# -- filters


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


def runs_in(directories: Iterable[Path], filters: Filters, damaged: list[tuple[str, str]]) -> Iterator[PastRun]:
    """The runs that pass the filters, read one at a time; a directory that cannot be read is added to `damaged`."""
    for directory in directories:
        try:
            run = past_run(directory)
        except UserError as error:
            damaged.append((str(directory), str(error)))
            continue
        if filters.take(run):
            yield run
