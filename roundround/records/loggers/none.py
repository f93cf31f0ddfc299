"""No logger.

Tested by tests/records/test_loggers.py.
"""

from __future__ import annotations

from typing import final

from roundround.records.loggers.base import Logger


@final
class NoLogger(Logger):
    """Nothing beside metrics.jsonl."""
