"""Signals that stop a run: at once, by raising `Interrupted`, or between two steps.

SIGINT is Ctrl-C, SIGTERM asks the process to end, SIGHUP means that the terminal is gone; Slurm and submitit send
SIGUSR1 or SIGUSR2 before a job's time is over.

An exception that a signal raises during imports can appear at any line: it may be lost in a callback, look like a
failed import, or leave half-imported libraries that print tracebacks. So a signal during imports ends the process at
once.

Tested by tests/command_line/test_interruption.py.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from roundround.distributed.launcher import speaks
from roundround.support.errors import Interrupted

STOP_SIGNALS = tuple(
    number
    for name, number in signal.Signals.__members__.items()
    if name in ("SIGHUP", "SIGINT", "SIGTERM", "SIGUSR1", "SIGUSR2")
)
SECONDS_OF_ONE_REQUEST = 1.0  # further signals within this time count as the same request
Handler = Callable[[int, FrameType | None], None]


def on_signals(handler: Handler) -> dict[int, Any]:
    """Let the stop signals call the handler; returns the earlier handlers. Outside the main thread it does nothing.

    A signal that is ignored stays ignored: a shell makes a background process ignore Ctrl-C, and nohup ignores SIGHUP.
    A handler that was not set by Python (None) is kept too, because it could not be restored.
    """
    if threading.current_thread() is not threading.main_thread():
        return {}
    taken = [signum for signum in STOP_SIGNALS if signal.getsignal(signum) not in (signal.SIG_IGN, None)]
    return {signum: signal.signal(signum, handler) for signum in taken}


def put_back(handlers: dict[int, Any]) -> None:
    """Give the signals back to the handlers that `on_signals` replaced."""
    for signum, handler in handlers.items():
        signal.signal(signum, handler)


@contextmanager
def signals_ignored() -> Iterator[None]:
    """Ignores stop signals inside the block, so that a process can report why it ends. Use it only for short work."""
    handlers = on_signals(ignore)
    try:
        yield
    finally:
        put_back(handlers)


@contextmanager
def signals_held() -> Iterator[None]:
    """Delays stop signals inside the block until the block ends.

    Native code that calls Python, as in matplotlib, would turn `Interrupted` into an error of its own.
    """
    held: list[int] = []
    handlers = on_signals(lambda signum, frame: held.append(signum))
    try:
        yield
    finally:
        put_back(handlers)
        for signum in held:
            signal.raise_signal(signum)


def pass_on(signum: int, handlers: dict[int, Any]) -> None:
    """In a job of submitit, call submitit's handler too, which puts the job back into the queue and exits."""
    handler = handlers.get(signum)
    if "SUBMITIT_EXECUTOR" in os.environ and callable(handler) and signum != signal.SIGINT:
        handler(signum, None)


def ignore(signum: int, frame: FrameType | None) -> None:
    """A handler that does nothing."""


def interrupt(signum: int, frame: FrameType | None) -> None:
    """A handler that raises `Interrupted`, so that the main thread can clean up."""
    raise Interrupted(signum)


def send_again(ignored: sys.UnraisableHookArgs) -> None:
    """A `sys.unraisablehook` for an `Interrupted` that was raised in a weakref's callback or in a __del__.

    Python drops exceptions raised there, so the signal is sent again a moment later, when other code runs.
    """
    if isinstance(ignored.exc_value, Interrupted):
        threading.Timer(0.01, os.kill, (os.getpid(), ignored.exc_value.signum)).start()
    else:
        sys.__unraisablehook__(ignored)


def end_at_once(signum: int, frame: FrameType | None) -> None:
    """Print one line and end the process with 128 plus the signal's number."""
    if speaks():
        say(f"interrupted by {signal.Signals(signum).name}")
    os._exit(128 + signum)


def say(line: str) -> None:
    """Write a line on standard error without sys.stderr, because a signal handler could wait for its lock forever."""
    with suppress(OSError):  # on a terminal it replaces the progress bar, which is then drawn again below
        os.write(2, b"\r\033[K" * os.isatty(2) + f"roundround: {line}\n".encode())


@contextmanager
def interrupts_blocked() -> Iterator[None]:
    """Processes started inside the block never receive SIGINT; this process receives SIGINT only after the block."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class StopSignal:
    """Turns the first stop signal into a flag, read between two steps; a later signal raises Interrupted at once.

    The first signal prints a line, because a step can take long. Signals within SECONDS_OF_ONE_REQUEST of it, from a
    launcher or a key that is held down, count as the same request.
    """

    def __init__(self) -> None:
        self.asked: int | None = None
        self.since = 0.0
        self.handlers: dict[int, Any] = {}

    def start(self) -> None:
        """Install the handler, if this is the main thread."""
        self.handlers = on_signals(self.ask)

    def ask(self, signum: int, frame: FrameType | None) -> None:
        if self.asked is None:
            self.asked, self.since = signum, time.monotonic()
            if speaks():
                say(f"{signal.Signals(signum).name}: saving and stopping; a second signal stops at once")
        elif time.monotonic() - self.since > SECONDS_OF_ONE_REQUEST:
            raise Interrupted(signum)  # asked twice: do not wait for the step

    def close(self) -> None:
        """Restore the earlier handlers."""
        put_back(self.handlers)
        self.handlers = {}
