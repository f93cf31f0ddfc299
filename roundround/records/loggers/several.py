"""Several loggers at once, as `logger=[wandb,csv]` asks for.

Tested by tests/records/test_loggers.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, final

from roundround.records.loggers.base import Logger
from roundround.support.console import print_status
from roundround.support.errors import one_line


@final
class Several(Logger):
    """Tells each of several loggers everything, in their order; what one of them cannot do, the others still do."""

    def __init__(self, loggers: Sequence[Logger]) -> None:
        wanted = {logger.log_checkpoint for logger in loggers} - {None}
        if len(wanted) > 1:
            raise ValueError(
                f"log_checkpoint must be the same for all that ask for one, not {' and '.join(map(str, wanted))}"
            )
        self.loggers = list(loggers)
        self.log_checkpoint = next(iter(wanted), None)

    def start(self, directory: Path, manifest: dict[str, Any]) -> dict[str, Any] | None:
        kept: dict[str, Any] = {}
        for n, logger in enumerate(self.loggers):
            try:
                kept |= logger.start(directory, manifest) or {}
            except BaseException:
                for begun in self.loggers[:n]:
                    begun.finish({**manifest, "status": "refused"}, 2)
                raise
        return kept or None

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        tell(self.loggers, lambda logger: logger.log(metrics, step))

    def forget_after(self, step: int) -> None:
        tell(self.loggers, lambda logger: logger.forget_after(step))

    def results(self, records: Sequence[Mapping[str, Any]]) -> None:
        tell(self.loggers, lambda logger: logger.results(records))

    def figures(self, pictures: Mapping[str, Path]) -> None:
        tell(self.loggers, lambda logger: logger.figures(pictures))

    def checkpoint(self, folder: Path, also: Sequence[Path]) -> None:
        asking = [logger for logger in self.loggers if logger.log_checkpoint is not None]
        tell(asking, lambda logger: logger.checkpoint(folder, also))

    def finish(self, manifest: dict[str, Any], exit_code: int) -> None:
        tell(self.loggers, lambda logger: logger.finish(manifest, exit_code))


def tell(loggers: list[Logger], what: Callable[[Logger], None]) -> None:
    """Tell all of them, and raise the first error only then. One whose process is gone leaves the list."""
    errors = []
    for logger in list(loggers):
        try:
            what(logger)
        except ConnectionError as error:  # as `Run.log` has it of a single one
            print_status(f"a logger's own process is gone ({one_line(error)}); the others go on")
            loggers.remove(logger)
        except Exception as error:
            errors.append(error)
    if errors:
        raise errors[0]
