"""Processes that meet: they were asked for the same, and whoever is missing is named. Here each is a thread."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, Queue
from typing import Any

import pytest
from torch.distributed import HashStore

from roundround.distributed import peers as module
from roundround.distributed.interruption import interrupt, on_signals, put_back
from roundround.distributed.peers import Peers, is_gone, process_ids, start_of
from roundround.support.errors import Interrupted, PeerLost, UserError

MADE: list[Peers] = []
BROKEN = RuntimeError("Connection closed by peer [127.0.0.1]:4711")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Short waits; no thread that outlives its test, and no handler of signals."""
    handlers = on_signals(signal.default_int_handler)
    put_back(handlers)
    monkeypatch.setattr(module, "SECONDS_TO_ANSWER", 0.6)
    monkeypatch.setattr(module, "SECONDS_BETWEEN_CHECKS", 0.02)
    yield
    put_back(handlers)
    for one in MADE:
        one.left.set()
    MADE.clear()
    for thread in threading.enumerate():
        if thread.name == "peers":
            thread.join(10)


def processes(*requests: dict[str, Any]) -> list[Peers]:
    """Processes that have not met."""
    found = [Peers(words) for words in requests]
    for rank, one in enumerate(found):
        one.rank, one.n = rank, len(found)
    MADE.extend(found)
    return found


def met(*requests: dict[str, Any]) -> list[Peers | Exception]:
    """What becomes of processes that were asked for this, when they meet."""
    store = HashStore()

    def meet(one: Peers) -> Peers | Exception:
        try:
            one.meet(store)
        except UserError as error:
            return error
        return one

    with ThreadPoolExecutor(len(requests)) as pool:
        return list(pool.map(meet, processes(*requests)))


def test_all_get_the_answer_of_the_first() -> None:
    first, second = processes({"seed": 1}, {"seed": 1})
    first.answer, store = {"directory": "here"}, HashStore()
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda one: one.meet(store), (first, second)))
    assert second.answer == {"directory": "here"}


def test_different_words_are_refused_everywhere_by_the_first_key_that_differs() -> None:
    errors = met({"optim.lr": 0.1, "seed": 1}, {"optim.lr": 0.1, "seed": 1}, {"optim.lr": 0.2, "seed": 2})
    assert [str(error) for error in errors] == [
        "optim.lr is 0.1 on rank 0 and 0.2 on rank 2 of 3; start all processes with the same command"
    ] * 3


def test_one_that_has_refused_is_named_and_not_waited_for() -> None:
    first, second = processes({}, {})
    second.store = HashStore()
    second.store.set("left/1", '{"code": 2, "line": "no config key \'lr\'"}')
    with pytest.raises(UserError, match=r"^rank 1 of 2: no config key 'lr'$"):
        first.meet(second.store)


def test_one_that_does_not_come_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SECONDS_TO_COME", 0.3)
    (first, _) = processes({}, {})
    with pytest.raises(UserError, match="rank 1 of 2 did not start within"):
        first.meet(HashStore())


# -- who left


def fails_with(one: Peers, error: BaseException) -> None:
    with one.naming_who_left():
        raise error


def leaves(other: Peers, code: int, line: str) -> None:
    assert other.store is not None
    other.store.set(f"left/{other.rank}", f'{{"code": {code}, "line": "{line}"}}')
    other.left.set()


def test_one_that_left_because_of_a_third_names_it_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, third, fourth = met({}, {}, {}, {})
    fourth.left.set()
    with pytest.raises(PeerLost, match=r"^rank 3 of 4 was killed"):
        fails_with(first, BROKEN)
    first.leave(1, "rank 3 of 4 was killed, or its machine is gone")
    monkeypatch.setattr(module, "SECONDS_TO_ANSWER", 60)  # nobody waits for the fourth again
    with pytest.raises(PeerLost, match=r"^rank 3 of 4 was killed"):
        fails_with(second, BROKEN)
    assert [one.speaks for one in (first, second, third)] == [
        True,
        False,
        False,
    ]  # the first is not the one that is lost


def test_one_that_waits_for_others_and_hears_nothing_of_a_failure_records_it_and_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "SECONDS_TO_NOTICE", 0.1)
    first, second, third = processes({}, {}, {})
    ends: Queue[tuple[str, str]] = Queue()
    first.record, first.give_up = lambda status: ends.put(("recorded", status)), lambda line: ends.put(("said", line))
    store = HashStore()
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda one: one.meet(store), (first, second, third)))
    third.left.set()
    with pytest.raises(PeerLost):
        fails_with(second, BROKEN)
    second.leave(1, "rank 2 of 3 was killed, or its machine is gone")
    assert ends.get(timeout=10) == ("recorded", "failed: rank 2 of 3 was killed, or its machine is gone")
    assert ends.get(timeout=10) == ("said", "rank 2 of 3 was killed, or its machine is gone")
    assert store.check(["left/0"])  # or the one that holds the store would wait for it


