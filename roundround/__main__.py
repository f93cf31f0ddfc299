"""Where a process begins: `python -m roundround` and `roundround` are the same.

Signals first, before anything slow is imported; then the streams; then the verbs.
"""

from __future__ import annotations

import gc
import os
import sys

from roundround.interruption import end_at_once, on_signals

OBJECTS_BETWEEN_COLLECTIONS = 50_000  # of 700: imports and a thousand runs' records make many, hardly any in cycles


def main() -> None:
    on_signals(end_at_once)
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)  # `compare` over a thousand runs takes an eighth less time
    from roundround.console import open_streams

    open_streams()
    from roundround.cli import run

    code = run(sys.argv[1:])
    if code and one_of_several():
        leave_at_once(code)
    raise SystemExit(code)


def one_of_several() -> bool:
    """Whether other processes work on the same run."""
    from roundround.errors import UserError
    from roundround.runs.launcher import together

    try:
        return together() is not None
    except UserError:
        return False


def leave_at_once(code: int) -> None:
    """End without Python's seconds of tidying up: a launcher that sees another process fail would kill this one then,

    and one whose connections are broken may not come to its end at all.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
