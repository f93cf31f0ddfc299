"""What a metric logger is: a few hooks, beside `metrics.jsonl` and `results.json`, which are always written.

They are not Lightning's loggers: that package takes six seconds to import, and `eval`, `probe` and `max-retrieval` do
not import it.

Tested by tests/records/test_loggers.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any


class Logger:
    """Base of the loggers that a run feeds; every hook does nothing unless a subclass defines it.

    The order of the calls: `start`, in a training `forget_after`, `log` many times. When the run has ended, in any way,
    follow `results`, `figures` and `checkpoint` with what is in its directory, and `finish`.
    """

    log_checkpoint: str | None = None  # the checkpoint that the logger gets: best or last

    def start(self, directory: Path, manifest: dict[str, Any]) -> dict[str, Any] | None:
        """Begin; returns what the manifest keeps about it. UserError for a run that it cannot serve."""
        return None

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        """One line of metrics."""

    def forget_after(self, step: int) -> None:
        """Training begins after this step; later steps of an earlier start of the run come again."""

    def results(self, records: Sequence[Mapping[str, Any]]) -> None:
        """The records of results.json; a number that is not finite is its name, such as nan."""

    def figures(self, pictures: Mapping[str, Path]) -> None:
        """The run's figures by name, as files of PNG."""

    def checkpoint(self, folder: Path, also: Sequence[Path]) -> None:
        """The checkpoint that `log_checkpoint` names; `also` are the run's files that a reader of it needs."""

    def finish(self, manifest: dict[str, Any], exit_code: int) -> None:
        """The run has ended; the manifest's status says how. exit_code: that of its process."""


def columns_of(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """The names in the order in which they first come."""
    return list(dict.fromkeys(name for row in rows for name in row))
