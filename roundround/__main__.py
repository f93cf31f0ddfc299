"""The first module of the process that the command `roundround` starts; `python -m roundround` does the same.

It installs the signal handlers before it imports anything slow. Then it prepares standard output and standard error,
and runs the typed command.

Tested by tests/command_line/test_interruption.py and tests/command_line/test_command_line.py.
"""

from __future__ import annotations

import sys

if __name__ == "__main__" and not sys.flags.safe_path:
    del sys.path[0]  # the current folder, whose yaml.py would be imported

import signal

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C before `main` ends the process without a traceback

import gc
import os

from roundround.distributed.interruption import end_at_once, on_signals, send_again


def main() -> None:
    on_signals(end_at_once)
    sys.unraisablehook = send_again
    os.environ["PYTHONSAFEPATH"] = "1"  # processes that libraries start import nothing from the current folder
    os.environ.pop("MPLBACKEND", None)  # a notebook's, which its commands inherit, may not be known here
    gc.set_threshold(50_000)  # objects; with the default of 700, imports take half a second longer
    from roundround.support.console import open_streams

    open_streams()
    from roundround.cli import leave, run

    leave(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
