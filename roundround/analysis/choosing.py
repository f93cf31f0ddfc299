"""Which runs are meant: run directories, sweeps, folders of runs, patterns such as `outputs/*/*`, last, last~3."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path

from roundround.analysis.past_run import PastRun, past_run
from roundround.runs.leftovers import MANIFEST
from roundround.runs.manifest import is_date, time_of
from roundround.support.errors import UserError
from roundround.support.files import home_expanded

LAST = re.compile(r"last(?:~(?P<before>\d{1,9}))?")
STARTED = re.compile(rb'"started": "([^"]+)"')
HEAD = 4096  # bytes of a manifest in which it says when it started; the fields before it are short
BEGINNING = datetime.fromisoformat("0001-01-02T00:00:00+00:00")
NOT_RUNS = {"checkpoints", "figures", "variants", "conf", "wandb", "tensorboard"}  # folders inside run directories


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


def past_runs(directories: list[Path]) -> tuple[list[PastRun], list[str]]:
    """The runs in these directories, and a line for each that is damaged."""
    runs, damaged = [], []
    for directory in directories:
        try:
            runs.append(past_run(directory))
        except UserError as error:
            damaged.append(str(error))
    return runs, damaged
