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
        self.loggers = list(loggers)
