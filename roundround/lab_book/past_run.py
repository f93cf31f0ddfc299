"""A run that lies in a directory: its manifest, its results and its metrics. Reads, never writes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from roundround.config.recorded import flat
from roundround.errors import UserError, one_line
from roundround.files import parse_json, read_text
from roundround.runs.directories import read_manifest
from roundround.runs.leftovers import LOCK, METRICS, RESULTS
from roundround.runs.manifest import time_of

DIED = "died"  # killed: the manifest still says running, and no process holds the directory


@dataclass(frozen=True)
class PastRun:
    """A run directory and its manifest, whose shape has been checked."""

    directory: Path
    manifest: dict[str, Any]

    @property
    def verb(self) -> str:
        return str(self.manifest["verb"])

    @cached_property
    def status(self) -> str:
        """done, running, interrupted, `failed: WHY`, or died."""
        status = str(self.manifest["status"])
        return DIED if status.startswith("running") and not is_held(self.directory) else status

    @property
    def started(self) -> datetime:
        return time_of(self.manifest["started"])

    @property
    def seconds(self) -> float | None:
        """How long it ran, from its last start; until now where it runs, None where that is not known."""
        begun = time_of(self.manifest.get("resumed") or self.manifest["started"])
        if self.status == "running":
            return (datetime.now().astimezone() - begun).total_seconds()
        with suppress(TypeError, ValueError):
            return (time_of(self.manifest["ended"]) - begun).total_seconds()
        return None

    @cached_property
    def settings(self) -> dict[str, Any]:
        """What may be asked of it: every value of its config by its dotted name, and the option of each group.

        Of a look at the model of another run (eval, probe), what that run was trained with where it has no own.
        """
        own = flat(self.manifest["config"]) | self.choices
        trained = self.measured
        if trained is None:
            return own
        said = {key: value for key, value in own.items() if value is not None}
        return trained.settings | said

    @property
    def choices(self) -> dict[str, str]:
        """The option taken of each config group that has one."""
        return {k: v for k, v in self.manifest.get("choices", {}).items() if v is not None}

    @cached_property
    def measured(self) -> PastRun | None:
        """The run whose model this one looked at, where it is still there."""
        source = self.manifest.get("run")
        with suppress(UserError):
            return None if source is None else past_run(Path(source))
        return None

    def results(self) -> list[dict[str, Any]]:
        """The records of its results.json; none where it has none yet. UserError where the file is damaged."""
        path = self.directory / RESULTS
        try:
            records = parse_json(read_text(path))
        except FileNotFoundError:
            return []
        except (OSError, ValueError) as error:
            raise UserError(f"{path} cannot be read: {one_line(error)}") from error
        if not isinstance(records, list) or not all(is_record(record) for record in records):
            raise UserError(f"{path} is not a list of records with a metric and a value")
        return records

    def metrics(self) -> tuple[list[dict[str, Any]], int]:
        """The lines of its metrics.jsonl, in order, and how many more could not be read. UserError where none can."""
        path = self.directory / METRICS
        try:
            text = read_text(path)
        except FileNotFoundError:
            return [], 0
        except (OSError, ValueError) as error:
            raise UserError(f"{path} cannot be read: {one_line(error)}") from error
        lines = [line for line in text.split("\n") if line]
        read = list(readable(lines))
        return read, len(lines) - len(read)


def past_run(directory: Path) -> PastRun:
    """The run in a directory. UserError where there is none, or where its manifest is damaged."""
    return PastRun(directory, read_manifest(directory))


def is_held(directory: Path) -> bool:
    """Whether a living process writes there."""
    path = directory / LOCK
    if not os.access(path, os.W_OK):  # somebody else's folder: believe what the manifest says, unless no lock is left
        return path.exists()
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except (Timeout, OSError):
        return True
    lock.release()
    return False


def is_record(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("metric"), str) and "value" in value


def readable(lines: list[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        with suppress(ValueError, RecursionError):
            metrics = json.loads(line)
            if isinstance(metrics, dict) and isinstance(metrics.get("step"), int):
                yield metrics
