"""Runs a verb in a process of its own, for another verb or for a user's Python code.

Tested by tests/analysis/test_rerun.py, tests/verbs/test_reproduce.py and tests/test_api.py.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path

from roundround.distributed.interruption import interrupt, on_signals, put_back
from roundround.support.errors import AlreadyReported, Interrupted

RAISES = "HYDRA_FULL_ERROR"  # the parent's command sets it; a child runs without it, to print an error as one line
PACKAGES = Path(__file__).resolve().parents[2]  # the folder that holds roundround


class VerbFailed(Exception):
    """A verb failed with this exit code, after it printed the reason on standard error."""

    def __init__(self, command: str, code: int) -> None:
        super().__init__(f"{command} ended with exit code {code}")
        self.code = code


def clean_environment() -> dict[str, str]:
    """The environment of a Python process that imports nothing from the current folder."""
    own = filter(os.path.isabs, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    # without PYTHONIOENCODING a child writes in the encoding of the locale, in which this process reads it
    inherited = {name: value for name, value in os.environ.items() if name not in (RAISES, "PYTHONIOENCODING")}
    return inherited | {"PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join([str(PACKAGES), *own])}


def start(
    words: Sequence[str],
    folder: Path | None = None,
    log: Path | None = None,
    tell: Callable[[str], None] | None = None,
) -> Path:
    """Run `roundround WORDS` in `folder` (None: the current folder); returns the run directory.

    If a signal stops this process, the child gets the signal and ends first. Raises AlreadyReported if the verb refused
    its input, and VerbFailed if the verb failed; in both cases the child has printed the reason. log: a file for the
    child's standard error. tell: a function that gets each line of the child's standard error, instead of `log`.
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
            process_group=0,  # so that Ctrl-C reaches the child only through this process
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
    return directory_of(words, child.returncode, printed)


def hand_on(lines: Iterable[str] | None, tell: Callable[[str], None] | None) -> None:
    """Call `tell` with each line, until the stream ends."""
    if lines is not None and tell is not None:
        for line in lines:
            tell(line.rstrip("\n"))


def directory_of(words: Sequence[str], code: int, printed: str) -> Path:
    """The run directory, which a verb prints as its last line.

    Raises AlreadyReported for exit code 2, and VerbFailed for any other code that is not 0.
    """
    if code == 2:
        raise AlreadyReported(f"roundround {' '.join(words)} was refused")
    if code:
        raise VerbFailed(f"roundround {' '.join(words)}", code)
    return Path(printed.strip().splitlines()[-1])


WARM = [
    "roundround.verbs.train.run",
    "roundround.verbs.eval.run",
    "roundround.verbs.probe.run",
    "roundround.command_line.launch",
]


def start_warm(words: Sequence[str], log: Path) -> Path:
    """Like `start`, but forks from a process that has already imported the verbs, which saves seconds each time.

    Standard error is appended to the file `log`. On a system without a fork server it calls `start`.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return start(words, log=log)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(WARM)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "out")
        child = context.Process(target=be_verb, args=(list(words), str(out), str(log)))
        child.start()
        handlers = on_signals(interrupt)
        try:
            child.join()
        except Interrupted as stop:
            os.kill(child.pid or 0, stop.signum)
            child.join()
            raise
        finally:
            put_back(handlers)
        return directory_of(words, child.exitcode or 0, out.read_text(encoding="utf-8", errors="replace"))


def be_verb(words: list[str], out: str, log: str) -> None:
    """Run `roundround WORDS` in this process, with standard output and standard error in files."""
    os.setpgid(0, 0)  # so that Ctrl-C reaches this process only through its parent
    os.environ.pop(RAISES, None)
    for number, path, stream in ((1, out, sys.stdout), (2, log, sys.stderr)):
        stream.reconfigure(encoding="utf-8")  # type: ignore[union-attr]  # as `start_warm` reads it
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(handle, number)
        os.close(handle)
    sys.argv = ["roundround", *words]
    runpy.run_module("roundround", run_name="__main__")
