"""A command as a whole process, as a shell would start it: imports included."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from forkserver import Ended, limit_memory

COMMAND = (sys.executable, "-m", "roundround")


def in_a_process(
    command: Sequence[str],
    folder: Path,
    *,
    env: Mapping[str, str],
    timeout: float,
    interrupted: tuple[float, signal.Signals] | None = None,
) -> Ended:
    """Run a command in a folder, killed with all it started at its time limit.

    interrupted: (seconds after its start, the signal that it gets then).
    """
    process = subprocess.Popen(
        [os.fsencode(part) for part in command], cwd=folder, env=dict(env), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, preexec_fn=limit_memory,
    )  # fmt: skip
    hung = False
    try:
        if interrupted is not None:
            out, err = output_after(process, *interrupted, timeout)
        else:
            out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        hung = True
    return Ended(process.returncode, *(text.decode(errors="replace") for text in (out, err)), hung)


def output_after(
    process: subprocess.Popen[bytes], moment: float, signum: signal.Signals, timeout: float
) -> tuple[bytes, bytes]:
    """What a process writes that gets a signal at some moment, unless it has ended before."""
    try:
        return process.communicate(timeout=moment)
    except subprocess.TimeoutExpired:
        process.send_signal(signum)
        return process.communicate(timeout=timeout)


def process_of(rank: str, variable: str, folder: Path) -> int | None:
    """The process that works in a folder and has this rank in this variable, by its number; rank 0 may lack it."""
    for of_process in Path("/proc").glob("[0-9]*"):
        try:
            words, environment = (of_process / "cmdline").read_bytes(), (of_process / "environ").read_bytes()
            inside = (of_process / "cwd").readlink() == folder
        except OSError:
            continue
        own = dict(line.partition("=")[::2] for line in environment.decode(errors="replace").split("\0"))
        if inside and b"roundround" in words and b"distributed" not in words and own.get(variable, "0") == rank:
            return int(of_process.name)
    return None
