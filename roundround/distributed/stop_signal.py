"""How a run stops when asked: between two steps, so that what it saves is whole."""

from __future__ import annotations

from types import FrameType
from typing import Any

from roundround.distributed.interruption import on_signals, put_back
from roundround.support.errors import Interrupted


class StopSignal:
    """Turns the first stop signal into a flag; the second raises Interrupted at once."""

    def __init__(self) -> None:
        self.asked: int | None = None
        self.handlers: dict[int, Any] = {}

    def start(self) -> None:
        """Take over the signals, where this is the main thread."""
        self.handlers = on_signals(self.ask)

    def ask(self, signum: int, frame: FrameType | None) -> None:
        if self.asked is not None:
            raise Interrupted(signum)  # asked twice: do not wait for the step
        self.asked = signum

    def close(self) -> None:
        """Give the signals back."""
        put_back(self.handlers)
        self.handlers = {}
