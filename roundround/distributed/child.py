"""A verb in a process of its own, started by another verb or by somebody's Python.

Tested by tests/analysis/test_rerun.py, tests/verbs/test_reproduce.py and tests/test_api.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path

from roundround.distributed.interruption import interrupt, on_signals, put_back
from roundround.support.errors import AlreadyReported, Interrupted

RAISES = "HYDRA_FULL_ERROR"  # the parent's command sets it while it runs; a child prints an error as one line
PACKAGES = Path(__file__).resolve().parents[2]  # the folder that holds roundround


class VerbFailed(Exception):
    """A verb printed on standard error what went wrong; with its exit code."""

    def __init__(self, command: str, code: int) -> None:
        super().__init__(f"{command} ended with exit code {code}")
        self.code = code


def clean_environment() -> dict[str, str]:
    """The environment of a Python process that imports nothing from the current folder."""
    own = filter(os.path.isabs, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    # a child writes in the encoding of the locale, in which it is read
    inherited = {name: value for name, value in os.environ.items() if name not in (RAISES, "PYTHONIOENCODING")}
    return inherited | {"PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join([str(PACKAGES), *own])}


def start(
    words: Sequence[str],
    folder: Path | None = None,
    log: Path | None = None,
    tell: Callable[[str], None] | None = None,
) -> Path:
    """Run `roundround WORDS`, in this folder or the current one; returns its run directory.

    A signal is passed on to it first. AlreadyReported if it was refused, VerbFailed if it failed; it has printed why.
    log: a file for its standard error. tell: gets each line of its standard error instead.
    """
    command = [sys.executable, "-m", "roundround", *words]
    with (
        nullcontext() if log is None else log.open("a", encoding="utf-8") as errors,
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=errors if tell is None else subprocess.PIPE,
            text=True,
            errors="replace",  # libraries may write in any encoding
            process_group=0,  # Ctrl-C comes from here alone
            cwd=folder,
            env=clean_environment(),
        ) as child,
    ):
        handlers = on_signals(interrupt)
        try:
            hand_on(child.stderr, tell)
            printed, _ = child.communicate()
        except Interrupted as stop:
            child.send_signal(stop.signum)
            hand_on(child.stderr, tell)
            child.wait()
            raise
        finally:
            put_back(handlers)
    if child.returncode == 2:
        raise AlreadyReported(f"roundround {' '.join(words)} was refused")
    if child.returncode:
        raise VerbFailed(f"roundround {' '.join(words)}", child.returncode)
    return Path(printed.strip().splitlines()[-1])


def hand_on(lines: Iterable[str] | None, tell: Callable[[str], None] | None) -> None:
    """Give each line to `tell` until there are no more."""
    if lines is not None and tell is not None:
        for line in lines:
            tell(line.rstrip("\n"))
