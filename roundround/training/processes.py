"""Lightning and the processes of a run: who starts them, what it is told about them, what it does when one dies."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lightning.fabric.plugins.environments import LightningEnvironment, TorchElasticEnvironment
from lightning.fabric.strategies.launchers.subprocess_script import _ChildProcessObserver
from lightning.pytorch.strategies.launchers import subprocess_script

from roundround.distributed.launcher import (
    STARTED_BY,
    address,
    in_shell_of_salloc,
    launch,
    launched_from_outside,
    without_srun,
)
from roundround.distributed.peers import KILLED, SECONDS_TO_LEAVE, Peers
from roundround.support.errors import UserError


def who_starts_processes() -> dict[str, Any]:
    """What the Trainer is told about that. UserError in a script of sbatch for several tasks, which starts but one.

    The processes of srun get the variables of torchrun: Lightning's class for Slurm refuses `srun -n2`, which leaves
    the number of tasks on a machine unsaid, and puts Slurm jobs back into the queue by itself.
    """
    launched = launched_from_outside()
    if launched is not None:
        host, port = address()
        os.environ |= {"RANK": str(launched.rank), "WORLD_SIZE": str(launched.n_processes)}
        os.environ |= {"LOCAL_RANK": str(launched.local_rank), "GROUP_RANK": str(launched.machine)}
        os.environ |= {"MASTER_ADDR": host, "MASTER_PORT": str(port)}
        n_nodes = max(1, launched.n_processes // launched.n_on_machine)
        return {"plugins": [TorchElasticEnvironment()], "num_nodes": n_nodes}
    launched = launch()
    if launched is not None and without_srun(launched) and launched.n_processes > 1:
        raise UserError(f"this Slurm job has {launched.n_processes} tasks; put srun in front of the command")
    if in_shell_of_salloc() and (launched is None or launched.launcher == "Lightning"):
        return {"plugins": [LightningEnvironment()]}  # it would ask for the rank of a task
    return {}


def check_processes(global_rank: int, n_devices: int) -> None:
    """Raises UserError where the Trainer counts other processes than were started: ranks would wait or repeat."""
    launched = launch()
    if launched is None:
        if global_rank != 0 or "LOCAL_RANK" in os.environ:
            raise UserError(
                "LOCAL_RANK or NODE_RANK is set and no launcher set the rest; unset it, or start with torchrun"
            )
    elif (launched.rank, launched.n_processes) != (global_rank, n_devices):
        raise UserError(
            f"{launched.launcher} started {launched.n_processes} processes and trainer.devices x trainer.num_nodes is "
            f"{n_devices}; give trainer.devices={launched.n_on_machine}, or start as many processes as devices"
        )


class PatientObserver(_ChildProcessObserver):
    """Lightning's watch over the processes that it started, which kills all with SIGKILL once one has failed.

    Here that waits, so that the others can say and record who is missing, which takes seconds: the kill is for those
    that hang.
    """

    def __init__(self, children: list[subprocess.Popen[bytes]], peers: Peers) -> None:
        super().__init__(child_processes=children, main_pid=os.getpid())
        self.peers = peers

    def _terminate_all(self) -> None:
        gone = next(rank for rank, child in enumerate(self._child_processes, 1) if child.returncode)
        self.peers.gone.add(gone)
        has_left = self.peers.left.wait(SECONDS_TO_LEAVE)
        for child in self._child_processes:
            child.kill()
        if not has_left:  # one that has may be at the next job of a sweep
            self.peers.give_up_on(gone, KILLED)


@contextmanager
def processes_of_lightning(peers: Peers) -> Iterator[None]:
    """Inside, processes that Lightning starts join this one, which is the first, and are watched with patience."""
    theirs = subprocess_script._launch_process_observer

    def watch(children: list[subprocess.Popen[bytes]]) -> None:
        PatientObserver(children, peers).start()
        peers.join()

    subprocess_script._launch_process_observer = watch
    is_first = STARTED_BY not in os.environ
    os.environ.setdefault(STARTED_BY, str(os.getpid()))
    try:
        yield
    finally:
        subprocess_script._launch_process_observer = theirs
        if is_first:
            del os.environ[STARTED_BY]
