"""No logger.

Tested by tests/runs/test_loggers.py.
"""

from __future__ import annotations

from typing import final

from roundround.runs.loggers.base import Logger


@final
class NoLogger(Logger):
    """Nothing beside metrics.jsonl."""
