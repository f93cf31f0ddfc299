"""Lightning's Trainer: the arguments that a run honours, how it is made, its processes, what it prints.

The private parts of Lightning that the project needs are used here alone: `_data_parallel_size` and
`_launch_process_observer`. Tested by tests/training/test_trainer.py.
"""

from __future__ import annotations

import logging
import math
import os
import subprocess
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import lightning
import torch
from lightning.fabric.plugins.environments import LightningEnvironment, TorchElasticEnvironment
from lightning.pytorch.accelerators import CUDAAccelerator
from lightning.pytorch.strategies import ModelParallelStrategy
from lightning.pytorch.strategies.launchers import subprocess_script
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from roundround.config.build import plain, target_class
from roundround.distributed.launcher import (
    STARTED_BY,
    address,
    in_shell_of_salloc,
    launch,
    launched_from_outside,
    without_srun,
)
from roundround.distributed.peers import KILLED, SECONDS_BETWEEN_CHECKS, SECONDS_TO_LEAVE, Peers
from roundround.kernels.precision import has_bfloat16
from roundround.records.run import Run
from roundround.support.console import print_status
from roundround.support.errors import UserError, nearest, one_line

if TYPE_CHECKING:
    from roundround.config.verb import Node

COUNTS = ("max_steps", "log_every_n_steps", "accumulate_grad_batches")
SHARDS = "fsdp2"
STRATEGIES = ("auto", "ddp", "ddp_find_unused_parameters_false", "ddp_find_unused_parameters_true", SHARDS)
PRECISIONS_OF_SHARDS = (None, 32, "32", "32-true", "bf16", "bf16-mixed")
DEVICES_OF_SHARDS = ("auto", "cpu", "gpu", "cuda")
PRECISIONS = (None, 16, 32, 64, "16", "16-mixed", "bf16", "bf16-mixed", "32", "32-true", "64", "64-true")
WEIGHTS_IN_16_BITS = ("16-true", "bf16-true", "transformer-engine", "transformer-engine-float16")


def whole(value: Any) -> str | None:
    sound = isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 2**63
    return None if sound else "must be a whole number from 1 to 2^63 - 1"


def above_zero(value: Any) -> str | None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    sound = value is None or (number and math.isfinite(value) and value > 0)
    return None if sound else "must be a finite number above 0, or null"


def precision(value: Any) -> str | None:
    if value in WEIGHTS_IN_16_BITS:
        return (
            "keeps the weights themselves in 16 bits or fewer, where updates smaller than a few thousandths of a "
            "weight are rounded away; use trainer.precision=bf16-mixed"
        )
    return one_of(*PRECISIONS)(value)


def one_of(*choices: Any) -> Callable[[Any], str | None]:
    """A check that names the choices, as they are typed."""
    names = ", ".join("null" if choice is None else str(choice).lower() for choice in choices)
    return lambda value: None if any(value is c or value == c for c in choices) else f"must be one of {names}"


# by name a check of the value, which says what is wrong; None if Lightning checks it when the Trainer is made
HONOURED: dict[str, Callable[[Any], str | None] | None] = {
    "accelerator": None,
    "devices": None,
    "num_nodes": whole,
    "strategy": one_of(*STRATEGIES),
    "precision": precision,
    **dict.fromkeys(COUNTS, whole),
    "gradient_clip_val": above_zero,  # null: no clipping
    "gradient_clip_algorithm": one_of(None, "norm", "value"),
    "deterministic": one_of(None, True, False, "warn"),
    "benchmark": one_of(None, True, False),
    "detect_anomaly": one_of(True, False),
    "profiler": one_of(None, "simple", "advanced"),  # the report goes to the log of the run
    "peak_flops": above_zero,  # for `meter.py`, which stands beside Lightning's arguments and is not handed to it
}


def check_trainer(settings: Mapping[str, Any]) -> None:
    """Raises UserError for the first argument that a run would not honour."""
    for name, value in {**dict.fromkeys(COUNTS), **settings}.items():
        if name == "_target_":
            continue
        if name not in HONOURED:
            raise UserError(f"a run has no trainer.{name}{nearest(name, HONOURED)}")
        check = HONOURED[name]
        wrong = check and check(value)
        if wrong:
            raise UserError(f"trainer.{name}={'null' if value is None else value} {wrong}")
    if settings.get("gradient_clip_algorithm") and settings.get("gradient_clip_val") is None:
        raise UserError("trainer.gradient_clip_algorithm does nothing without trainer.gradient_clip_val; give both")
    if settings.get("strategy") == SHARDS:
        check_sharding(settings)


