"""Every argument of Lightning's Trainer is honoured or refused by name."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Done, assert_refused
from safetensors.torch import load_file

from roundround.support.errors import UserError
from roundround.training import trainer_options
from roundround.training.trainer_options import HONOURED, OWNED, REFUSED, arguments, check_trainer, devices_that_divide

GIVEN = {"max_steps": 4, "log_every_n_steps": 1, "accumulate_grad_batches": 1, "gradient_clip_val": 1.0}


def test_every_argument_of_the_trainer_has_its_decision() -> None:
    assert sorted([*HONOURED, *REFUSED]) == sorted(arguments())
    assert set(OWNED) <= set(REFUSED)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_is_not_honoured_is_refused_by_name(name: str) -> None:
    with pytest.raises(UserError, match=rf"^trainer\.{name} is not supported: .*; leave it out$"):
        check_trainer({**GIVEN, name: 1})


def test_a_name_that_lightning_does_not_have_is_answered_with_those_that_are_honoured() -> None:
    with pytest.raises(
        UserError, match=r"^trainer has no parameter 'acelerator'; did you mean 'accelerator'"
    ) as caught:
        check_trainer({**GIVEN, "acelerator": "cpu"})
    assert "callbacks" not in str(caught.value)


def test_an_argument_that_a_later_lightning_brings_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_options, "arguments", lambda: ["skip_every_other_step"])
    with pytest.raises(UserError, match="skip_every_other_step is not supported"):
        check_trainer({**GIVEN, "skip_every_other_step": True})


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


def test_clipping_by_value_needs_the_value() -> None:
    with pytest.raises(UserError, match="gradient_clip_algorithm does nothing without"):
        check_trainer({**GIVEN, "gradient_clip_val": None, "gradient_clip_algorithm": "value"})


# -- at the command line


@pytest.mark.parametrize(
    ("override", "part"),
    [
        ("+trainer.limit_train_batches=4", "trainer.limit_train_batches is not supported"),
        ("+trainer.fast_dev_run=true", "trainer.fast_dev_run is not supported"),
        ("trainer.gradient_clip_val=nan", "trainer.gradient_clip_val=nan must be a finite number above 0"),
        ("trainer.strategy=deepspeed", "(choices: auto, ddp"),
        ("trainer.precision=16-mixed", "needs a GPU"),
        ("+trainer.plugins=[]", "trainer.plugins is not supported"),
    ],
)
def test_a_refusal_leaves_one_line_and_no_run(train: Callable[..., Done], override: str, part: str) -> None:
    assert_refused(train(override), part)


def test_clipping_by_value_and_by_norm_are_two_different_things(train: Callable[..., Done]) -> None:
    by_norm, by_value, none = (
        load_file(train("trainer.max_steps=1", "optim.eps=1", *clip).directory / "checkpoints/last/model.safetensors")
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
    import roundround.verbs.train as task

    monkeypatch.setitem(task.OWNED, "limit_train_batches", 3)
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
    monkeypatch.setattr(trainer_options.CUDAAccelerator, "is_available", lambda: True)
    monkeypatch.setattr(trainer_options.CUDAAccelerator, "auto_device_count", lambda: n_gpus)
    settings = {**GIVEN, "accumulate_grad_batches": n_micro, "devices": "auto", "accelerator": "auto"}
    devices, message = devices_that_divide(settings, batch_size)
    assert devices == used
    assert (message is None) == (used == "auto")
    if message:
        assert f"{used} of {n_gpus} GPUs" in message


def test_a_number_of_devices_that_is_given_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_options.CUDAAccelerator, "is_available", lambda: True)
    monkeypatch.setattr(trainer_options.CUDAAccelerator, "auto_device_count", lambda: 3)
    assert devices_that_divide({**GIVEN, "devices": 3}, 8) == (3, None)
    assert devices_that_divide({**GIVEN, "devices": "auto", "accelerator": "cpu"}, 8) == ("auto", None)
