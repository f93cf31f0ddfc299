"""How much memory a run has used: its own peak, not that of an earlier run in the same process."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from helpers_manifest import CONFIG, a_manifest

from roundround.distributed import device as peak_memory
from roundround.distributed.device import PeakMemory
from roundround.records.directories import read_manifest
from roundround.records.loggers.none import NoLogger
from roundround.records.opening import opened
from roundround.records.run import Invocation
from roundround.support.errors import Interrupted

MIB = 1 << 20
LARGE = 256 * MIB


def ran(directory: Path, n_bytes: int, error: BaseException | None = None) -> int:
    """What the manifest says of a run that fills so many bytes and lets them go; the run ends with this error."""
    directory.mkdir(exist_ok=True)
    invocation = Invocation(verb="train", directory=directory, overrides=[], choices={})
    with nullcontext() if error is None else pytest.raises(type(error)):  # noqa: SIM117
        with opened(invocation, config=CONFIG, logger=NoLogger()):
            len(b"x" * n_bytes)
            if error is not None:
                raise error
    found: int = read_manifest(directory)["peak_memory"]["resident_bytes"]
    return found


@pytest.mark.skipif(not os.access(peak_memory.CLEAR_REFS, os.W_OK), reason="this system cannot forget a peak")
def test_a_run_has_its_own_peak_and_not_that_of_the_one_before_it(tmp_path: Path) -> None:
    small, large, after = (ran(tmp_path / str(n), n_bytes) for n, n_bytes in enumerate((0, LARGE, MIB)))
    assert large - small > 0.9 * LARGE
    assert abs(after - small) < 0.1 * LARGE


@pytest.mark.skipif(not os.access(peak_memory.CLEAR_REFS, os.W_OK), reason="this system cannot forget a peak")
@pytest.mark.parametrize("error", [RuntimeError("boom"), Interrupted(signal.SIGTERM)])
def test_a_run_that_stopped_and_went_on_has_the_larger_peak(tmp_path: Path, error: BaseException) -> None:
    stopped = ran(tmp_path / "run", LARGE, error)
    assert ran(tmp_path / "run", 1) == stopped
    assert ran(tmp_path / "run", 2 * LARGE) > stopped + 0.9 * LARGE


def test_where_a_peak_cannot_be_forgotten_only_a_higher_one_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peak_memory, "CLEAR_REFS", tmp_path / "none" / "clear_refs")
    peaks = [5 * MIB]
    monkeypatch.setattr(peak_memory, "resident_peak", lambda: peaks[-1])
    watch = PeakMemory()
    assert watch.so_far()["resident_bytes"] is None, "it may be an earlier run's"
    peaks.append(6 * MIB)
    assert watch.so_far()["resident_bytes"] == 6 * MIB


def test_a_system_without_proc_is_asked_another_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by_proc = peak_memory.resident_peak()
    monkeypatch.setattr(peak_memory, "STATUS", tmp_path / "none")
    assert by_proc is not None
    assert 0.5 < peak_memory.resident_peak() / by_proc < 20, "the same unit; an earlier run may have used more"


def test_of_several_gpus_the_one_that_was_used_most_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert PeakMemory().so_far()["device_bytes"] is None
    used = {0: 5 * MIB, 1: 7 * MIB}
    cuda = MagicMock(is_initialized=lambda: True, device_count=lambda: 2, max_memory_allocated=used.__getitem__)
    monkeypatch.setitem(sys.modules, "torch.cuda", cuda)
    watch = PeakMemory()
    assert [call.args for call in cuda.reset_peak_memory_stats.call_args_list] == [(0,), (1,)]
    assert watch.so_far()["device_bytes"] == 7 * MIB
    used.update({0: 0, 1: 0})
    assert watch.so_far()["device_bytes"] is None, "a run on the CPU after one on a GPU"


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU, and there is none")
def test_the_peak_of_a_gpu_is_that_of_the_tensors_since_then() -> None:
    torch.empty(2 * LARGE, dtype=torch.uint8, device="cuda")
    watch = PeakMemory()
    torch.empty(LARGE, dtype=torch.uint8, device="cuda")
    assert LARGE <= watch.so_far()["device_bytes"] < 1.5 * LARGE


def test_a_real_run_says_how_much_it_used(train: Callable[..., Any]) -> None:
    peak = train("trainer.max_steps=1").manifest["peak_memory"]
    assert 100 * MIB < peak["resident_bytes"] < 100_000 * MIB, "torch alone takes that"
    assert peak["device_bytes"] is None
    assert a_manifest().keys().isdisjoint({"peak_memory"}), "manifests of earlier versions, which are valid, have none"
