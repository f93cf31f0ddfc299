"""Who started this process: a person, or a launcher that started several which train one model together.

Lightning asks the same variables in the same order (`TorchElasticEnvironment.detect`, `SLURMEnvironment.detect`); here
they are read before anything slow is imported. A variable that stands alone, such as a stale RANK=1, means nothing.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from roundround.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Launch:
    """The processes that a launcher started, and this one's place among all and among those on its machine."""

    launcher: str
    rank: int
    local_rank: int
    n_processes: int
    n_on_machine: int


def launch() -> Launch | None:
    """How this process was started; None where a person started it. UserError for variables that contradict."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return read("torchrun", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    in_shell = in_shell_of_salloc() or os.environ.get("SLURM_JOB_NAME") in ("bash", "interactive")
    if "SLURM_NTASKS" in os.environ and not in_shell:
        n_on_machine = "SLURM_NTASKS_PER_NODE" if "SLURM_NTASKS_PER_NODE" in os.environ else "SLURM_NTASKS"
        return read("srun", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", n_on_machine)
    if {"LOCAL_RANK", "NODE_RANK", "MASTER_PORT", "WORLD_SIZE"} <= os.environ.keys():
        return read("Lightning", "LOCAL_RANK", "LOCAL_RANK", "WORLD_SIZE", "WORLD_SIZE")
    return None


def in_shell_of_salloc() -> bool:
    """Whether Slurm allots this process a place to start tasks in, and has not started it as one of them.

    Lightning knows such a shell by the name of the job alone, which salloc -J changes.
    """
    return "SLURM_NTASKS" in os.environ and "SLURM_PROCID" not in os.environ


def read(launcher: str, rank: str, local_rank: str, n_processes: str, n_on_machine: str) -> Launch:
    """A launch from the variables of these names."""
    try:
        values = [int(os.environ[name]) for name in (rank, local_rank, n_processes, n_on_machine)]
    except (KeyError, ValueError) as error:
        raise UserError(
            f"the variables of {launcher} are not complete: {error}; start again with {launcher}"
        ) from error
    return Launch(
        launcher=launcher, rank=values[0], local_rank=values[1], n_processes=values[2], n_on_machine=values[3]
    )


def rank() -> int:
    """This process's rank among those that train one model together; 0 when alone."""
    launched = launch()
    return launched.rank if launched is not None else 0


def launched_from_outside() -> Launch | None:
    """The launch by torchrun or srun of more than one process; None in a script of sbatch, which is one process."""
    launched = launch()
    if launched is None or launched.launcher == "Lightning" or launched.n_processes == 1 or without_srun(launched):
        return None
    return launched


def without_srun(launched: Launch) -> bool:
    """Whether this is the script of sbatch itself, which has the variables of the first task but is no step."""
    return launched.launcher == "srun" and "SLURM_STEP_ID" not in os.environ


def speaks() -> bool:
    """Whether this process says what all on its machine would say."""
    try:
        launched = launch()
    except UserError:
        return True
    return launched is None or launched.local_rank == 0
