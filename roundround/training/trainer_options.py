"""The arguments of Lightning's Trainer: each is honoured, its value checked, or refused by name with the reason."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Mapping
from typing import Any

import lightning
import torch
from lightning.fabric.plugins.environments import LightningEnvironment
from lightning.pytorch.accelerators import CUDAAccelerator

from roundround.attention.precision import has_bfloat16
from roundround.distributed.launcher import in_shell_of_salloc, launch, launched_from_outside, without_srun
from roundround.support.errors import UserError, nearest
from roundround.training.processes import Launched

COUNTS = ("max_steps", "log_every_n_steps", "accumulate_grad_batches")
SHARDS = "fsdp2"
STRATEGIES = ("auto", "ddp", "ddp_find_unused_parameters_false", "ddp_find_unused_parameters_true", SHARDS)
PRECISIONS_OF_SHARDS = (None, 32, "32", "32-true", "bf16", "bf16-mixed")
DEVICES_OF_SHARDS = ("auto", "cpu", "gpu", "cuda")
PRECISIONS = (None, 16, 32, 64, "16", "16-mixed", "bf16", "bf16-mixed", "32", "32-true", "64", "64-true")
WEIGHTS_IN_16_BITS = ("16-true", "bf16-true", "transformer-engine", "transformer-engine-float16")
PROFILERS = (None, "simple", "advanced")


def whole(value: Any) -> str | None:
    sound = isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 2**63
    return None if sound else "must be a whole number of at least 1, in 64 bits"


def clipping_limit(value: Any) -> str | None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    sound = value is None or (number and math.isfinite(value) and value > 0)
    return None if sound else "must be a finite number above 0; null turns clipping off"


def positive(value: Any) -> str | None:
    return None if value is None or clipping_limit(value) is None else "must be a finite number above 0, or null"


def precision(value: Any) -> str | None:
    if value in WEIGHTS_IN_16_BITS:
        return (
            "keeps the weights themselves in 16 bits or fewer, where updates smaller than a few thousandths of a "
            "weight are rounded away; use trainer.precision=bf16-mixed"
        )
    return one_of(*PRECISIONS)(value)


def strategy(value: Any) -> str | None:
    if isinstance(value, str) and value not in STRATEGIES:
        return (
            "is not supported: checkpoints, resuming and clipping are written for whole copies of the model, and for "
            f"the shards of {SHARDS}{nearest(value, STRATEGIES)}"
        )
    return one_of(*STRATEGIES)(value)


def one_of(*choices: Any) -> Callable[[Any], str | None]:
    """A check that names the choices, as they are typed."""
    names = ", ".join("null" if choice is None else str(choice).lower() for choice in choices)
    return lambda value: None if any(value is c or value == c for c in choices) else f"must be one of {names}"


def whatever_lightning_takes(value: Any) -> None:
    """For arguments that Lightning itself checks when the Trainer is made."""


# name: a check of its value, which says what is wrong with it
HONOURED: dict[str, Callable[[Any], str | None]] = {
    "accelerator": whatever_lightning_takes,
    "devices": whatever_lightning_takes,
    "num_nodes": whole,
    "strategy": strategy,
    "precision": precision,
    **dict.fromkeys(COUNTS, whole),
    "gradient_clip_val": clipping_limit,
    "gradient_clip_algorithm": one_of(None, "norm", "value"),
    "deterministic": one_of(None, True, False, "warn"),
    "benchmark": one_of(None, True, False),
    "detect_anomaly": one_of(True, False),
    "profiler": one_of(*PROFILERS),  # the report goes to the log of the run
}

ENDS_EARLY = "a run has exactly trainer.max_steps steps"
VALIDATION = "validate_every and validation_tokens decide when held-out text is scored, and how much of it"
PASSES = "a run has no epochs: each batch follows from the seed and the step"
LOGGING = "the run directory and logger= keep the record"
REFUSED = {  # name: what takes its place
    "fast_dev_run": ENDS_EARLY,
    "limit_train_batches": ENDS_EARLY,
    "overfit_batches": ENDS_EARLY,
    "max_epochs": ENDS_EARLY,
    "min_epochs": ENDS_EARLY,
    "min_steps": ENDS_EARLY,
    "max_time": ENDS_EARLY,
    "limit_val_batches": VALIDATION,
    "limit_test_batches": VALIDATION,
    "limit_predict_batches": VALIDATION,
    "val_check_interval": VALIDATION,
    "check_val_every_n_epoch": VALIDATION,
    "num_sanity_val_steps": VALIDATION,
    "inference_mode": VALIDATION,
    "reload_dataloaders_every_n_epochs": PASSES,
    "use_distributed_sampler": PASSES,
    "logger": LOGGING,
    "enable_autolog_hparams": LOGGING,
    "default_root_dir": "outputs=DIR moves the run directories",
    "model_registry": "checkpoints lie in the run directory",
    "enable_checkpointing": "checkpoint_every decides when checkpoints are written",
    "enable_progress_bar": "the run shows its own progress",
    "enable_model_summary": "the first lines of a run describe the model",
    "barebones": "it would turn off what the run records",
    "callbacks": "it takes Python objects, which a command line cannot give",
    "plugins": "it takes Python objects, which a command line cannot give",
    "sync_batchnorm": "the model has no batch normalisation",
}
OURS = {"peak_flops": positive}  # what stands beside Lightning's arguments and is not handed to it
OWNED = {  # what the Trainer gets in the place of some of them
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "use_distributed_sampler": False,
    "limit_val_batches": 0,
    "val_check_interval": None,
    "check_val_every_n_epoch": 1,
    "num_sanity_val_steps": 0,
    "max_epochs": 1,
    "max_time": None,
}


def check_trainer(settings: Mapping[str, Any]) -> None:
    """Raises UserError for the first argument that would not be honoured, or that Lightning does not have."""
    for name, value in {**dict.fromkeys(COUNTS), **settings}.items():
        if name in HONOURED or name in OURS:
            wrong = (HONOURED | OURS)[name](value)
            if wrong:
                raise UserError(f"trainer.{name}={'null' if value is None else value} {wrong}")
        elif name in arguments():
            why = REFUSED.get(name, "nobody has checked what it does here")
            raise UserError(f"trainer.{name} is not supported: {why}; leave it out")
        elif name != "_target_":
            raise UserError(f"trainer has no parameter '{name}'{nearest(name, HONOURED | OURS)}")
    if settings.get("gradient_clip_algorithm") and settings.get("gradient_clip_val") is None:
        raise UserError("trainer.gradient_clip_algorithm does nothing without trainer.gradient_clip_val; give both")
    if settings.get("strategy") == SHARDS:
        check_sharding(settings)


def check_sharding(settings: Mapping[str, Any]) -> None:
    """Raises UserError for what `trainer.strategy=fsdp2` cannot do."""
    accelerator, precision = settings.get("accelerator", "auto"), settings.get("precision")
    if accelerator not in DEVICES_OF_SHARDS:
        raise UserError(
            f"trainer.strategy={SHARDS} does not run on trainer.accelerator={accelerator}; "
            "give trainer.accelerator=cpu or gpu, or trainer.strategy=auto"
        )
    if precision not in PRECISIONS_OF_SHARDS:
        raise UserError(
            f"trainer.strategy={SHARDS} does not go with trainer.precision={precision}, which needs whole "
            "copies of the model; give 32-true or bf16-mixed, or trainer.strategy=ddp"
        )
    if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
        raise UserError(f"trainer.strategy={SHARDS} needs a torch that was built with torch.distributed and gloo")


def shards(settings: Mapping[str, Any]) -> bool:
    """Whether each process holds a share of the parameters."""
    return bool(settings.get("strategy") == SHARDS)


def arguments() -> list[str]:
    """The names of what Lightning's Trainer takes."""
    return list(inspect.signature(lightning.Trainer).parameters)


