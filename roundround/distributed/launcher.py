"""Who started this process: a person, or a launcher that started several processes to work on one run together.

The environment variables of launchers are read only here, before anything slow is imported; `training/trainer.py`
passes their values on to Lightning. A variable, such as a stale RANK=1, is ignored if other variables of the same
launcher are missing.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from roundround.support.errors import AlreadyReported, UserError

STARTED_BY = "ROUNDROUND_STARTED_BY"  # environment variable: the pid of the process that had Lightning start this one


@dataclass(frozen=True, kw_only=True)
class Launch:
    """The processes that a launcher started, and the numbers of this process among them.

    rank: the number of this process among all processes. local_rank: the number of this process among the processes on
    the same machine. machine: the number of this machine among all machines.
    """

    launcher: str
    rank: int
    local_rank: int
    n_processes: int
    n_on_machine: int
    machine: int = 0


def launch() -> Launch | None:
    """How this process was started; None if a person started it."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return read("torchrun", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", machine="GROUP_RANK")
    in_shell = in_shell_of_salloc() or os.environ.get("SLURM_JOB_NAME") in ("bash", "interactive")
    if "SLURM_NTASKS" in os.environ and not in_shell:
        on_machine = int_of("SLURM_NTASKS") // max(1, int_of("SLURM_STEP_NUM_NODES"))  # equally many on each
        return read("srun", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", on_machine, machine="SLURM_NODEID")
    if {"LOCAL_RANK", "NODE_RANK", "MASTER_PORT", "WORLD_SIZE"} <= os.environ.keys():
        return read("Lightning", "LOCAL_RANK", "LOCAL_RANK", "WORLD_SIZE", "WORLD_SIZE", machine="NODE_RANK")
    return None


def int_of(name: str) -> int:
    """An environment variable as a number; 0 if it is not set or no number."""
    value = os.environ.get(name, "")
    return int(value) if value.isdecimal() else 0


def in_shell_of_salloc() -> bool:
    """Whether this process runs in an allocation of Slurm without being a task that Slurm started.

    Lightning recognises such a shell only by the name of the job, which salloc -J changes.
    """
    return "SLURM_NTASKS" in os.environ and "SLURM_PROCID" not in os.environ


def read(
    launcher: str, rank: str, local_rank: str, n_processes: str, n_on_machine: str | int, *, machine: str
) -> Launch:
    """The launch that the environment variables of these names describe."""
    return Launch(
        launcher=launcher,
        rank=int(os.environ[rank]),
        local_rank=int(os.environ[local_rank]),
        n_processes=int(os.environ[n_processes]),
        n_on_machine=n_on_machine if isinstance(n_on_machine, int) else int(os.environ[n_on_machine]),
        machine=int_of(machine),
    )


def rank() -> int:
    """The rank of this process among all processes of the launch; 0 if a person started it."""
    launched = launch()
    return launched.rank if launched is not None else 0


def together() -> Launch | None:
    """The launch of the processes that work on this run; None if there is only this process."""
    launched = launch()
    if launched is None or launched.n_processes == 1 or without_srun(launched):
        return None  # sbatch runs its script as one process
    return launched


def first_is_gone() -> bool:
    """Whether the first process, which started this process, has ended. This process then has another parent."""
    return STARTED_BY in os.environ and os.getppid() != int_of(STARTED_BY)


def launched_from_outside() -> Launch | None:
    """The launch that `together` returns, if torchrun or srun made it; None if Lightning started the processes."""
    launched = together()
    return None if launched is None or launched.launcher == "Lightning" else launched


def check_alone(verb: str, sharing: Sequence[str]) -> None:
    """Raises UserError if a launcher started several processes and the verb would repeat its work in each of them.

    Only the first process raises UserError; the others raise AlreadyReported. sharing: the verbs that divide their work
    among the processes of a launcher.
    """
    launched = together()
    if launched is None or verb in sharing:
        return
    if launched.rank != 0:
        raise AlreadyReported
    raise UserError(
        f"this verb runs in one process, but {launched.launcher} started {launched.n_processes}; start it without a "
        f"launcher ({', '.join(sharing)} can share their work among processes)"
    )


def without_srun(launched: Launch) -> bool:
    """Whether this process is the script of sbatch: it has the variables of the first task but is not a task."""
    return launched.launcher == "srun" and "SLURM_STEP_ID" not in os.environ


def speaks() -> bool:
    """Whether this process prints for all processes: True only for rank 0."""
    return rank() == 0


def address() -> tuple[str, int]:
    """Host and port at which the processes meet: set by torchrun or Lightning, or derived from the Slurm job."""
    host = os.environ.get("MASTER_ADDR") or first_host(os.environ.get("SLURM_STEP_NODELIST", "127.0.0.1"))
    port = os.environ.get("MASTER_PORT") or str(15000 + (31 * int_of("SLURM_JOB_ID") + int_of("SLURM_STEP_ID")) % 10000)
    return host, int(port)


def name_of_run(launched: Launch) -> str:
    """A name that only the processes of one run share, to distinguish runs that use the same port."""
    names = {
        "torchrun": ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"),  # its store outlives an attempt
        "srun": ("SLURM_JOB_ID", "SLURM_STEP_ID"),
        "Lightning": (STARTED_BY,),
    }
    return " ".join(["roundround", *(os.environ.get(name, "") for name in names[launched.launcher])])


def first_host(nodes: str) -> str:
    """The first machine in Slurm's list, such as gpu03 in `gpu[03-05,9],login`."""
    found = re.match(r"([^\[,]+)(?:\[([^\],-]+)[^\]]*\])?([^,]*)", nodes)
    return "".join(part or "" for part in found.groups()) if found else nodes


def job() -> str | None:
    """The name of this process's job, which stays the same if Slurm or torchrun starts the job again."""
    number, launched = os.environ.get("SLURM_JOB_ID"), os.environ.get("TORCHELASTIC_RUN_ID")
    if launched is not None:  # an unnamed job is called "none"; all of its attempts have the same parent
        return f"torchrun {launched if launched != 'none' else f'{os.getppid()} of {socket.gethostname()}'}"
    return None if number is None else f"slurm {number} of {os.environ.get('SLURM_CLUSTER_NAME', 'a cluster')}"


def started_again() -> bool:
    """Whether this is not the first start of the job: Slurm requeued it, or torchrun --max-restarts restarted it."""
    return int_of("SLURM_RESTART_COUNT") > 0 or int_of("TORCHELASTIC_RESTART_COUNT") > 0
