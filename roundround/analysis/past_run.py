"""A run that lies in a directory: its manifest, its results and its metrics, and which of these say how good it is.

Reads, never writes. Tested by tests/analysis/test_filters.py, test_runs_and_show.py and test_compare_tasks.py.
"""

from __future__ import annotations

import math
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from roundround.config.recorded import flat
from roundround.runs.directories import LOCK, MANIFEST, METRICS, RESULTS, read_manifest
from roundround.runs.manifest import time_of
from roundround.support.errors import UserError, one_line
from roundround.support.files import parse_json, read_text

SIZES = ("length", "n")  # of a record: where a number was taken, along an axis
DIED = "died"  # killed: the manifest still says running, and no process holds the directory
LOWER = {"perplexity", "loss", "nats", "error", "bits"}  # words in names of metrics that are better when lower
HIGHER = {"accuracy", "acc", "f1", "match", "bleu"}
SHARES = {"accuracy", "acc", "match", "rate"}  # of what was asked: from 0 to 1
# of several that say the same
FIRST = ("perplexity", "exact_match", "output_match", "accuracy", "token_accuracy", "nats_per_token", "nats_per_byte")


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
        ended = self.manifest.get("ended")
        return (time_of(ended) - begun).total_seconds() if ended else None

    @cached_property
    def settings(self) -> dict[str, Any]:
        """What may be asked of it: every value of its config by its dotted name, and the option of each group.

        Of a look at the model of another run (eval, probe), what that run was trained with where it has no own.
        """
        own = flat(self.manifest["config"]) | self.choices
        trained = self.measured
        if trained is None:
            return own
        own = {key: value for key, value in own.items() if value is not None}
        replaced = {key.partition(".")[0] for key in own if "." in key}
        return {key: v for key, v in trained.settings.items() if key.partition(".")[0] not in replaced} | own

    @property
    def choices(self) -> dict[str, str]:
        """The option taken of each config group that has one."""
        return {k: v for k, v in self.manifest.get("choices", {}).items() if v is not None}

    @property
    def learns_a_task(self) -> bool:
        """Whether it is a training that learns a task, and no text."""
        return self.verb == "train" and "train_examples" in (self.manifest["data"] or {})

    @property
    def tokens_seen(self) -> int | None:
        """Tokens that a finished training has read: steps x windows x length."""
        factors = [self.settings.get(key) for key in ("trainer.max_steps", "batch_size", "model.train_length")]
        return math.prod(factors) if all(isinstance(n, int) for n in factors) else None  # type: ignore[arg-type]

    @property
    def tokens_per_second(self) -> float | None:
        """Of a training; None for one that was resumed, because only its last part is timed."""
        seconds, tokens = self.manifest.get("seconds_of_training"), self.tokens_seen
        if tokens is None or self.manifest.get("resumed") or not isinstance(seconds, int | float) or seconds <= 0:
            return None
        return tokens / seconds

    @property
    def train_lengths(self) -> tuple[int, int] | None:
        """Of a training: the shortest and the longest length it had, of text both its context; None where not known."""
        if self.verb != "train":
            return None
        context = self.manifest["config"]["model"]["train_length"]
        found = (self.manifest["data"] or {}).get("train_lengths") if self.learns_a_task else (context, context)
        return None if found is None else (found[0], found[1])

    @cached_property
    def measured(self) -> PastRun | None:
        """The run whose model this one looked at, where it is still there, or where both have moved together.

        Never one that looked at another itself: it made no model, and a foreign run may name itself.
        """
        source = self.manifest.get("run")
        if source is None:
            return None
        recorded, seed = Path(source), self.manifest["seed"]
        ends = [recorded.parts[-n_words:] for n_words in range(len(recorded.parts) - 1, 1, -1)]
        moved = (folder.joinpath(*end) for end in ends for folder in self.directory.parents)
        for directory in chain([recorded], (path for path in moved if (path / MANIFEST).is_file())):
            with suppress(UserError):
                found = past_run(directory)
                is_the_one = directory == recorded or seed in (None, found.manifest["seed"])
                if is_the_one and found.manifest.get("run") is None:
                    return found
        return None

    def text_of(self, name: str) -> str | None:
        """The text of one of its files; None where it has none. UserError where it cannot be read."""
        path = self.directory / name
        try:
            return read_text(path)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise UserError(f"{path} cannot be read: {one_line(error)}") from error

    def results(self) -> list[dict[str, Any]]:
        """The records of its results.json; none where it has none yet. UserError where the file is damaged."""
        path, text = self.directory / RESULTS, self.text_of(RESULTS)
        if text is None:
            return []
        try:
            records = parse_json(text)
        except ValueError as error:
            raise UserError(f"{path} cannot be read: {one_line(error)}") from error
        if not isinstance(records, list) or not all(
            isinstance(record, dict)
            and isinstance(record.get("metric"), str)
            and "value" in record
            and all(record.get(size) is None or is_number(record[size]) for size in SIZES)
            for record in records
        ):  # tables and axes need these kinds
            raise UserError(
                f"{path} is not a list of records: metric, value, and {' and '.join(SIZES)} as finite numbers"
            )
        return records

    def metrics(self) -> tuple[list[dict[str, Any]], int]:
        """The lines of its metrics.jsonl, in order, and how many more could not be read. UserError where none can."""
        lines = [line for line in (self.text_of(METRICS) or "").split("\n") if line]
        read = []
        for line in lines:
            with suppress(ValueError):
                metrics = parse_json(line)
                if isinstance(metrics, dict) and isinstance(metrics.get("step"), int):
                    read.append(metrics)
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


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


# -- what a metric says, by the words in its name


def direction(metric: str) -> int:
    """-1 where lower is better, 1 where higher is, 0 where neither is known."""
    words = words_of(metric)
    if "share" in words:
        return 0
    return -1 if words & LOWER else 1 if words & HIGHER else 0


def is_share(metric: str) -> bool:
    """Whether the number is a share of what was asked."""
    return bool(words_of(metric) & SHARES)


def words_of(metric: str) -> set[str]:
    return set(re.split("[/ _]", metric.lower()))


def rank(metric: str) -> int:
    """Where a metric stands in tables: the most telling first."""
    return FIRST.index(metric) if metric in FIRST else len(FIRST) + (direction(metric) == 0)
