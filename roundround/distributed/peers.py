"""The processes that work on one run together: how they meet, what they exchange, and which one is missing.

They meet at a key-value store of torch.distributed, at the address that their launcher gives: torchrun's own store, or
a store in the first process. Each process writes its request (the verb and its settings) there, and the first process
answers all of them. A process that ends writes how it ended. When the collective operations of the others then fail,
they can report which process was the cause. A killed process writes nothing, but the processes on its machine see that
it is gone. Tensors are exchanged through the groups of torch.distributed.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from roundround.distributed.interruption import ignore, on_signals, put_back
from roundround.distributed.launcher import address, first_is_gone, name_of_run, together
from roundround.support.errors import Interrupted, PeerLost, UserError, one_line, printable

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]  # torch takes seconds to import

Value = TypeVar("Value")
SECONDS_TO_COME = 120.0  # to wait for the last process: all start together, but their imports take different times
SECONDS_TO_ANSWER = 6.0  # to wait for answers to a roll call; a living process answers within a second
SECONDS_TO_LEAVE = 30.0  # the longest that a failed process waits for the others to end
SECONDS_TO_NOTICE = 5.0  # after another process failed, until this process's own collective operation should fail
SECONDS_BETWEEN_CHECKS = 0.5
RANK = "rank"
KILLED: dict[str, Any] = {"code": 1, "line": "was killed, or its machine is gone"}


class Peers:
    """This process among the processes of its run. Until `join`, each method works as for a run with one process.

    request: the verb and its settings as named values, which must be equal in all processes. give_up: a function that
    prints a line and ends this process from another thread, while the main thread waits inside a library for a process
    that is gone.
    """

    store: Store  # set when the processes meet, or when this process leaves before that

    def __init__(
        self, request: Mapping[str, Any] | None = None, *, give_up: Callable[[str], None] = lambda line: None
    ) -> None:
        self.request, self.give_up = dict(request or {}), give_up
        self.record: Callable[[str], None] = lambda line: None  # records how the run ended, before `give_up` is called
        launched = together()
        self.rank, self.n = (0, 1) if launched is None else (launched.rank, launched.n_processes)
        if self.n > 1:  # else torch, which is not imported yet, prints twenty lines about a lost connection
            os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        self.have_met = self.holds_store = False
        self.answer: dict[str, Any] = {}
        self.is_leaving, self.left = False, threading.Event()
        self.reporting = threading.Lock()  # held by the thread that reports how this process ends
        self.gone: set[int] = set()  # processes whose end the watching thread has seen
        self.named_lost: dict[int, dict[str, Any]] = {}

    # -- coming

    def join(self, answer: Mapping[str, Any] | None = None) -> None:
        """Meet the other processes, if there are any. answer: the values that the first process sends to all of them.

        Raises UserError if a process has another request, has refused its input, or does not start in time.
        """
        self.answer = dict(answer or self.answer)
        if together() is not None and not self.have_met:
            self.meet(self.connect())

    def meet(self, store: Store) -> None:
        """`join` at this store."""
        self.store, self.have_met = store, True
        store.set(f"process/{self.rank}", f"{process_ids()} {os.getpid()} {start_of(os.getpid())}")
        store.set(f"request/{self.rank}", json.dumps(self.request, sort_keys=True))
        if self.rank == 0:
            found: dict[str, Any] = {"refused": self.refusal(), "answer": self.answer}
            self.store.set("answer", json.dumps(found))
        else:
            self.wait_for("answer", 0)
            found = json.loads(self.store.get("answer"))
        self.answer = found["answer"]
        if found["refused"] is not None:
            raise UserError(found["refused"])
        threading.Thread(target=self.watch_others, name="peers", daemon=True).start()

    def connect(self, *, seconds: float = SECONDS_TO_COME) -> Store:
        """Open the store, in short attempts, so that a signal can interrupt between them.

        torch prints twenty lines about each failed attempt, so it is called only when the port answers. Raises
        UserError if the store cannot be opened, and PeerLost if the first process was killed before it opened one.
        """
        from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]  # torch takes seconds to import

        launched = together()
        assert launched is not None
        self.rank, self.n = launched.rank, launched.n_processes  # Lightning's first process counted as alone
        host, port = address()
        os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = host, str(port)  # for the groups of torch.distributed
        self.holds_store = self.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        options = {"is_master": self.holds_store, "wait_for_workers": False, "multi_tenant": True}
        deadline = time.monotonic() + seconds
        while True:
            try:
                if not self.holds_store:
                    socket.create_connection((host, port), timeout=5).close()
                store = TCPStore(host, port, self.n, timeout=timedelta(seconds=5), **options)
                break
            except (OSError, RuntimeError) as error:
                if not self.holds_store and first_is_gone():
                    raise self.killed(0) from error
                if self.holds_store or time.monotonic() > deadline:
                    raise UserError(
                        f"{self.name(self.rank)} cannot connect to the first process at {host}:{port} "
                        f"({one_line(error)[:100]}); give its address with MASTER_ADDR and MASTER_PORT"
                    ) from error
                time.sleep(0.1)
        return PrefixStore(name_of_run(launched), store)

    def refusal(self) -> str | None:
        """Wait for the requests of all processes; returns the reason why they cannot start together, or None."""
        for rank in range(1, self.n):
            self.wait_for(f"request/{rank}", rank)
            theirs = json.loads(self.store.get(f"request/{rank}"))
            for key in sorted(self.request.keys() | theirs.keys()):
                here, there = json.dumps(self.request.get(key)), json.dumps(theirs.get(key))
                if here != there:
                    return (
                        f"{key} is {printable(here, 80)} on rank 0 and {printable(there, 80)} on {self.name(rank)}; "
                        "start all processes with the same command"
                    )
        return None

    def wait_for(self, key: str, rank: int) -> None:
        """Wait until the process `rank` has set this key in the store.

        Raises UserError if that process refused its input or does not start in time, and PeerLost or Interrupted if
        that process ended in another way.
        """
        began = time.monotonic()
        while not self.present(key):
            leaving = self.how_left(rank)
            if leaving is not None:
                raise self.error_of(rank, leaving)
            if rank in self.gone:
                raise self.killed(rank)
            if time.monotonic() - began > SECONDS_TO_COME:
                raise UserError(f"{self.name(rank)} did not start within {SECONDS_TO_COME:g} seconds")
            time.sleep(0.05)

    # -- working together

    def gather(self, value: Value) -> list[Value]:
        """The values of all processes, in the order of ranks."""
        if self.n == 1:
            return [value]
        from torch import distributed

        if not distributed.is_initialized():
            store = distributed.PrefixStore("group", self.store)  # type: ignore[attr-defined]
            distributed.init_process_group("gloo", store=store, rank=self.rank, world_size=self.n)
        found: list[Any] = [None] * self.n
        distributed.all_gather_object(found, value)
        return found

    # -- leaving

    def leave(self, code: int, line: str) -> bool:
        """Record how this process ends; returns whether the first process was there to receive the record.

        After a failure each process waits until the others end, because some launchers kill all processes as soon as
        one ends; the process that holds the store ends last. If a process was lost, nobody waits: a process that is
        stuck in a collective operation learns of the loss only when the others end.
        """
        if self.n == 1:
            return False
        received, self.is_leaving = False, True
        try:
            if not self.have_met:  # this process was refused before it met the others
                if not 0 < code < 128 or 0 in self.named_lost or together() is None:  # Lightning ends those it started
                    return False
                self.store = self.connect(seconds=SECONDS_TO_ANSWER)
            self.record_end(code, line)
            received = self.present("answer")
            waits = self.holds_store or (0 < code < 128 and not self.named_lost)
            others = set(range(self.n)) - {self.rank} - self.named_lost.keys() - self.gone
            deadline = time.monotonic() + SECONDS_TO_LEAVE
            while waits and others and time.monotonic() < deadline:
                others = {rank for rank in others if not self.present(f"left/{rank}")}
                time.sleep(0.05)
            received = received or self.present("request/0") or self.present("left/0")
        except (RuntimeError, UserError):
            pass  # the store has ended with the first process
        finally:
            self.left.set()
        return received

    def record_end(self, code: int, line: str) -> None:
        self.store.set(f"left/{self.rank}", json.dumps({"code": code, "line": line, "lost": sorted(self.named_lost)}))
        if 0 < code < 128:
            self.store.set("failed", str(self.rank))

    @contextmanager
    def naming_who_left(self) -> Iterator[None]:
        """Inside the block, an error that another process caused is replaced by an error that names that process.

        Without this, a failed collective operation would report only a closed connection, and a SIGTERM that a launcher
        sends to all processes after one died would be taken for a request to stop.
        """
        try:
            yield
        except (RuntimeError, Interrupted) as error:
            if not self.have_met:
                raise
            why = one_line(error) if isinstance(error, RuntimeError) else None
            handlers = on_signals(ignore)
            caused = {
                rank: leaving
                for rank, leaving in self.who_left().items()
                if 0 < leaving["code"] < 128 and (why is None or why not in leaving["line"])  # not the same error
            }
            if not caused:
                put_back(handlers)
                raise
            self.named_lost = caused  # signals stay ignored: a launcher's late SIGTERM must not hide this error
            raise self.error_of(*next(iter(caused.items()))) from error

    def who_left(self) -> dict[int, dict[str, Any]]:
        """The processes that have left, and how each ended. A roll call of all processes finds them.

        A process that neither answers nor has recorded its end counts as killed. If a process ended because it lost
        another one, only the lost one is returned. A process that has not met the others yet is not returned.
        """
        waiting, found = set(range(self.n)) - {self.rank}, {}
        deadline = time.monotonic() + SECONDS_TO_ANSWER
        try:
            self.store.set("roll call", "")
            while waiting and time.monotonic() < deadline:
                for rank in sorted(waiting):
                    leaving = self.how_left(rank) or (KILLED if rank in self.gone else None)
                    if leaving is not None:
                        found[rank] = leaving
                        if leaving.get("lost"):
                            return dict.fromkeys(leaving["lost"], leaving)
                    has_come = self.present(f"process/{rank}")
                    if leaving is not None or not has_come or self.present(f"here/{rank}"):
                        waiting.remove(rank)
                time.sleep(0.05)
        except RuntimeError:  # the store has ended with the first process
            waiting = {0}
        return {**dict.fromkeys(sorted(waiting), KILLED), **found}

    def watch_others(self) -> None:
        """Run in a thread: answer roll calls, and find processes that are gone.

        Ends this process if its main thread does not notice in time that another process is gone.
        """
        here: dict[int, str] = {}
        try:
            here = self.processes_here()
            while not self.left.wait(SECONDS_BETWEEN_CHECKS):
                if self.present("roll call"):
                    self.store.set(f"here/{self.rank}", "")
                for rank in [rank for rank, process in here.items() if is_gone(process) and rank not in self.gone]:
                    if self.how_left(rank) is None:
                        self.gone.add(rank)
                        self.store.set("failed", str(rank))
                if not self.is_leaving and self.present("failed"):
                    rank = int(self.store.get("failed"))
                    leaving = self.how_left(rank) or KILLED
                    if not self.left.wait(SECONDS_TO_NOTICE) and not self.is_leaving:
                        return self.give_up_on((leaving.get("lost") or [rank])[0], leaving)
        except RuntimeError:
            self.gone.add(0)
            if not self.left.wait(SECONDS_TO_NOTICE if 0 in here and is_gone(here[0]) else SECONDS_TO_LEAVE):
                self.give_up_on(0, KILLED)

    def processes_here(self) -> dict[int, str]:
        """The pids and start times of the other processes that are visible on this machine. The keys are ranks."""
        found = {rank: self.store.get(f"process/{rank}").decode() for rank in range(self.n) if rank != self.rank}
        ids = process_ids()
        return {rank: process.removeprefix(ids) for rank, process in found.items() if ids and process.startswith(ids)}

    def give_up_on(self, rank: int, leaving: Mapping[str, Any]) -> None:
        """End this process, because it did not notice in time that the process `rank` is gone."""
        if not self.may_report() and self.left.wait(SECONDS_TO_LEAVE):
            return  # the main thread has just noticed it and reports it
        self.named_lost = {rank: dict(leaving)}
        line, prints = one_line(self.error_of(rank, leaving)), self.speaks and not self.is_leaving
        if prints:
            self.record(f"failed: {line}")
        with suppress(RuntimeError):  # the store may be gone
            if self.have_met and not self.is_leaving:
                self.record_end(1, line)
        self.give_up(line if prints else "")

    def may_report(self) -> bool:
        """Whether the calling thread shall report how the process ends: True for the first thread that asks."""
        return self.reporting.acquire(blocking=False)

    def killed(self, rank: int) -> Exception | Interrupted:
        """The error with which this process ends because the process `rank` is gone without a record."""
        self.named_lost = {rank: KILLED}
        return self.error_of(rank, KILLED)

    def error_of(self, rank: int, leaving: Mapping[str, Any]) -> Exception | Interrupted:
        """The error with which this process ends because the process `rank` ended as `leaving` says."""
        code = leaving["code"]
        if code >= 128:
            return Interrupted(code - 128)
        line = leaving["line"]
        if not line.startswith(f"{RANK} "):  # else the line already names a third process
            line = f"{self.name(rank)} {line}" if code == 1 else f"{self.name(rank)}: {line}"
        return UserError(line) if code == 2 else PeerLost(line)

    def name(self, rank: int) -> str:
        return f"{RANK} {rank} of {self.n}"

    def how_left(self, rank: int) -> dict[str, Any] | None:
        return json.loads(self.store.get(f"left/{rank}")) if self.present(f"left/{rank}") else None

    def present(self, key: str) -> bool:
        return bool(self.store.check([key]))

    @property
    def speaks(self) -> bool:
        """Whether this process prints for all processes: it is the first one that is not lost."""
        return self.rank == min(set(range(self.n)) - self.named_lost.keys())


def process_ids() -> str:
    """An id of the machine's boot and of the pid namespace; empty if the system has no /proc."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip() + os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def start_of(pid: int) -> str | None:
    """The start time of a process of this machine, in clock ticks since boot; None if the process has ended."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if state in "ZX" else fields[18]  # field 22 of proc(5)


def is_gone(process: str) -> bool:
    """Whether a process of this machine, given as its pid and start time, has ended."""
    pid, start = process.split()
    return start_of(int(pid)) != start
