"""Arguments of Lightning's Trainer are honoured or refused; what is installed on a machine prints nothing in a run."""

from __future__ import annotations

import functools
import inspect
import json
import logging
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from conftest import ROOT, Done, assert_refused, saved_weights
from lightning.fabric.utilities.warnings import PossibleUserWarning

from roundround.support.errors import UserError
from roundround.training import trainer
from roundround.training.trainer import (
    HONOURED,
    check_trainer,
    devices_that_divide,
    messages_in_log,
)

GIVEN = {"max_steps": 4, "log_every_n_steps": 1, "accumulate_grad_batches": 1, "gradient_clip_val": 1.0}


@pytest.mark.parametrize("name", ["fast_dev_run", "limit_train_batches", "callbacks", "default_root_dir", "acelerator"])
def test_what_a_run_does_not_honour_is_answered_with_the_nearest_that_it_does(name: str) -> None:
    with pytest.raises(UserError, match=rf"^a run has no trainer\.{name}") as caught:
        check_trainer({**GIVEN, name: 1})
    assert "'accelerator'" in str(caught.value) or name != "acelerator"
    assert "plugins" not in str(caught.value)


def test_what_a_run_honours_lightning_has_but_for_the_peak() -> None:
    assert HONOURED.keys() - inspect.signature(lightning.Trainer).parameters.keys() == {"peak_flops"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_steps", 0),
        ("max_steps", None),
        ("max_steps", 10**20),
        ("log_every_n_steps", True),
        ("accumulate_grad_batches", 1.5),
        ("num_nodes", 0),
        ("gradient_clip_val", 0),
        ("gradient_clip_val", -1.0),
        ("gradient_clip_val", math.nan),
        ("gradient_clip_val", math.inf),
        ("gradient_clip_val", "high"),
        ("gradient_clip_algorithm", "nrom"),
        ("strategy", "fsdp"),
        ("strategy", "fsdp_cpu_offload"),
        ("strategy", "deepspeed_stage_3"),
        ("strategy", "ddp_spawn"),
        ("strategy", "ddp_notebook"),
        ("strategy", {"_target_": "lightning.pytorch.strategies.FSDPStrategy"}),
        ("precision", "16-true"),
        ("precision", "bf16-true"),
        ("precision", "transformer-engine"),
        ("precision", "half"),
        ("deterministic", "perhaps"),
        ("benchmark", "perhaps"),
        ("detect_anomaly", "perhaps"),
        ("profiler", "pytorch"),
    ],
)
def test_a_value_that_would_not_be_honoured_is_refused(name: str, value: Any) -> None:
    with pytest.raises(UserError, match=rf"^trainer\.{name}="):
        check_trainer({**GIVEN, name: value})


@pytest.mark.parametrize(
    "given",
    [
        {"gradient_clip_val": None},
        {"gradient_clip_val": 5},
        {"gradient_clip_algorithm": "value"},
        {"strategy": "ddp", "devices": [0, 2], "num_nodes": 2, "accelerator": "gpu"},
        {"strategy": "fsdp2", "precision": "bf16-mixed", "accelerator": "gpu"},
        {"precision": None},
        {"precision": "16-mixed"},
        {"precision": "64-true"},
        {"deterministic": "warn", "benchmark": False, "detect_anomaly": True, "profiler": "simple"},
    ],
    ids=lambda given: "-".join(given),
)
def test_what_is_honoured_passes(given: dict[str, Any]) -> None:
    check_trainer(GIVEN | given)


def test_the_pinned_lightning_has_the_private_parts_that_are_used() -> None:
    assert lightning.__version__.startswith("2.6."), "read trainer.py against the new version, then raise this"
    assert callable(trainer.subprocess_script._launch_process_observer)
    assert trainer.FullyShardedStrategy()._data_parallel_size == "auto"
    named = [p.name for p in (ROOT / "roundround").rglob("*.py") if "_data_parallel_size" in p.read_text()]
    assert named == ["trainer.py"]


def test_clipping_by_value_needs_the_value() -> None:
    with pytest.raises(UserError, match="gradient_clip_algorithm does nothing without"):
        check_trainer({**GIVEN, "gradient_clip_val": None, "gradient_clip_algorithm": "value"})


# -- at the command line


@pytest.mark.parametrize(
    ("override", "part"),
    [
        ("+trainer.limit_train_batches=4", "a run has no trainer.limit_train_batches"),
        ("trainer.gradient_clip_val=nan", "trainer.gradient_clip_val=nan must be a finite number above 0"),
        ("trainer.strategy=deepspeed", "must be one of auto, ddp"),
        ("trainer.precision=16-mixed", "needs a GPU"),
        ("+trainer.plugins=[]", "a run has no trainer.plugins"),
    ],
)
def test_a_refusal_leaves_one_line_and_no_run(train: Callable[..., Done], override: str, part: str) -> None:
    assert_refused(train(override), part)


