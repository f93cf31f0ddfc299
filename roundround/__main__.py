"""Where a process begins: `python -m roundround` and `roundround` are the same.

Signals first, before anything slow is imported; then the streams; then the verbs.

Tested by tests/command_line/test_interruption.py and tests/command_line/test_command_line.py.
"""

from __future__ import annotations

import sys

if __name__ == "__main__" and not sys.flags.safe_path:
    del sys.path[0]  # the folder that one stands in, whose yaml.py would be imported

import signal

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C before `main` ends the process without a traceback

import gc
import os

from roundround.distributed.interruption import end_at_once, on_signals, send_again

OBJECTS_BETWEEN_COLLECTIONS = 50_000  # of 700: imports and a thousand runs' records make many, hardly any in cycles


def main() -> None:
    on_signals(end_at_once)
    sys.unraisablehook = send_again
    os.environ["PYTHONSAFEPATH"] = "1"  # processes that libraries start import nothing from the folder they stand in
    os.environ.pop("MPLBACKEND", None)  # a notebook's, which its commands inherit, may be one that is not known here
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)  # `compare` over a thousand runs takes an eighth less time
    from roundround.support.console import open_streams

    open_streams()
    from roundround.cli import leave, run

    leave(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
