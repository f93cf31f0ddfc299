"""Processes that a launcher starts: which rank each is, what it leaves to the first, and what is refused."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from conftest import Done, shell
from helpers_manifest import a_manifest

from roundround.distributed import launcher
from roundround.distributed.device import pick_device
from roundround.records.directories import remove_scratch, run_directory, sweep_directory
from roundround.support.errors import AlreadyReported, UserError
from roundround.support.files import write_json
from roundround.verbs import VERBS

# what launchers set, for the second of two processes
TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none",
    "RANK": "1",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_WORLD_SIZE": "2",
}
SRUN = {
    "SLURM_NTASKS": "2",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_ID": "0",
    "SLURM_JOB_NAME": "python",
}
SHARING = [verb.name for verb in VERBS if verb.parallel]
LIGHTNING = {"LOCAL_RANK": "1", "NODE_RANK": "0", "MASTER_PORT": "1234", "WORLD_SIZE": "2"}


SCRIPT = {"SLURM_NTASKS": "2", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_JOB_NAME": "job"}  # of sbatch
SHELL = {"SLURM_NTASKS": "2", "SLURM_JOB_NAME": "job", "SLURM_JOB_ID": "7"}  # of salloc -J job


def set_all(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No launcher around the tests says which rank this is."""
    for name in (*TORCHRUN, *SRUN, *LIGHTNING):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("environment", "rank"),
    [
        ({}, 0),
        (TORCHRUN, 1),
        (SRUN, 1),
        (LIGHTNING, 1),
        ({**TORCHRUN, "RANK": "5", "WORLD_SIZE": "8"}, 5),  # a process of the second machine
        ({**SRUN, **TORCHRUN, "RANK": "0"}, 0),  # torchrun inside a Slurm job
        ({**LIGHTNING, "RANK": "1", "LOCAL_RANK": "0"}, 0),  # a stale RANK around Lightning
        ({"RANK": "1"}, 0),
        ({"RANK": "1", "WORLD_SIZE": "2"}, 0),
        ({"LOCAL_RANK": "1"}, 0),
        ({"SLURM_PROCID": "3"}, 0),
        ({**SRUN, "SLURM_JOB_NAME": "interactive"}, 0),
        (SCRIPT, 0),
        (SHELL, 0),
        ({**SHELL, **LIGHTNING}, 1),
        ({**SHELL, **TORCHRUN}, 1),
    ],
)
def test_the_rank_is_the_one_among_all_machines(
    environment: dict[str, str], rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_all(monkeypatch, environment)
    assert launcher.rank() == rank


def test_srun_says_how_many_tasks_a_machine_has(monkeypatch: pytest.MonkeyPatch) -> None:
    for nodes, n in (("1", 4), ("2", 2)):
        set_all(monkeypatch, {**SRUN, "SLURM_STEP_NUM_NODES": nodes, "SLURM_NODEID": "1", "SLURM_NTASKS": "4"})
        launched = launcher.launch()
        assert launched is not None
        assert (launched.n_on_machine, launched.machine) == (n, 1)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("gpu[03-05,9],login", "gpu03"), ("n[1,3]", "n1"), ("a,b", "a"), ("alone", "alone")],
)
def test_the_first_machine_of_slurms_list_is_the_one_to_meet_at(nodes: str, first: str) -> None:
    assert launcher.first_host(nodes) == first


