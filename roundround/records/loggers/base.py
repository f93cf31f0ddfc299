"""What a metric logger is: a few hooks, beside `metrics.jsonl` and `results.json`, which are always written.

They are not Lightning's loggers: those live in a package that takes six seconds to import, which `eval`, `probe` and
`max-retrieval` do without.

Tested by tests/records/test_loggers.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar


class Logger:
    """Base of the loggers that a run feeds; every hook does nothing unless a subclass says otherwise.

    In this order: `start`, where a run trains `forget_after`, `log` many times, and once the run has ended, however it
    ended, `results`, `figures` and `checkpoint` with what lies in its directory then, and `finish`.
    """

    libraries: ClassVar[tuple[str, ...]] = ()  # slow modules that it needs, imported before torch and Lightning are
    log_checkpoint: str | None = None  # the checkpoint that the logger is to be given: best or last

    def start(self, directory: Path, manifest: dict[str, Any]) -> dict[str, Any] | None:
        """Begin; returns what the manifest should keep about it. UserError for a run that it cannot serve."""
        return None

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        """One line of metrics."""

    def forget_after(self, step: int) -> None:
        """Training begins after this step: what an earlier start of the run logged of later ones will come again."""

    def results(self, records: Sequence[Mapping[str, Any]]) -> None:
        """The records of results.json, a number that is not finite by its name."""

    def figures(self, pictures: Mapping[str, Path]) -> None:
        """The run's figures by name, as files of PNG."""

    def checkpoint(self, folder: Path, also: Sequence[Path]) -> None:
        """The checkpoint that `log_checkpoint` names; `also` are the run's files that a reader of it needs."""

    def finish(self, manifest: dict[str, Any], exit_code: int) -> None:
        """The run has ended as the manifest's status says, and its process ends with this code."""
