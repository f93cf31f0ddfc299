"""`trainer.precision=16-mixed`: gradients are clipped at their true size, and a step that overflows is skipped.

Lightning allows this precision on GPUs alone; here its plugin runs on the CPU, with torch's loss scaler for the CPU.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Done, metrics_of
from lightning.pytorch.plugins import MixedPrecision
from safetensors.torch import load_file

from roundround.verbs.train import run as verb


@pytest.fixture
def in_half(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`in_half(init_scale=...)`: from now on runs train in 16-mixed, with torch's loss scaler set so."""
    make_trainer = verb.make_trainer

    def switch_on(**scaler: Any) -> None:
        def in_16_bits(node: Any, run: Any, n_steps: int, **sizes: int) -> Any:
            earlier = run.manifest.pop("processes", [])  # of a CPU, on which a run refuses 16-mixed
            made = make_trainer(node, run, n_steps, **sizes)
            run.manifest["processes"] = earlier
            made.strategy.precision_plugin = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", **scaler))
            return made

        monkeypatch.setattr(verb, "make_trainer", in_16_bits)

    return switch_on


def metrics(run: Path, name: str) -> list[float]:
    rows = metrics_of(run)
    return [row[name] for row in rows if name in row]


def optimizer_state(run: Path, name: str) -> dict[str, torch.Tensor]:
    """One of the optimizer's tensors by parameter."""
    tensors = load_file(run / "checkpoints" / "last" / "trainer.safetensors")
    return {key: value for key, value in tensors.items() if key.endswith(f".{name}")}


@pytest.mark.parametrize("optim", ["adamw", "muon"])
def test_gradients_are_those_of_float32_before_they_are_clipped(
    train: Callable[..., Done], in_half: Callable[..., None], optim: str
) -> None:
    """Lightning unscales those of Muon, which is no fused optimizer, itself."""
    options = ["trainer.max_steps=3", "trainer.gradient_clip_val=0.1", f"optim={optim}"]
    whole = train(*options).directory
    in_half(init_scale=2.0**12)
    half = train(*options).directory
    assert metrics(half, "grad_norm") == pytest.approx(metrics(whole, "grad_norm"), rel=1e-2)
    for name in ("exp_avg", "exp_avg_sq", "momentum_buffer"):
        moments = optimizer_state(whole, name)
        assert moments or (name == "momentum_buffer") == (optim == "adamw")
        for parameter, moment in optimizer_state(half, name).items():
            assert (moment - moments[parameter]).norm() < 0.03 * moments[parameter].norm(), (name, parameter)


def test_steps_that_overflow_are_skipped_and_counted(train: Callable[..., Done], in_half: Callable[..., None]) -> None:
    in_half(init_scale=2.0**21)
    done = train("trainer.max_steps=12")
    assert done.code == 0, done.err
    skipped = metrics(done.directory, "skipped_steps")[-1]
    assert 2 <= skipped <= 8
    assert all(int(n) == 12 - skipped for n in optimizer_state(done.directory, "step").values())
    assert "overflowed float16" in done.err
    assert all(isinstance(loss, float) for loss in metrics(done.directory, "loss"))
    assert done.manifest["status"] == "done"


def test_the_loss_scale_goes_on_where_it_was(
    train: Callable[..., Done], roundround: Callable[..., Done], in_half: Callable[..., None]
) -> None:
    in_half(init_scale=2.0**19, growth_interval=2)
    whole = train("trainer.max_steps=6").directory
    stopped = whole.with_name("stopped")
    shutil.copytree(whole, stopped, symlinks=True)
    for step in (5, 6):
        shutil.rmtree(stopped / "checkpoints" / f"step-{step:08d}", ignore_errors=True)
    done = roundround("train", f"resume={stopped}", "logger=none")
    assert done.code == 0, done.err
    assert metrics(stopped, "skipped_steps") == metrics(whole, "skipped_steps")
    for name in ("model", "trainer"):
        a, b = (load_file(run / "checkpoints" / "last" / f"{name}.safetensors") for run in (whole, stopped))
        assert all(torch.equal(a[key], b[key]) for key in a)
