"""A signal before there is anything to save: one line, 130 or 143, nothing left."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from matplotlib.transforms import BboxBase

from roundround.distributed.interruption import interrupt, on_signals, put_back
from roundround.report.drawing.figures import SCREEN, figure_of, save, styled
from roundround.support.errors import Interrupted
from roundround.support.panels import Curve, Drawing, Panel

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
    assert list(here.glob("outputs/*/*/*/run.json")) == []


@pytest.mark.parametrize("collected", ["weakref.ref(here, stop)", "weakref.finalize(here, stop)"])
def test_a_signal_in_a_callback_whose_errors_python_drops_still_stops_the_run(here: Path, collected: str) -> None:
    program = STOPPED.format(module="nothing", signum=0).replace(
        "main()\n",
        "import time, weakref, roundround.command_line.launch as launch\n"
        f"stop = lambda *_: os.kill(os.getpid(), {int(signal.SIGTERM)})\n"
        "from roundround.distributed.interruption import interrupt, on_signals\n"
        "def job(*_):\n"
        "    on_signals(interrupt)\n"
        "    here = Stopper()\n"
        f"    kept = {collected}\n"
        "    del here\n"
        "    time.sleep(20)\n"
        "launch.Job.__call__ = job\n"
        "main()\n",
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "train", "logger=none"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (143, "roundround train: interrupted by SIGTERM\n")


@pytest.mark.pictures
def test_a_signal_while_matplotlib_draws_waits_for_the_picture(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what is raised in Python code that its native part calls, it makes an error of its own."""
    panel = Panel("x", "y", [Curve("a line", [0.0, 1.0], [1.0, 2.0])])
    with styled(SCREEN) as sizes:
        figure = figure_of(Drawing("line", "a line", [panel]), sizes)
    extents = BboxBase.extents.fget
    asked = iter([signal.SIGTERM])

    def stopped(box: BboxBase) -> Any:
        for signum in asked:
            signal.raise_signal(signum)
        return extents(box)

    monkeypatch.setattr(BboxBase, "extents", property(stopped))
    handlers = on_signals(interrupt)
    try:
        with pytest.raises(Interrupted):
            save(figure, here, "line", ("png",))
    finally:
        put_back(handlers)
    assert next(asked, None) is None
    assert [path.name for path in here.iterdir()] == ["line.png"]