@pytest.mark.skipif(not process_ids(), reason="this system has no /proc")
def test_where_no_operation_fails_a_killed_process_of_this_machine_is_seen_and_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "SECONDS_TO_NOTICE", 0.1)
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as child:
        start = start_of(child.pid)
        monkeypatch.setattr(Peers, "processes_here", lambda one: {2: f"{child.pid} {start}"} if one.rank < 2 else {})
        lines: Queue[str] = Queue()
        first, second, third = processes({}, {}, {})
        first.give_up = second.give_up = lines.put  # third: its thread still answers roll calls
        store = HashStore()
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(lambda one: one.meet(store), (first, second, third)))
        assert not is_gone(f"{child.pid} {start}")
        with pytest.raises(Empty):
            lines.get(timeout=0.3)  # all live
        child.kill()
        assert {lines.get(timeout=10), lines.get(timeout=10)} == {"rank 2 of 3 was killed, or its machine is gone", ""}
        assert is_gone(f"{child.pid} {start}")  # a zombie, for which nobody has waited
    assert is_gone(f"{child.pid} {start}")
    with pytest.raises(PeerLost, match=r"^rank 2 of 3 was killed"):
        fails_with(second, BROKEN)


def test_processes_are_looked_for_only_where_they_can_be_seen() -> None:
    first, second = processes({}, {})
    store = HashStore()
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda one: one.meet(store), (first, second)))
    here = first.processes_here()
    assert not process_ids() or [is_gone(process) for process in here.values()] == [False]
    store.set("process/1", f"another-machine 1 {start_of(1)}")
    assert first.processes_here() == {}


def test_a_process_reports_once_how_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SECONDS_TO_LEAVE", 0.1)
    lines: list[str] = []
    first, second = met({}, {})
    assert isinstance(first, Peers)
    assert isinstance(second, Peers)
    for one in (first, second):
        one.give_up = lines.append
    assert first.may_report()  # the main thread, which then leaves
    first.left.set()
    first.give_up_on(1, module.KILLED)
    assert lines == []
    second.give_up_on(0, module.KILLED)
    assert lines == ["rank 0 of 2 was killed, or its machine is gone"]
    assert not second.may_report()


def test_one_that_was_killed_is_named() -> None:
    first, _, third = both = met({}, {}, {})
    assert all(isinstance(one, Peers) for one in both)
    third.left.set()  # its thread ends, as with its process
    with pytest.raises(PeerLost, match=r"^rank 2 of 3 was killed"):
        fails_with(first, BROKEN)


@pytest.mark.parametrize("error", [BROKEN, Interrupted(signal.SIGTERM)], ids=["connection", "the launcher's SIGTERM"])
@pytest.mark.parametrize(
    ("code", "line", "expected"),
    [
        (1, "failed: OSError: torn", (PeerLost, r"^rank 1 of 2 failed: OSError: torn$")),
        (2, "no such file", (UserError, r"^rank 1 of 2: no such file$")),
    ],
)
def test_one_that_failed_ends_the_others_with_its_line(
    code: int, line: str, expected: tuple[type[Exception], str], error: BaseException
) -> None:
    first, second = met({}, {})
    leaves(second, code, line)
    with pytest.raises(expected[0], match=expected[1]):
        fails_with(first, error)


def test_the_sigterm_of_a_launcher_hides_nobody_who_was_named() -> None:
    on_signals(interrupt)
    first, second = met({}, {})
    second.left.set()
    with pytest.raises(PeerLost):
        fails_with(first, BROKEN)
    os.kill(os.getpid(), signal.SIGTERM)  # before the process has reported it


@pytest.mark.parametrize("error", [BROKEN, Interrupted(signal.SIGTERM)])
def test_an_error_while_all_live_is_ones_own(error: BaseException) -> None:
    first, _ = met({}, {})
    with pytest.raises(type(error)) as caught:
        fails_with(first, error)
    assert caught.value is error


def test_the_first_that_lives_speaks(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = met({}, {})
    assert (first.speaks, second.speaks) == (True, False)
    first.left.set()
    with pytest.raises(PeerLost, match="rank 0 of 2"):
        fails_with(second, BROKEN)
    assert second.speaks


def test_alone_nothing_is_waited_for() -> None:
    one = Peers()
    one.join({"directory": "here"})
    assert (one.gather(3), one.leave(1, "failed"), one.speaks) == ([3], False, True)
    assert one.answer == {"directory": "here"}


class Lost(HashStore):
    """A store that goes after the processes have met."""

    lost = False

    def check(self, keys: list[str]) -> bool:
        if self.lost:
            raise RuntimeError("Connection reset by peer")
        return bool(super().check(keys))


def test_a_process_that_waits_for_one_that_is_gone_and_hears_nothing_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SECONDS_TO_LEAVE", 0.1)
    lines: Queue[str] = Queue()
    first, second = processes({}, {})
    store, second.give_up = Lost(), lines.put
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda one: one.meet(store), (first, second)))
    store.lost = True
    assert lines.get(timeout=10) == "rank 0 of 2 was killed, or its machine is gone"
