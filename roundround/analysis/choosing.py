"""Which runs are meant: by words and by filters.

A word is a run directory, a sweep, a folder of runs, a pattern such as `outputs/*/*`, last or last~3. A filter is
`key=value`: verb=train, status=failed, since=2d, pe=rope,p_rope, optim.lr=1e-3.
"""

from __future__ import annotations

import glob
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from roundround.analysis.past_run import DIED, PastRun, past_run
from roundround.config.verbs import verb_named
from roundround.runs.directories import MANIFEST
from roundround.runs.manifest import is_date, time_of
from roundround.support.errors import UserError, nearest
from roundround.support.files import home_expanded

LAST = re.compile(r"last(?:~(?P<before>\d{1,9}))?")
STARTED = re.compile(rb'"started": "([^"]+)"')
HEAD = 4096  # bytes of a manifest in which it says when it started; the fields before it are short
BEGINNING = datetime.fromisoformat("0001-01-02T00:00:00+00:00")
NOT_RUNS = {"checkpoints", "figures", "variants", "conf", "wandb", "tensorboard"}  # folders inside run directories

OF_RUNS = ("verb", "status", "since")  # filters that ask for no setting
STATUSES = ("done", "running", "interrupted", "failed", DIED)
ALIASES = {"max-retrieval": "maxkey"}
UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def directories_of(word: str, outputs: str, *verbs: str | None) -> list[Path]:
    """The run directories that a word means, oldest first. UserError where it means none.

    verbs: among whose runs `last` is looked for under `outputs`; none for all.
    """
    reference = LAST.fullmatch(word)
    if reference is not None and not os.path.lexists(word):
        return [last(int(reference["before"] or 0), outputs, *verbs)]
    path = home_expanded(word, "the run")
    is_there = word and os.path.exists(path)
    if not is_there and not glob.has_magic(word):
        raise UserError(f"'{word}' is no folder; give a run directory, a sweep, a pattern in quotes, last or last~3")
    matches = [str(path)] if is_there else sorted(glob.glob(str(path), recursive=True))
    found = dict.fromkeys(run for match in matches for run in runs_below(Path(match).absolute()))
    if not found:
        raise UserError(f"{word} holds no run (a folder with a {MANIFEST})")
    return sorted(found, key=started_at)


def last(before: int, outputs: str, *verbs: str | None) -> Path:
    """The run that started last under `outputs`, or the one so many before it. UserError where there are too few."""
    folder = home_expanded(outputs, "outputs")
    newest = newest_first(*([folder / verb for verb in verbs if verb] or [folder]))
    if before < len(newest):
        return newest[before]
    there = f"{len(newest)} run{'s are' if len(newest) != 1 else ' is'} there" if newest else "no run is there"
    raise UserError(f"last{f'~{before}' if before else ''}: {there}, under {folder}")


def directories_of_all(words: Sequence[str], outputs: str, *verbs: str | None) -> list[Path]:
    """The run directories that words mean, newest first; without words all under `outputs`. UserError for none.

    verbs: as `directories_of` has them.
    """
    if words:
        found = dict.fromkeys(directory for word in words for directory in directories_of(word, outputs, *verbs))
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


class Filters:
    """What is asked of every run, all of it at once; `given` as it is typed: {"verb": "eval", "pe": "rope,nope"}.

    A key that is not one of OF_RUNS is a setting. UserError for a status or a time that is none.
    """

    def __init__(self, given: Mapping[str, str]) -> None:
        texts = {key: text.split(",") for key, text in given.items()}
        self.settings = {key: some for key, some in texts.items() if key not in OF_RUNS}
        self.known: set[str] = set()  # settings that the runs have, for a misspelt one
        self.verbs = [verb_named(verb).name for verb in texts["verb"]] if "verb" in texts else None  # None for all
        self.statuses = texts.get("status")
        self.since = time_since(given["since"]) if "since" in given else None
        for status in self.statuses or ():
            if status not in STATUSES:
                raise UserError(f"no status={status}{nearest(status, STATUSES)}")

    def take(self, run: PastRun) -> bool:
        """Whether a run is one of those that are meant."""
        return (
            (self.verbs is None or run.verb in self.verbs)
            and (self.since is None or run.started >= self.since)
            and (self.statuses is None or run.status.partition(":")[0] in self.statuses)
            and (not self.settings or self.admit(run.settings))
        )

    def admit(self, settings: Mapping[str, Any]) -> bool:
        """Whether settings are among those that are meant."""
        self.known |= settings.keys()
        return all(
            key in settings and any(is_same(settings[key], text) for text in texts)
            for key, texts in self.settings.items()
        )

    def check(self) -> None:
        """Raises UserError for a setting that none of the runs has; to be called when all have been seen."""
        unmet = self.settings.keys() - self.known
        if unmet and self.known:
            guess, _, _ = nearest(min(unmet), {*OF_RUNS, *self.known}).partition(" (choices")
            raise UserError(f"no run has a setting '{min(unmet)}'{guess if guess.startswith(';') else ''}")


def time_since(text: str) -> datetime:
    """`2d`, `90m`, or a date such as 2026-11-20. UserError for anything else."""
    length = re.fullmatch(r"(\d{1,6})([smhdw])", text)
    if length is not None:
        with suppress(OverflowError):  # before the year 1
            return datetime.now().astimezone() - timedelta(**{UNITS[length[2]]: int(length[1])})
    if is_date(text):
        return time_of(text)
    raise UserError(f"since={text}: give 30m, 12h, 2d, 1w, or a date such as 2026-01-31")


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