def check_sharding(settings: Mapping[str, Any]) -> None:
    """Raises UserError for options that `trainer.strategy=fsdp2` does not support."""
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


def shards(settings: Mapping[str, Any]) -> bool:
    """Whether each process holds a share of the parameters."""
    return bool(settings.get("strategy") == SHARDS)


class FullyShardedStrategy(ModelParallelStrategy):
    """Lightning's strategy with all processes in one mesh, among which both batches and parameters are shared out."""

    def __init__(self) -> None:
        super().__init__(data_parallel_size="auto", tensor_parallel_size=1)

    def setup_environment(self) -> None:
        self._data_parallel_size = self.num_nodes * self.num_processes  # Lightning's "auto" is the number of nodes
        super().setup_environment()


def devices_that_divide(settings: Mapping[str, Any], batch_size: int) -> tuple[int | str | list[int], str | None]:
    """The devices to use, and a line about them: `auto` becomes as many GPUs as the batch can be divided among."""
    devices = settings.get("devices", "auto")
    if devices != "auto" or settings.get("accelerator", "auto") not in ("auto", "gpu", "cuda"):
        return devices, None
    there = CUDAAccelerator.auto_device_count() if CUDAAccelerator.is_available() else 0
    share, rest = divmod(batch_size, settings["accumulate_grad_batches"] * settings.get("num_nodes", 1))
    if there < 2 or rest or share % there == 0:
        return devices, None
    used = max(n for n in range(1, there) if share % n == 0)
    return used, f"training on {used} of {there} GPUs, because batch_size={batch_size} cannot be divided among {there}"


