"""A signal before there is anything to save: one line, 130 or 143, nothing left."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

STOPPED = """
import os, sys

class Stopper:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), {signum})

sys.meta_path.insert(0, Stopper())
from roundround.__main__ import main
sys.argv[0] = "roundround"
main()
"""


@pytest.mark.parametrize(
    ("module", "signum", "code"),
    [("typer", signal.SIGINT, 130), ("hydra", signal.SIGTERM, 143), ("torch", signal.SIGINT, 130)],
)
def test_a_signal_while_modules_are_imported_is_one_line(
    here: Path, module: str, signum: signal.Signals, code: int
) -> None:
    program = STOPPED.format(module=module, signum=int(signum))
    done = subprocess.run(
        [sys.executable, "-c", program, "train", "logger=none"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (code, f"roundround: interrupted by {signum.name}\n")
    assert list(here.glob("outputs/*/*/*")) == []


def test_a_signal_while_the_config_is_composed_leaves_no_directory(here: Path) -> None:
    program = STOPPED.format(module="nothing", signum=0).replace(
        "main()\n",
        "import roundround.command_line.launch as launch\n"
        f"launch.Job.__call__ = lambda *_: os.kill(os.getpid(), {int(signal.SIGTERM)})\n"
        "main()\n",
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "train", "logger=none"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (143, "roundround: interrupted by SIGTERM\n")
    assert list(here.glob("outputs/*/*/*")) == []
