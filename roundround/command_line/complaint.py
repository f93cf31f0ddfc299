"""How a command says that it cannot or could not: one line on standard error, and the exit code."""

from __future__ import annotations

import logging
import os
import sys

from roundround.distributed import launcher
from roundround.support.errors import UserError, printable


class OneLine(logging.Formatter):
    """What is logged to standard error, as a line that a terminal can be given."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record).expandtabs())


def complain(verb: str, message: str, code: int, *, speaks: bool = False) -> int:
    """Print one red line on standard error; return the exit code. The verb is empty for roundround itself.

    Of several processes the first speaks of an interruption, which reaches all.
    """
    if not speaks and code >= 128 and not launcher.speaks():
        return code
    red, plain = ("\033[31m", "\033[0m") if sys.stderr.isatty() and "NO_COLOR" not in os.environ else ("", "")
    line = printable(f"{' '.join(['roundround', verb]).strip()}: {message}")
    print(f"{red}{line}{plain}", file=sys.stderr, flush=True)
    return code


def one_of_several() -> bool:
    """Whether other processes work on the same run."""
    try:
        return launcher.together() is not None
    except UserError:
        return False
