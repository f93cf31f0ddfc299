"""Jobs of a real Slurm of this one machine: several tasks, a sweep, one put back into the queue, one that fails."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("slurm")]
ENDLESS = ["trainer.max_steps=1000000", "validate_every=1000000", "checkpoint_every=20"]
WITH_WANDB = ["logger=wandb"]  # offline
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

    def end(self, seconds: float = 150) -> dict[str, str]:
        """Wait until it has ended; what Slurm says of it then."""
        wait_until(
            lambda: self.facts()["JobState"] in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT"), seconds, self.said
        )
        return self.facts()

    def start_again(self) -> None:
        """Wait until it is back in the queue, and spare it the two minutes that Slurm lets it rest."""
        wait_until(lambda: self.facts()["Restarts"] != "0" and self.facts()["JobState"] == "PENDING", 60, self.said)
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
        asked = ["--parsable", "--output=out.txt", "--error=err.txt", "--open-mode=append", "--nodes=1", *options]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run(["sbatch", *asked, script], capture_output=True, text=True, check=True, env=environment)
        jobs.append(Job(done.stdout.strip().split(";")[0], here))
        return jobs[-1]

    yield submit
    for job in jobs:
        subprocess.run(["scancel", job.number], check=False)


def manifests(folder: Path) -> dict[Path, dict[str, Any]]:
    """The runs below a folder, those of sweeps too."""
    return {path.parent: json.loads(path.read_text()) for path in sorted(folder.glob("outputs/**/run.json"))}


def last_step(run: Path) -> int:
    """The step of the newest checkpoint; 0 where there is none."""
    return max((int(path.name.partition("-")[2]) for path in run.glob("checkpoints/step-*")), default=0)


def test_two_tasks_are_one_run(submit: Callable[..., Job], here: Path, fast: list[str]) -> None:
    job = submit(f"srun {shlex.join([*ROUNDROUND, 'train', *fast, 'trainer.devices=auto'])}", "--ntasks=2")
    assert job.end()["ExitCode"] == "0:0", job.said()
    ((run, manifest),) = manifests(here).items()
    assert manifest["status"] == "done"
    assert (here / "out.txt").read_text().split() == [str(run)]


def test_a_job_that_fails_has_its_exit_code_and_status(submit: Callable[..., Job], here: Path, fast: list[str]) -> None:
    command = shlex.join([*ROUNDROUND, "train", *fast, "trainer.devices=auto", "optim.lr=1e30", "trainer.max_steps=20"])
    job = submit(f"srun {command}", "--ntasks=2")
    ended = job.end()
    assert (ended["JobState"], ended["ExitCode"]) == ("FAILED", "1:0"), job.said()
    (manifest,) = manifests(here).values()
    assert manifest["status"].startswith("failed: NotFinite"), manifest["status"]
    assert job.said().count("roundround train: ") == 1


def test_wrong_input_is_one_line_and_exit_code_2(submit: Callable[..., Job], here: Path, fast: list[str]) -> None:
    job = submit(f"srun {shlex.join([*ROUNDROUND, 'train', *fast, 'trainer.devices=3'])}", "--ntasks=2")
    assert job.end()["ExitCode"] == "2:0", job.said()
    assert "srun started 2 processes" in job.said()
    assert job.said().count("roundround train: ") == 1
    assert manifests(here) == {}


def test_a_job_put_back_into_the_queue_goes_on_in_its_own_directory(
    submit: Callable[..., Job], here: Path, fast: list[str]
) -> None:
    words = [*ROUNDROUND, "train", *fast, "trainer.devices=auto", *ENDLESS, *WITH_WANDB]
    job = submit(f"srun {shlex.join(words)}", "--ntasks=2")
    wait_until(lambda: any(last_step(run) for run in manifests(here)), 90, job.said)
    ((run, before),) = manifests(here).items()
    subprocess.run(["scontrol", "requeue", job.number], check=True)
    wait_until(lambda: manifests(here)[run]["status"] == "interrupted", 60, job.said)
    stopped = last_step(run)
    job.start_again()
    wait_until(lambda: last_step(run) > stopped, 90, job.said)
    subprocess.run(["scancel", job.number], check=True)
    job.end()
    ((again, after),) = manifests(here).items()
    assert again == run
    assert (after["started"], after["wandb"]["id"]) == (before["started"], before["wandb"]["id"])
    assert f"resuming after step {stopped}" in job.said()


def test_a_sweep_of_four_is_four_jobs(here: Path, fast: list[str]) -> None:
    words = ["train", "-m", "pe=rope,nope", "seed=1,2", *fast, "hydra/launcher=submitit_slurm"]
    done = subprocess.run(
        [*ROUNDROUND, *words, "hydra.launcher.timeout_min=10"],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    found = manifests(here)
    assert [manifest["status"] for manifest in found.values()] == ["done"] * 4
    assert {(m["choices"]["pe"], m["seed"]) for m in found.values()} == {
        (pe, seed) for pe in ("rope", "nope") for seed in (1, 2)
    }
    assert {run.parent for run in found} == {Path(done.stdout.splitlines()[-1])}


def test_a_job_of_a_sweep_that_submitit_puts_back_goes_on_in_its_own_directory(here: Path, fast: list[str]) -> None:
    words = ["train", "-m", "seed=1", *fast, *ENDLESS, *WITH_WANDB, "hydra/launcher=submitit_slurm"]
    parent = subprocess.Popen([*ROUNDROUND, *words, "hydra.launcher.timeout_min=30"], stderr=subprocess.DEVNULL)
    try:
        job = Job("", here)
        wait_until(lambda: any(last_step(run) for run in manifests(here)), 120, job.said)
        ((run, before),) = manifests(here).items()
        number = before["job"].split()[1]
        subprocess.run(["scancel", "--signal=USR2", number], check=True)  # as Slurm does before the time is over
        wait_until(lambda: manifests(here)[run]["status"] == "interrupted", 60, job.said)
        stopped = last_step(run)
        Job(number, here).start_again()
        wait_until(lambda: last_step(run) > stopped, 90, job.said)
        subprocess.run(["scancel", number], check=True)
    finally:
        parent.kill()
        parent.wait()
    ((again, after),) = manifests(here).items()
    assert again == run
    assert (after["started"], after["wandb"]["id"]) == (before["started"], before["wandb"]["id"])