def test_clipping_by_value_and_by_norm_are_two_different_things(train: Callable[..., Done]) -> None:
    by_norm, by_value, none = (
        saved_weights(train("trainer.max_steps=1", "optim.eps=1", *clip).directory)
        for clip in (
            ["trainer.gradient_clip_val=1e-3"],
            ["trainer.gradient_clip_val=1e-3", "+trainer.gradient_clip_algorithm=value"],
            ["trainer.gradient_clip_val=null"],
        )
    )
    name = "embed_tokens.weight"
    assert not torch.equal(by_norm[name], by_value[name])
    assert not torch.equal(by_value[name], none[name])


def test_a_run_that_lightning_ends_early_has_failed(
    train: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    ending_early = functools.partial(lightning.Trainer, limit_train_batches=3)
    monkeypatch.setattr(trainer, "target_class", lambda node, family: ending_early)
    done = train()
    assert done.code == 1
    assert "ended the run at step 3 of 4" in done.err
    manifest = json.loads(next(Path("outputs/train").glob("*/*/run.json")).read_text())
    assert manifest["status"].startswith("failed: RuntimeError")


def test_the_report_of_a_profiler_lies_in_the_log_of_the_run(train: Callable[..., Done]) -> None:
    done = train("+trainer.profiler=simple")
    assert "optimizer_step" in (done.directory / "train.log").read_text()
    assert [path.name for path in Path().iterdir()] == ["outputs"]


# -- how many devices


@pytest.mark.parametrize(
    ("n_gpus", "batch_size", "n_micro", "used"),
    [
        (3, 8, 1, 2),
        (5, 8, 1, 4),
        (6, 8, 1, 4),
        (8, 8, 2, 4),
        (7, 7 * 5, 1, "auto"),
        (4, 8, 1, "auto"),
        (1, 8, 1, "auto"),
    ],
)
def test_auto_takes_as_many_gpus_as_the_batch_can_be_divided_among(
    monkeypatch: pytest.MonkeyPatch, n_gpus: int, batch_size: int, n_micro: int, used: int | str
) -> None:
    monkeypatch.setattr(trainer.CUDAAccelerator, "is_available", lambda: True)
    monkeypatch.setattr(trainer.CUDAAccelerator, "auto_device_count", lambda: n_gpus)
    settings = {**GIVEN, "accumulate_grad_batches": n_micro, "devices": "auto", "accelerator": "auto"}
    devices, message = devices_that_divide(settings, batch_size)
    assert devices == used
    assert (message is None) == (used == "auto")
    if message:
        assert f"{used} of {n_gpus} GPUs" in message


def test_a_number_of_devices_that_is_given_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer.CUDAAccelerator, "is_available", lambda: True)
    monkeypatch.setattr(trainer.CUDAAccelerator, "auto_device_count", lambda: 3)
    assert devices_that_divide({**GIVEN, "devices": 3}, 8) == (3, None)
    assert devices_that_divide({**GIVEN, "devices": "auto", "accelerator": "cpu"}, 8) == ("auto", None)


# -- what is printed


def said(done: Done) -> str:
    """All that a run printed, and all that it logged."""
    assert done.code == 0, done.err
    return done.out + done.err + (done.directory / "train.log").read_text()


def test_slurm_on_the_path_changes_nothing(
    train: Callable[..., Done], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    srun = tmp_path / "bin" / "srun"
    srun.parent.mkdir()
    srun.write_text("#!/bin/sh\nexit 1\n")
    srun.chmod(0o755)
    monkeypatch.setenv("PATH", str(srun.parent), prepend=":")
    assert "`srun`" not in said(train())


def test_a_gpu_that_the_run_leaves_alone_is_no_warning(
    train: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = type("Installed", (), {"is_available": staticmethod(lambda: True)})
    monkeypatch.setattr("lightning.pytorch.trainer.setup.MPSAccelerator", installed)
    log = said(train("trainer.accelerator=cpu"))
    assert "GPU available: True (mps), used: False" in log  # a fact, which stays
    assert "not used" not in log


def test_other_warnings_stay(caplog: pytest.LogCaptureFixture) -> None:
    with messages_in_log():
        with pytest.warns(PossibleUserWarning, match="does not fit"):
            warnings.warn("the batch size does not fit", PossibleUserWarning, stacklevel=1)
        with caplog.at_level(logging.INFO):
            logging.getLogger("lightning.pytorch.utilities.rank_zero").info("the precision is 16")
    assert "the precision is 16" in caplog.text
