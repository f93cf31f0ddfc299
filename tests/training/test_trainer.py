"""Arguments of Lightning's Trainer are honoured or refused; what is installed on a machine prints nothing in a run."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from conftest import ROOT, Done, assert_refused, saved_weights

from roundround.support.errors import UserError
from roundround.training import trainer
from roundround.training.trainer import (
    check_trainer,
)

GIVEN = {"max_steps": 4, "log_every_n_steps": 1, "accumulate_grad_batches": 1, "gradient_clip_val": 1.0}


@pytest.mark.parametrize("name", ["fast_dev_run", "limit_train_batches", "callbacks", "default_root_dir", "acelerator"])
def test_what_a_run_does_not_honour_is_answered_with_the_nearest_that_it_does(name: str) -> None:
    with pytest.raises(UserError, match=rf"^roundround accepts no trainer\.{name}") as caught:
        check_trainer({**GIVEN, name: 1})
    assert "'accelerator'" in str(caught.value) or name != "acelerator"
    assert "plugins" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_steps", 0),
        ("max_steps", None),
        ("gradient_clip_val", 0),
        ("gradient_clip_val", math.nan),
        ("gradient_clip_val", "high"),
        ("strategy", "deepspeed_stage_3"),
        ("precision", "bf16-true"),
    ],
)
def test_a_value_that_would_not_be_honoured_is_refused(name: str, value: Any) -> None:
    with pytest.raises(UserError, match=rf"^trainer\.{name}="):
        check_trainer({**GIVEN, name: value})


def test_the_pinned_lightning_has_the_private_parts_that_are_used() -> None:
    assert lightning.__version__.startswith("2.6."), "read trainer.py against the new version, then raise this"
    assert callable(trainer.subprocess_script._launch_process_observer)
    assert trainer.FullyShardedStrategy()._data_parallel_size == "auto"
    named = [p.name for p in (ROOT / "roundround").rglob("*.py") if "_data_parallel_size" in p.read_text()]
    assert named == ["trainer.py"]


# -- at the command line


@pytest.mark.parametrize(
    ("override", "part"),
    [
        ("+trainer.limit_train_batches=4", "roundround accepts no trainer.limit_train_batches"),
        ("trainer.gradient_clip_val=nan", "trainer.gradient_clip_val=nan must be a number above 0"),
        ("trainer.strategy=deepspeed", "must be one of auto, ddp"),
        ("trainer.precision=16-mixed", "needs a GPU"),
        ("+trainer.plugins=[]", "roundround accepts no trainer.plugins"),
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
