"""What Lightning is told about the processes of a run, and what it does when one of those that it started dies."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from lightning.fabric.plugins.environments import ClusterEnvironment
from lightning.fabric.strategies.launchers.subprocess_script import _ChildProcessObserver
from lightning.pytorch.strategies.launchers import subprocess_script

from roundround.distributed.launcher import STARTED_BY, Launch, address
from roundround.distributed.peers import KILLED, SECONDS_TO_LEAVE, Peers


class Launched(ClusterEnvironment):
    """The processes that torchrun or srun started, as `runs/launcher.py` reads them.

    Lightning's own classes for them refuse `srun -n2`, which leaves the number of tasks on a machine unsaid, and put
    Slurm jobs back into the queue by themselves.
    """

    def __init__(self, launch: Launch) -> None:
        super().__init__()
        self.launch = launch

    @property
    def creates_processes_externally(self) -> bool:
        return True

    @property
    def main_address(self) -> str:
        return address()[0]

    @property
    def main_port(self) -> int:
        return address()[1]

    @staticmethod
    def detect() -> bool:
        return False  # it is given, never looked for

    def world_size(self) -> int:
        return self.launch.n_processes

    def set_world_size(self, size: int) -> None:
        """The launcher has decided it."""

    def global_rank(self) -> int:
        return self.launch.rank

    def set_global_rank(self, rank: int) -> None:
        """The launcher has decided it."""

    def local_rank(self) -> int:
        return self.launch.local_rank

    def node_rank(self) -> int:
        return self.launch.machine


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
