"""How much memory a run has used: its own peak, not that of an earlier run in the same process."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from helpers_manifest import CONFIG, a_manifest

from roundround.distributed import device as peak_memory
from roundround.records.directories import read_manifest
from roundround.records.loggers.base import NoLogger
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


def test_a_real_run_says_how_much_it_used(train: Callable[..., Any]) -> None:
    peak = train("trainer.max_steps=1").manifest["peak_memory"]
    assert 100 * MIB < peak["resident_bytes"] < 100_000 * MIB, "torch alone takes that"
    assert peak["device_bytes"] is None
    assert a_manifest().keys().isdisjoint({"peak_memory"}), "manifests of earlier versions, which are valid, have none"
