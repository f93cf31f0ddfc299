"""A verb in a process of its own, started by another verb.

Tested by tests/analysis/test_rerun.py and tests/verbs/test_reproduce.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from roundround.distributed.interruption import interrupt, on_signals, put_back
from roundround.support.errors import AlreadyReported, Interrupted

PACKAGES = Path(__file__).resolve().parents[2]  # the folder that holds roundround


class VerbFailed(Exception):
    """A verb printed on standard error what went wrong; with its exit code."""

    def __init__(self, command: str, code: int) -> None:
        super().__init__(f"{command} ended with exit code {code}")
        self.code = code


def clean_environment() -> dict[str, str]:
    """The environment of a Python process that imports nothing from the current folder."""
    own = filter(os.path.isabs, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    return os.environ | {"PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join([str(PACKAGES), *own])}


def start(words: Sequence[str], folder: Path | None = None) -> Path:
    """Run `roundround WORDS`, in this folder or the current one; its directory.

    A signal is passed on to it first. AlreadyReported where it was refused, VerbFailed where it failed; it has printed
    why.
    """
    command = [sys.executable, "-m", "roundround", *words]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, process_group=0, cwd=folder, env=clean_environment()
    ) as child:  # Ctrl-C comes from here alone
        handlers = on_signals(interrupt)
        try:
            printed, _ = child.communicate()
        except Interrupted as stop:
            child.send_signal(stop.signum)
            child.wait()
            raise
        finally:
            put_back(handlers)
    if child.returncode == 2:
        raise AlreadyReported(f"roundround {' '.join(words)} was refused")
    if child.returncode:
        raise VerbFailed(f"roundround {' '.join(words)}", child.returncode)
    return Path(printed.strip().splitlines()[-1])
