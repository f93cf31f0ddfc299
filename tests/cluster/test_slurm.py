"""Jobs of a real Slurm: several tasks, a sweep, one that is put back into the queue, and one that fails."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from cluster_fixtures import ROUNDROUND, Job, manifests, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("slurm")]
ENDLESS = ["trainer.max_steps=1000000", "validate_every=1000000", "checkpoint_every=20"]
WITH_WANDB = ["logger=wandb"]  # offline


def typed(*words: str) -> str:
    return shlex.join([*ROUNDROUND, *words])


def last_step(run: Path) -> int:
    """The step of the newest checkpoint; 0 where there is none."""
    return max((int(path.name.partition("-")[2]) for path in run.glob("checkpoints/step-*")), default=0)


def test_two_tasks_are_one_run(submit: Callable[..., Job], here: Path, fast: list[str]) -> None:
    job = submit(f"srun {typed('train', *fast, 'trainer.devices=auto')}", "--ntasks=2")
    assert job.end()["ExitCode"] == "0:0", job.said()
    ((run, manifest),) = manifests(here).items()
    assert manifest["status"] == "done"
    assert (here / "out.txt").read_text().split() == [str(run)]


def test_a_job_that_fails_has_its_exit_code_and_status(submit: Callable[..., Job], here: Path, fast: list[str]) -> None:
    command = typed("train", *fast, "trainer.devices=auto", "optim.lr=1e30", "trainer.max_steps=20")
    job = submit(f"srun {command}", "--ntasks=2")
    ended = job.end()
    assert (ended["JobState"], ended["ExitCode"]) == ("FAILED", "1:0"), job.said()
    (manifest,) = manifests(here).values()
    assert manifest["status"].startswith("failed: NotFinite"), manifest["status"]
    assert job.said().count("roundround train: ") == 1


def test_wrong_input_is_one_line_and_exit_code_2(submit: Callable[..., Job], here: Path, fast: list[str]) -> None:
    job = submit(f"srun {typed('train', *fast, 'trainer.devices=3')}", "--ntasks=2")
    assert job.end()["ExitCode"] == "2:0", job.said()
    assert "srun started 2 processes" in job.said()
    assert job.said().count("roundround train: ") == 1
    assert manifests(here) == {}


def test_a_job_put_back_into_the_queue_goes_on_in_its_own_directory(
    submit: Callable[..., Job], here: Path, fast: list[str]
) -> None:
    job = submit(f"srun {typed('train', *fast, 'trainer.devices=auto', *ENDLESS, *WITH_WANDB)}", "--ntasks=2")
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
