"""No logger."""

from __future__ import annotations

from typing import final

from roundround.runs.loggers.base import Logger


@final
class NoLogger(Logger):
    """Nothing beside metrics.jsonl."""
