"""Several processes stop together when one of them is asked to, and talk about it no more often than they must."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from conftest import Done, at_step
from lightning.pytorch.strategies import SingleDeviceStrategy

STEPS = ["trainer.max_steps=30", "trainer.log_every_n_steps=15", "validate_every=30", "checkpoint_every=30"]


@pytest.fixture
def reduced_at(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The steps after which a rank of two talks to the other, which is not there and is taken to say the same."""
    found: list[int] = []

    def reduce(self: SingleDeviceStrategy, tensor: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
        if self.lightning_module.step:  # Lightning asks a few things before the first
            found.append(self.lightning_module.step)
        return tensor

    monkeypatch.setattr(lightning.Trainer, "world_size", property(lambda self: 2))
    monkeypatch.setattr(SingleDeviceStrategy, "reduce", reduce)
    return found


def test_ranks_talk_when_they_log_and_every_ten_steps(train: Callable[..., Done], reduced_at: list[int]) -> None:
    assert train(*STEPS).code == 0
    assert reduced_at == [10, 15, 20, 30, 30]  # the last is the held-out loss


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_acts_at_the_next_agreement(
    train: Callable[..., Done], reduced_at: list[int], monkeypatch: pytest.MonkeyPatch, signum: int
) -> None:
    at_step(monkeypatch, 16, lambda: os.kill(os.getpid(), signum))
    done = train(*STEPS)
    assert done.code == 128 + signum
    assert reduced_at == [10, 15, 20]
    run = next(Path("outputs/train").glob("*/*"))
    assert (run / "checkpoints" / "last").resolve().name == "step-00000020"


@pytest.mark.slow
def test_a_signal_to_one_of_two_processes_stops_both(here: Path, fast: list[str]) -> None:
    endless = ["trainer.max_steps=100000", "trainer.log_every_n_steps=3", "validate_every=100000"]
    process = subprocess.Popen(
        [sys.executable, "-m", "roundround", "train", *fast, "trainer.devices=2", *endless, "checkpoint_every=100000"],
        cwd=here,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    try:
        deadline = time.monotonic() + 120
        while not list(here.glob("outputs/train/*/*/metrics.jsonl")):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(next(int(pid) for pid in children if b"\0roundround" in Path(f"/proc/{pid}/cmdline").read_bytes()), 15)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 143, said
    run = next(here.glob("outputs/train/*/*"))
    assert json.loads((run / "run.json").read_text())["status"] == "interrupted"
    assert (run / "checkpoints" / "last" / "model.safetensors").exists()
