"""Signals that stop a run: at once, by raising `Interrupted`, or between two steps.

SIGINT is Ctrl-C, SIGTERM asks for the end, SIGHUP says that the terminal is gone; Slurm and submitit send SIGUSR1 or
SIGUSR2 before a job's time is over.

An exception raised while modules are imported can come out of any line: it is lost in a callback, looks like a failed
import, or is followed by tracebacks of half-imported libraries. So a signal during imports ends the process at once.

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
SECONDS_OF_ONE_REQUEST = 1.0  # signals within it are one
Handler = Callable[[int, FrameType | None], None]


def on_signals(handler: Handler) -> dict[int, Any]:
    """Let the stop signals call the handler; returns the earlier handlers. In a thread, which can set none, nothing.

    A signal that is ignored stays ignored: a shell starts `train & other` so that Ctrl-C reaches only the other, and
    nohup ignores SIGHUP. A signal whose handler was not set by Python (None) stays too: it could not be put back.
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
    """Inside, stop signals are ignored: a process that ends already reports why, in a bounded time."""
    handlers = on_signals(ignore)
    try:
        yield
    finally:
        put_back(handlers)


@contextmanager
def signals_held() -> Iterator[None]:
    """Inside, stop signals wait: native code that calls Python, as in matplotlib, would raise its own error instead."""
    held: list[int] = []
    handlers = on_signals(lambda signum, frame: held.append(signum))
    try:
        yield
    finally:
        put_back(handlers)
        for signum in held:
            signal.raise_signal(signum)


def pass_on(signum: int, handlers: dict[int, Any]) -> None:
    """Inside a job of submitit, let its handler have the signal too: it puts the job back into the queue, and exits."""
    handler = handlers.get(signum)
    if "SUBMITIT_EXECUTOR" in os.environ and callable(handler) and signum != signal.SIGINT:
        handler(signum, None)


def ignore(signum: int, frame: FrameType | None) -> None:
    """Let a signal pass."""


def interrupt(signum: int, frame: FrameType | None) -> None:
    """Raise `Interrupted`, so that the task can end in order."""
    raise Interrupted(signum)


def send_again(ignored: sys.UnraisableHookArgs) -> None:
    """A `sys.unraisablehook`: an `Interrupted` that rose in a weakref's callback or a __del__ is not lost.

    Python drops what is raised there; so the signal is sent once more, a moment later, when another line is reached.
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
    """Write a line on standard error in a signal's handler, where the main thread may hold a stream's lock."""
    with suppress(OSError):  # on a terminal, in place of a progress bar, which is drawn again below
        os.write(2, b"\r\033[K" * os.isatty(2) + f"roundround: {line}\n".encode())


@contextmanager
def interrupts_blocked() -> Iterator[None]:
    """Processes started inside never get SIGINT; this one gets it afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class StopSignal:
    """Turns the first stop signal into a flag, read between two steps; a later one raises Interrupted at once.

    The first is answered with a line, since a step may take long. Signals that come together, as of a launcher or of a
    key that is held, are one request.
    """

    def __init__(self) -> None:
        self.asked: int | None = None
        self.since = 0.0
        self.handlers: dict[int, Any] = {}

    def start(self) -> None:
        """Take over the signals, where this is the main thread."""
        self.handlers = on_signals(self.ask)

    def ask(self, signum: int, frame: FrameType | None) -> None:
        if self.asked is None:
            self.asked, self.since = signum, time.monotonic()
            if speaks():
                say(f"{signal.Signals(signum).name}: saving and stopping; a second signal stops at once")
        elif time.monotonic() - self.since > SECONDS_OF_ONE_REQUEST:
            raise Interrupted(signum)  # asked twice: do not wait for the step

    def close(self) -> None:
        """Give the signals back."""
        put_back(self.handlers)
        self.handlers = {}
