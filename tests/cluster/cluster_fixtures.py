"""A real Slurm of this one machine for the tests of this folder: started for them, and stopped after them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parent / "slurm.sh"
ROUNDROUND = [sys.executable, "-m", "roundround"]


@pytest.fixture(scope="session")
def slurm() -> Iterator[None]:
    why = subprocess.run(["sh", SCRIPT, "why"], capture_output=True, text=True, check=True).stdout.strip()
    if why:
        pytest.skip(why)
    subprocess.run(["sh", SCRIPT, "start"], check=True, timeout=120)
    yield
    subprocess.run(["sh", SCRIPT, "stop"], check=True, timeout=60)


@dataclass
class Job:
    """A job of Slurm by number, and the folder that its output lies in."""

    number: str
    folder: Path

    def facts(self) -> dict[str, str]:
        """What Slurm says of it."""
        shown = subprocess.run(["scontrol", "show", "job", self.number], capture_output=True, text=True, check=True)
        return dict(re.findall(r"(\w+)=(\S*)", shown.stdout))

    def state(self) -> str:
        return self.facts()["JobState"]

    def end(self, seconds: float = 150) -> dict[str, str]:
        """Wait until it has ended; what Slurm says of it then."""
        wait_until(lambda: self.state() in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT"), seconds, self.said)
        return self.facts()

    def start_again(self) -> None:
        """Wait until it is back in the queue, and spare it the two minutes that Slurm lets it rest."""
        wait_until(lambda: self.facts()["Restarts"] != "0" and self.state() == "PENDING", 60, self.said)
        subprocess.run(["scontrol", "update", f"JobId={self.number}", "StartTime=now"], check=True)

    def said(self) -> str:
        return "\n".join(path.read_text() for path in self.folder.glob("*.txt"))


def wait_until(come: Callable[[], Any], seconds: float, said: Callable[[], str]) -> None:
    """Until this has come; AssertionError with what was said where it does not in time."""
    deadline = time.monotonic() + seconds
    while not come():
        assert time.monotonic() < deadline, said()
        time.sleep(0.2)


@pytest.fixture
def submit(here: Path) -> Iterator[Callable[..., Job]]:
    """`submit("srun -n2 ...", "--ntasks=2")`: a script of sbatch, in an empty folder."""
    jobs = []

    def submit(command: str, *options: str) -> Job:
        script = here / "job.sh"
        script.write_text(f"#!/bin/sh\n{command}\n")
        done = subprocess.run(
            [
                "sbatch",
                "--parsable",
                "--output=out.txt",
                "--error=err.txt",
                "--open-mode=append",
                "--nodes=1",
                *options,
                script,
            ],
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        jobs.append(Job(done.stdout.strip().split(";")[0], here))
        return jobs[-1]

    yield submit
    for job in jobs:
        subprocess.run(["scancel", job.number], check=False)


def manifests(folder: Path) -> dict[Path, dict[str, Any]]:
    """The runs below a folder, those of sweeps too."""
    return {path.parent: json.loads(path.read_text()) for path in sorted(folder.glob("outputs/**/run.json"))}
