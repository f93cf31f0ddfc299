"""What a command reports if it failed or was refused: one line on standard error, and the exit code.

Tested by tests/command_line/test_command_line.py and tests/command_line/test_wrong_starts.py.
"""

from __future__ import annotations

import os
import signal
import sys

from roundround.distributed import launcher
from roundround.support.errors import (
    AlreadyReported,
    Failed,
    Interrupted,
    NoVerdict,
    OutputError,
    PeerLost,
    Refuted,
    UserError,
    one_line,
    printable,
)


def outcome(
    error: BaseException,
    known: str | None = None,
    *,
    see: str = "",
    traceback: str = "HYDRA_FULL_ERROR=1 shows the traceback",
) -> tuple[int, str]:
    """The exit code and the line for an error; the line is empty if it has been printed already.

    known: the line for an error that the user can fix; None for any other error. see: text that says where the results
    are. traceback: text that says how to see the traceback.
    """
    if isinstance(error, Interrupted | KeyboardInterrupt):
        signum, advice = (error.signum, error.advice) if isinstance(error, Interrupted) else (signal.SIGINT, "")
        return 128 + signum, f"interrupted by {signal.Signals(signum).name}\n{advice}".strip()
    if isinstance(error, AlreadyReported):
        return 2, ""
    if isinstance(error, PeerLost | Failed | OutputError | Refuted):
        return 1, one_line(error) + (see if isinstance(error, OutputError | Refuted) else "")
    if isinstance(error, NoVerdict):
        return 3, one_line(error) + see
    line = known or (one_line(error) if isinstance(error, UserError) else None)
    if line is not None:
        return 2, line
    return 1, f"failed: {type(error).__name__}: {one_line(error)} ({traceback})"


def complain(verb: str, message: str, code: int, *, speaks: bool = False) -> int:
    """Print the message in red on standard error; returns the exit code. The verb is empty for roundround itself.

    A signal reaches all processes of a run, but only the first process prints the message about the signal. speaks:
    True if this process prints every message, even if it is not the first process.
    """
    if not speaks and code >= 128 and not launcher.speaks():
        return code
    red, plain = ("\033[31m", "\033[0m") if sys.stderr.isatty() and "NO_COLOR" not in os.environ else ("", "")
    line = "\n".join(map(printable, f"{' '.join(['roundround', verb]).strip()}: {message}".split("\n")))
    print(f"{red}{line}{plain}", file=sys.stderr, flush=True)
    return code