def default_precision(gpu: bool) -> str:
    """What `trainer.precision=null` means: half precision where the device computes in it, weights in float32."""
    if not gpu:
        return "32-true"
    return "bf16-mixed" if has_bfloat16(torch.device("cuda")) else "16-mixed"


def devices_that_divide(settings: Mapping[str, Any], batch_size: int) -> tuple[int | str | list[int], str | None]:
    """What `devices` becomes, and a line about it: of `auto`, as many GPUs as the batch can be divided among."""
    devices = settings.get("devices", "auto")
    if devices != "auto" or settings.get("accelerator", "auto") not in ("auto", "gpu", "cuda"):
        return devices, None
    there = CUDAAccelerator.auto_device_count() if CUDAAccelerator.is_available() else 0
    share, rest = divmod(batch_size, settings["accumulate_grad_batches"] * settings.get("num_nodes", 1))
    if there < 2 or rest or share % there == 0:
        return devices, None
    used = max(n for n in range(1, there) if share % n == 0)
    return used, f"training on {used} of {there} GPUs, because batch_size={batch_size} cannot be divided among {there}"


def who_starts_processes() -> dict[str, Any]:
    """What the Trainer is told about that. UserError in a script of sbatch for several tasks, which starts but one."""
    launched = launched_from_outside()
    if launched is not None:
        return {"plugins": [Launched(launched)], "num_nodes": max(1, launched.n_processes // launched.n_on_machine)}
    launched = launch()
    if launched is not None and without_srun(launched) and launched.n_processes > 1:
        raise UserError(f"this Slurm job has {launched.n_processes} tasks; put srun in front of the command")
    if in_shell_of_salloc() and (launched is None or launched.launcher == "Lightning"):
        return {"plugins": [LightningEnvironment()]}  # it would ask for the rank of a task
    return {}


def check_processes(global_rank: int, n_devices: int) -> None:
    """Raises UserError where the Trainer counts other processes than were started: ranks would wait or repeat."""
    launched = launch()
    if launched is None:
        if global_rank != 0 or "LOCAL_RANK" in os.environ:
            raise UserError(
                "LOCAL_RANK or NODE_RANK is set and no launcher set the rest; unset it, or start with torchrun"
            )
    elif (launched.rank, launched.n_processes) != (global_rank, n_devices):
        raise UserError(
            f"{launched.launcher} started {launched.n_processes} processes and trainer.devices x trainer.num_nodes is "
            f"{n_devices}; give trainer.devices={launched.n_on_machine}, or start as many processes as devices"
        )