def make_trainer(node: Node[lightning.Trainer], run: Run, n_steps: int, *, batch_size: int) -> lightning.Trainer:
    """Lightning's Trainer for the steps that are left; UserError for what it refuses."""
    settings = plain(node)
    gpu = settings["accelerator"] in ("gpu", "cuda") or (
        settings["accelerator"] == "auto" and torch.cuda.is_available()
    )
    earlier = (run.manifest.get("processes") or [{}])[-1].get("precision")  # of a run resumed on another device
    half = "bf16-mixed" if gpu and has_bfloat16(torch.device("cuda")) else "16-mixed"  # weights in float32
    settings["precision"] = settings["precision"] or earlier or (half if gpu else "32-true")
    if settings["precision"] in (16, "16", "16-mixed") and not gpu:  # on a CPU Lightning would take bf16-mixed
        way_out = "resume it on one" if earlier else "use trainer.precision=bf16-mixed"
        raise UserError(f"trainer.precision={settings['precision']} needs a GPU; {way_out}")
    launched, processes = launched_from_outside(), who_starts_processes()
    if launched is not None and settings["devices"] == "auto":
        settings["devices"] = launched.n_on_machine
    settings["devices"], message = devices_that_divide(settings, batch_size)
    if message is not None and run.writes:
        print_status(message)
    if shards(settings):
        check_sharding(settings)  # the precision is known now
        settings["strategy"] = FullyShardedStrategy()
    own = {name: value for name, value in settings.items() if name not in ("_target_", "max_steps", "peak_flops")}
    try:
        trainer: lightning.Trainer = target_class(node, lightning.Trainer)(
            **(processes | own),
            max_steps=n_steps,
            max_epochs=1,
            use_distributed_sampler=False,  # each batch follows from the seed, the step and the rank
            logger=False,  # the run directory and logger= keep the record
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
    except (MisconfigurationException, ValueError, TypeError, RuntimeError, ImportError) as error:
        raise UserError(f"trainer: {one_line(error)}") from error  # the last: torch_xla of a TPU
    check_processes(trainer.global_rank, trainer.num_devices * trainer.num_nodes)
    n_processes, n_cores = trainer.num_devices, os.cpu_count() or 1
    if run.writes and trainer.strategy.root_device.type == "cpu" and n_processes > n_cores:
        print_status(f"{n_processes} processes share the cores of this machine, {n_cores}; fewer of them are faster")
    return trainer


# -- its processes: who starts them, Lightning's arguments for them, what it does when one dies


def who_starts_processes() -> dict[str, Any]:
    """The Trainer's arguments for its processes. UserError in a script of sbatch for several tasks: it starts one.

    The processes of srun get the variables of torchrun: Lightning's class for Slurm refuses `srun -n2`, which does not
    give the number of tasks on a machine, and puts Slurm jobs back into the queue by itself.
    """
    launched = launched_from_outside()
    if launched is not None:
        host, port = address()
        os.environ |= {
            "RANK": str(launched.rank),
            "WORLD_SIZE": str(launched.n_processes),
            "LOCAL_RANK": str(launched.local_rank),
            "GROUP_RANK": str(launched.machine),
            "MASTER_ADDR": host,
            "MASTER_PORT": str(port),
        }
        n_nodes = max(1, launched.n_processes // launched.n_on_machine)
        return {"plugins": [TorchElasticEnvironment()], "num_nodes": n_nodes}
    launched = launch()
    if launched is not None and without_srun(launched) and launched.n_processes > 1:
        raise UserError(f"this Slurm job has {launched.n_processes} tasks; put srun in front of the command")
    if in_shell_of_salloc() and (launched is None or launched.launcher == "Lightning"):
        return {"plugins": [LightningEnvironment()]}  # it would ask for the rank of a task
    return {}


def check_processes(global_rank: int, n_devices: int) -> None:
    """Raises UserError if the Trainer counts other processes than were started: ranks would wait, or repeat work."""
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


@contextmanager
def processes_of_lightning(peers: Peers) -> Iterator[None]:
    """Inside, processes that Lightning starts join this one, which is the first, and are watched.

    Lightning kills all with SIGKILL once one has failed. Here the kill waits some seconds, in which the others can
    report and record which process is missing; it is for processes that hang.
    """
    theirs = subprocess_script._launch_process_observer

    def watch(children: list[subprocess.Popen[bytes]]) -> None:
        threading.Thread(target=end_with, args=(children, peers), name="children", daemon=True).start()
        try:
            peers.join()
        except UserError:
            for child in children:  # they would report that this process was killed
                child.kill()
            raise

    subprocess_script._launch_process_observer = watch
    is_first = STARTED_BY not in os.environ
    os.environ.setdefault(STARTED_BY, str(os.getpid()))
    try:
        yield
    finally:
        subprocess_script._launch_process_observer = theirs
        if is_first:
            del os.environ[STARTED_BY]


def end_with(children: list[subprocess.Popen[bytes]], peers: Peers) -> None:
    """Wait until all children have ended. If one has failed, give all of them time to leave, then kill them."""
    while None in (codes := [child.poll() for child in children]) and not any(codes):
        time.sleep(SECONDS_BETWEEN_CHECKS)
    if not any(codes):
        return
    gone = next(rank for rank, code in enumerate(codes, 1) if code)
    peers.gone.add(gone)
    has_left = peers.left.wait(SECONDS_TO_LEAVE)
    for child in children:
        child.kill()
    if not has_left:  # a process that has left may run the next job of a sweep
        peers.give_up_on(gone, KILLED)


# -- what it prints

LOGGERS = ("lightning", "lightning.pytorch", "lightning.fabric")
# of messages for the first rank, with tips about other products
RANK_ZERO_LOGGERS = ("lightning.pytorch.utilities.rank_zero", "lightning.fabric.utilities.rank_zero")
# The start of warnings about what the run has decided: it may start without `srun`, `trainer.accelerator` names the
# device, and batches come from a memory map.
HINTS = (
    r"The `srun` command is available on your system but is not used",
    r"[GT]PU available but not used",
    r"The '\w+_dataloader' does not have many workers",
    r"FSDP2-wrapped module \(FSDPDecoder\) returned a view tensor",  # nothing changes its losses in place
    r"`isinstance\(treespec, LeafSpec\)` is deprecated",  # lightning 2.6 uses what torch 2.13 deprecates
)


def without_tips(record: logging.LogRecord) -> bool:
    return "Tip: " not in record.getMessage()


@contextmanager
def messages_in_log() -> Iterator[None]:
    """Inside, Lightning prints nothing to the terminal, and its hints are not logged either."""
    for name in LOGGERS:
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).propagate = True
    for name in RANK_ZERO_LOGGERS:
        logging.getLogger(name).addFilter(without_tips)
    with warnings.catch_warnings():
        for hint in HINTS:
            warnings.filterwarnings("ignore", message=hint)
        yield