@pytest.mark.parametrize("verb", [verb.name for verb in VERBS if not verb.parallel])
def test_verbs_that_do_not_gain_refuse_several_processes_in_one_line(
    verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_all(monkeypatch, {**TORCHRUN, "RANK": "0"})
    with pytest.raises(UserError, match="torchrun started 2; start it without a launcher"):
        launcher.check_alone(verb, SHARING)
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(AlreadyReported):
        launcher.check_alone(verb, SHARING)
    launcher.check_alone("train", SHARING)


# -- a job that Slurm puts back into the queue


@pytest.fixture
def requeued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of job 7, which Slurm has started again since."""
    run = tmp_path / "train" / "2025-01-01" / "10-00-00"
    run.mkdir(parents=True)
    set_all(monkeypatch, {"SLURM_JOB_ID": "7", "SLURM_CLUSTER_NAME": "big"})
    write_json(run / "run.json", a_manifest(status="interrupted", job=launcher.job(), overrides=["pe=rope", "seed=1"]))
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    return run


@pytest.mark.parametrize("others", [{}, SRUN], ids=["alone", "second task"])
def test_a_job_that_starts_again_finds_its_own_run(
    others: dict[str, str], requeued: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_all(monkeypatch, others)
    assert run_directory(str(tmp_path), "train", None, ["seed=1", "pe=rope"]) == str(requeued)


def test_what_torchrun_starts_again_finds_its_own_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "train" / "2025-01-01" / "10-00-00"
    run.mkdir(parents=True)
    set_all(monkeypatch, TORCHRUN)
    write_json(run / "run.json", a_manifest(status="failed: rank 1", job=launcher.job(), overrides=["pe=rope"]))
    assert run_directory(str(tmp_path), "train", None, ["pe=rope"]) != str(run)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert run_directory(str(tmp_path), "train", None, ["pe=rope"]) == str(run)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "another")
    assert run_directory(str(tmp_path), "train", None, ["pe=rope"]) != str(run)


def test_two_runs_on_one_port_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the second of one, whose port another has, would leave its failure in the store of the other."""
    found = set()
    for name, value in {**SRUN, "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "1"}.items():
        monkeypatch.setenv(name, value)
    for variables in ({}, {"SLURM_STEP_ID": "2"}, {"SLURM_JOB_ID": "8"}):
        set_all(monkeypatch, variables)
        launched = launcher.launch()
        assert launched is not None
        found.add((launcher.name_of_run(launched), launcher.address()[1]))
    assert len({name for name, _ in found}) == len({port for _, port in found}) == 3


@pytest.mark.parametrize("differs", [{"SLURM_JOB_ID": "8"}, {"SLURM_RESTART_COUNT": "0"}, {}])
def test_another_job_or_command_gets_a_run_of_its_own(
    differs: dict[str, str], requeued: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_all(monkeypatch, differs)
    overrides = ["pe=rope", "seed=1"] if differs else ["pe=nope"]
    assert run_directory(str(tmp_path), "train", None, overrides) != str(requeued)


@pytest.mark.parametrize(
    ("environment", "trainer", "message"),
    [
        (TORCHRUN, (0, 1), r"torchrun started 2 processes .* is 1; give trainer.devices=2"),
        (TORCHRUN, (1, 2), None),
        (SRUN, (1, 4), r"srun started 2 processes .* is 4"),
        (SRUN, (1, 2), None),
        ({"RANK": "1"}, (0, 1), None),
        (SHELL, (0, 2), None),
        ({}, (0, 2), None),
    ],
)
def test_processes_that_the_trainer_does_not_count_are_refused(
    environment: dict[str, str], trainer: tuple[int, int], message: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from roundround.training.trainer import check_processes

    set_all(monkeypatch, environment)
    with pytest.raises(UserError, match=message) if message else nullcontext():
        check_processes(*trainer)


def test_a_script_of_sbatch_for_two_tasks_trains_with_srun_alone(
    train: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_all(monkeypatch, {**SCRIPT, "SLURM_NTASKS_PER_NODE": "2"})
    done = train("trainer.devices=auto")
    assert (done.code, done.out) == (2, "")
    assert done.err.splitlines()[-1].endswith("this Slurm job has 2 tasks; put srun in front of the command")


@pytest.mark.parametrize("environment", [TORCHRUN, SRUN], ids=["torchrun", "srun"])
def test_a_sweep_of_processes_of_a_launcher_is_refused(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_all(monkeypatch, environment)
    with pytest.raises(UserError, match="leave out -m"):
        sweep_directory(str(tmp_path), "train")
    assert list(tmp_path.iterdir()) == []


# -- what a process other than the first leaves


def test_other_ranks_get_a_scratch_folder_and_leave_outputs_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_all(monkeypatch, TORCHRUN)
    scratch = Path(run_directory(str(tmp_path / "outputs"), "train", None))
    assert scratch.is_dir()
    assert not (tmp_path / "outputs").exists()
    remove_scratch(scratch)
    assert not scratch.exists()


# -- whole processes


def processes(*command: str, here: Path) -> Done:
    """A command that starts several of ours, whose scratch folders lie in `here`."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TMPDIR": str(here)}
    done = subprocess.run(command, cwd=here, capture_output=True, text=True, timeout=240, check=False, env=environment)
    return Done(done.returncode, done.stdout, done.stderr)


@pytest.mark.slow
def test_processes_of_torchrun_go_on_with_one_run(here: Path, fast: list[str], train: Callable[..., Done]) -> None:
    options = ["trainer.strategy=ddp", "trainer.devices=auto"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "roundround"]
    whole = processes(*torchrun, "train", *fast, *options, here=here)
    assert whole.code == 0, whole.err
    before = (whole.directory / "checkpoints/last/model.safetensors").read_bytes()
    shutil.rmtree(whole.directory / "checkpoints" / "step-00000004")
    again = processes(*torchrun, "train", f"resume={whole.directory}", "logger=none", here=here)
    assert again.code == 0, again.err
    assert again.out.split() == [str(whole.directory)]
    assert again.err.count("resuming after step 2") == 1
    assert (whole.directory / "checkpoints/last/model.safetensors").read_bytes() == before
    assert not list(here.glob("roundround-rank-*"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("verb", "words", "tolerance"),
    [
        ("eval", ["run=last", "length=[32,64]", "max_tokens=640", "dispersion=true"], 1e-12),
        ("max-retrieval", ["seeds=3", "max_steps=60", "model.width=16", "test_sizes=[16,64]", "test_sets=64"], 1e-5),
    ],
)
def test_the_numbers_of_two_processes_are_those_of_one(
    verb: str, words: list[str], tolerance: float, here: Path, train: Callable[..., Done]
) -> None:
    if verb == "eval":
        assert train().code == 0
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "roundround"]
    two = processes(*torchrun, verb, *words, "logger=none", "device=cpu", here=here)
    one = shell(verb, *words, "logger=none", "device=cpu", cwd=here)
    assert (one.code, two.code) == (0, 0), two.err
    mine, theirs = ([{**r, "run": None, "value": None} for r in done.results] for done in (one, two))
    assert mine == theirs
    values = [[r["value"] for r in done.results] for done in (one, two)]
    assert values[0] == pytest.approx(values[1], rel=tolerance, abs=tolerance)


def no_slurm() -> str | None:
    """Why no job can be started here; None where one can."""
    if shutil.which("srun") is None:
        return "there is no srun here"
    try:
        answer = subprocess.run(["scontrol", "ping"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "slurmctld does not answer"
    return None if "is UP" in answer.stdout else "no slurmctld is running here"


@pytest.mark.slow
def test_processes_of_srun_share_a_run(here: Path, fast: list[str]) -> None:
    why = no_slurm()
    if why is not None:
        pytest.skip(why)
    srun = ["srun", "--ntasks=2", "--ntasks-per-node=2", sys.executable, "-m", "roundround"]
    done = processes(*srun, "train", *fast, "trainer.devices=auto", "trainer.max_steps=2", here=here)
    assert done.code == 0, done.err
    runs = list(here.glob("outputs/train/*/*"))
    assert done.out.split() == [str(run) for run in runs]
    assert len(runs) == 1
    assert json.loads((runs[0] / "run.json").read_text())["status"] == "done"
    assert not list(here.glob("roundround-rank-*"))


@pytest.mark.parametrize(("name", "expected"), [("cuda", []), ("auto", []), ("cuda:1", [1])])
def test_kernels_are_launched_on_the_gpu_that_is_asked_for(
    name: str, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton takes the current GPU of a process, whichever has the tensors."""
    chosen: list[int] = []
    monkeypatch.setattr(torch, "empty", lambda *sizes, device: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch._C, "_cuda_setDevice", chosen.append, raising=False)
    assert pick_device(name) == torch.device("cuda" if name == "auto" else name)
    assert chosen == expected
