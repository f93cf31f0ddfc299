"""One of several processes is killed: the others end, one says which it was, and `resume=` continues the run.

Whole processes, as the launchers start them; tests/cluster does the same under Slurm.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from forkserver import process_of

ROUNDROUND = ["-m", "roundround"]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone"]
VARIABLES = {"torchrun": "RANK", "Lightning": "LOCAL_RANK"}  # by launcher, that of a process's rank
ENDLESS = ["trainer.max_steps=1000000", "validate_every=1000000", "checkpoint_every=20"]
MINUTE = 60.0


@pytest.mark.faults
@pytest.mark.parametrize(  # of four in a ring, rank 2 stands opposite rank 0, which writes the run
    ("launcher", "n", "rank"),
    [
        *(("torchrun", 2, 0), ("torchrun", 2, 1), ("torchrun", 4, 2), ("torchrun", 4, 0)),
        *(("Lightning", 2, 0), ("Lightning", 2, 1), ("Lightning", 4, 2)),
    ],
)
def test_a_killed_process_is_named_by_the_others(launcher: str, n: int, rank: int, here: Path, fast: list[str]) -> None:
    words = [*ROUNDROUND, "train", *fast, *ENDLESS, f"trainer.devices={n}", f"batch_size={n}"]
    if launcher == "torchrun":
        words = [*TORCHRUN, f"--nproc-per-node={n}", *words]
    with started(words, here) as process:
        checkpoint = wait_for_a_checkpoint(here, process)
        line = said_of_killed(f"{rank} of {n}", process_of(str(rank), VARIABLES[launcher], here), process, here)
    run = checkpoint.parent.parent
    assert line.count("roundround train: ") == 1
    assert json.loads((run / "run.json").read_text())["status"].startswith(f"failed: rank {rank} of {n} was killed")
    before = last_step(run)
    words = [*ROUNDROUND, "train", f"resume={run}"]
    process = subprocess.Popen([sys.executable, *words], cwd=here, env=os.environ | {"OMP_NUM_THREADS": "1"})
    try:
        deadline = time.monotonic() + 2 * MINUTE
        while last_step(run) <= before:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        process.terminate()
        assert process.wait(MINUTE) == 143
    finally:
        process.kill()


@pytest.mark.faults
def test_what_torchrun_starts_again_resumes_in_its_own_directory(here: Path, fast: list[str]) -> None:
    steps = ["trainer.max_steps=300", "validate_every=1000000", "checkpoint_every=20"]
    words = [*TORCHRUN, "--nproc-per-node=2", "--max-restarts=2", *ROUNDROUND, "train", *fast, *steps]
    with started([*words, "trainer.devices=2"], here) as process:
        checkpoint = wait_for_a_checkpoint(here, process)
        os.kill(process_of("1", "RANK", here), signal.SIGKILL)
        assert process.wait(4 * MINUTE) == 0
    run = checkpoint.parent.parent
    assert list(here.glob("outputs/train/*/*")) == [run]
    assert json.loads((run / "run.json").read_text())["status"] == "done"
    assert last_step(run) == 300


@pytest.mark.faults
@pytest.mark.parametrize("rank", ["0", "1"])
@pytest.mark.parametrize("seconds", [0, 2, 4, 5, 6])
def test_one_that_is_killed_while_they_start_is_named_too(
    rank: str, seconds: float, here: Path, fast: list[str]
) -> None:
    with started([*ROUNDROUND, "train", *fast, *ENDLESS, "trainer.devices=2"], here) as process:
        deadline = time.monotonic() + MINUTE
        while process_of("1", "LOCAL_RANK", here) is None:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        time.sleep(seconds)
        pid = process.pid if rank == "0" else process_of(rank, "LOCAL_RANK", here)
        line = said_of_killed(f"{rank} of 2", pid, process, here)
    assert line.count("roundround train: ") == 1
    assert "Traceback" not in line
    assert all((run / "run.json").exists() for run in here.glob("outputs/train/*/*"))  # one that has not begun is gone


@contextmanager
def started(words: list[str], here: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Python with these words, its standard error in err.txt; killed at the end."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TMPDIR": str(here)}
    with open(here / "err.txt", "w") as err:
        process = subprocess.Popen(
            [sys.executable, *words], cwd=here, stderr=err, stdout=subprocess.DEVNULL, env=environment
        )
        try:
            yield process
        finally:
            process.kill()


def said_of_killed(rank: str, pid: int | None, first: subprocess.Popen[bytes], here: Path) -> str:
    """Standard error after a process, such as rank `1 of 2`, was killed: all end, and one names it in a minute."""
    assert pid is not None, f"no process of rank {rank}"
    os.kill(pid, signal.SIGKILL)
    killed = time.monotonic()
    first.wait(MINUTE)  # it may be the one that was killed, and the others outlive it
    while f"rank {rank} was killed" not in (said := (here / "err.txt").read_text()):
        assert time.monotonic() < killed + MINUTE, said
        time.sleep(0.1)
    return said


def last_step(run: Path) -> int:
    return max(int(path.name.partition("-")[2]) for path in run.glob("checkpoints/step-*"))


def wait_for_a_checkpoint(here: Path, process: subprocess.Popen[Any]) -> Path:
    deadline = time.monotonic() + 2 * MINUTE
    while time.monotonic() < deadline and process.poll() is None:
        found = list(here.glob("outputs/train/*/*/checkpoints/step-*"))
        if found:
            return found[0]
        time.sleep(0.05)
    raise AssertionError((here / "err.txt").read_text())
