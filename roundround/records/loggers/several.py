"""Several loggers at once, as `logger=[wandb,csv]` asks for.

Tested by tests/records/test_loggers.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from roundround.records.loggers.base import Logger


@final
class Several(Logger):
    """A list of loggers. A run feeds each of them by itself: if one fails, the others still get everything."""

    def __init__(self, loggers: Sequence[Logger]) -> None:
        wanted = {logger.log_checkpoint for logger in loggers} - {None}
        if len(wanted) > 1:
            raise ValueError(
                f"log_checkpoint must be the same for all that ask for one, not {' and '.join(map(str, wanted))}"
            )
        self.loggers = list(loggers)
