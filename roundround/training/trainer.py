"""Checks the arguments of Lightning's Trainer, makes the Trainer, and handles its processes and its messages.

Only this module uses private parts of Lightning: `_data_parallel_size` and `_launch_process_observer`.
Tested by tests/training/test_trainer.py.
"""

from __future__ import annotations

import logging
import os
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import lightning
import torch
from lightning.fabric.plugins.environments import LightningEnvironment, TorchElasticEnvironment
from lightning.pytorch.strategies import ModelParallelStrategy
from lightning.pytorch.strategies.launchers import subprocess_script
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch import nn

from roundround.config.build import plain, target_class
from roundround.distributed.device import check_fits
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
from roundround.support.errors import UserError, nearest, one_line

if TYPE_CHECKING:
    from roundround.config.verb import Node

COUNTS = ("max_steps", "log_every_n_steps", "accumulate_grad_batches")
HONOURED = (
    *COUNTS,
    *("accelerator", "devices", "num_nodes", "strategy", "precision", "deterministic", "benchmark", "detect_anomaly"),
    *("gradient_clip_val", "gradient_clip_algorithm"),
    "profiler",  # the report goes to the log of the run
    "peak_flops",  # for `bookkeeping.py`; not an argument of Lightning's Trainer
)
SHARDS = "fsdp2"
STRATEGIES = ("auto", "ddp", "ddp_find_unused_parameters_false", "ddp_find_unused_parameters_true", SHARDS)
PRECISIONS_OF_SHARDS = (32, "32", "32-true", "bf16", "bf16-mixed")
WEIGHTS_IN_16_BITS = ("16-true", "bf16-true", "transformer-engine", "transformer-engine-float16")


def check_trainer(settings: Mapping[str, Any]) -> None:
    """Raises UserError for the first argument that a run does not accept. Lightning checks the remaining values."""
    for name in settings:
        if name not in (*HONOURED, "_target_"):
            raise UserError(f"roundround accepts no trainer.{name}{nearest(name, HONOURED)}")
    numbers = {name: settings.get(name) for name in COUNTS}
    if settings.get("gradient_clip_val") is not None:  # null: no clipping
        numbers["gradient_clip_val"] = settings["gradient_clip_val"]
    for name, value in numbers.items():
        if not isinstance(value, int | float) or not value > 0:
            raise UserError(f"trainer.{name}={value} must be a number above 0")
    strategy, precision = settings.get("strategy", "auto"), settings.get("precision")
    if strategy not in STRATEGIES:
        raise UserError(f"trainer.strategy={strategy} must be one of {', '.join(STRATEGIES)}")
    if precision in WEIGHTS_IN_16_BITS:
        raise UserError(
            f"trainer.precision={precision} keeps the weights themselves in 16 bits or fewer, where updates smaller "
            "than a few thousandths of a weight are rounded away; use trainer.precision=bf16-mixed"
        )
    if settings.get("gradient_clip_algorithm") and settings.get("gradient_clip_val") is None:
        raise UserError("trainer.gradient_clip_algorithm does nothing without trainer.gradient_clip_val; give both")


def shards(settings: Mapping[str, Any]) -> bool:
    """Whether the parameters are divided among the processes."""
    return bool(settings.get("strategy") == SHARDS)


class FullyShardedStrategy(ModelParallelStrategy):
    """Lightning's strategy with all processes in one mesh. Each gets a share of the batches and of the parameters."""

    def setup_environment(self) -> None:
        self._data_parallel_size = self.num_nodes * self.num_processes  # Lightning's "auto" is the number of nodes
        super().setup_environment()


def check_model_fits(decoder: nn.Module, trainer: Mapping[str, Any]) -> None:
    """Raises UserError if memory is too small for weights, gradients and Adam's moments.

    If the parameters are sharded, memory must suffice for one process's share. decoder: the decoder on the meta device.
    trainer: the Trainer's settings.
    """
    n_parameters = sum(parameter.numel() for parameter in decoder.parameters())
    n_shares = memories(trainer) if shards(trainer) else 1
    bytes_of_number = 8 if str(trainer["precision"]).startswith("64") else 4
    check_fits(
        -(-n_parameters // n_shares) * 4 * bytes_of_number,
        device_of(trainer),
        f"training {n_parameters:,} parameters" + (f" in {n_shares} shares" if n_shares > 1 else ""),
        "give a smaller model.d_model, model.n_layers or tokenizer.vocab_size",
    )


def device_of(trainer: Mapping[str, Any]) -> torch.device:
    """The kind of device that the Trainer's settings choose."""
    gpu = torch.cuda.is_available() and trainer["accelerator"] in ("gpu", "cuda", "auto")
    return torch.device("cuda" if gpu else "cpu")


def memories(trainer: Mapping[str, Any]) -> int:
    """The number of separate memories that the processes use: one for each GPU; without GPUs, one for each machine."""
    n_nodes, devices = int(trainer.get("num_nodes", 1)), trainer["devices"]
    launched = launched_from_outside()
    if launched is not None:
        n_nodes, devices = max(n_nodes, launched.n_processes // launched.n_on_machine), launched.n_on_machine
    if device_of(trainer).type == "cpu":
        return n_nodes
    if devices in ("auto", -1, "-1"):
        devices = torch.cuda.device_count()
    if isinstance(devices, str):  # "0,2" lists devices; "2" is their number
        devices = [name for name in devices.split(",") if name] if "," in devices else int(devices)
    return n_nodes * (devices if isinstance(devices, int) else len(devices))


def make_trainer(node: Node[lightning.Trainer], run: Run, n_steps: int) -> lightning.Trainer:
    """Lightning's Trainer for `n_steps` more steps. Raises UserError if Lightning refuses an argument."""
    settings = plain(node)
    gpu = settings["accelerator"] in ("gpu", "cuda") or (
        settings["accelerator"] == "auto" and torch.cuda.is_available()
    )
    earlier = (run.manifest.get("processes") or [{}])[-1].get("precision")  # if the run resumes on another device
    half = "bf16-mixed" if gpu and has_bfloat16(torch.device("cuda")) else "16-mixed"  # weights in float32
    settings["precision"] = settings["precision"] or earlier or (half if gpu else "32-true")
    if settings["precision"] in (16, "16", "16-mixed") and not gpu:  # on a CPU Lightning would take bf16-mixed
        raise UserError(f"trainer.precision={settings['precision']} needs a GPU; use trainer.precision=bf16-mixed")
    launched, processes = launched_from_outside(), who_starts_processes()
    if launched is not None and settings["devices"] == "auto":
        settings["devices"] = launched.n_on_machine
    if shards(settings):
        if settings["precision"] not in PRECISIONS_OF_SHARDS:
            raise UserError(
                f"trainer.strategy={SHARDS} does not go with trainer.precision={settings['precision']}, which needs "
                "whole copies of the model; give 32-true or bf16-mixed, or trainer.strategy=ddp"
            )
        settings["strategy"] = FullyShardedStrategy(tensor_parallel_size=1)
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
        raise UserError(f"trainer: {one_line(error)}") from error  # ImportError: a TPU without torch_xla
    check_processes(trainer.global_rank, trainer.num_devices * trainer.num_nodes)
    return trainer


# -- the Trainer's processes: who starts them, the arguments for them, what happens if one dies


def who_starts_processes() -> dict[str, Any]:
    """The arguments that tell the Trainer who starts its processes; empty if Lightning starts them.

    Processes of srun get the environment variables of torchrun. Lightning's own class for Slurm is not used: it refuses
    `srun -n2`, which does not set the number of tasks on a machine, and it requeues Slurm jobs by itself. Raises
    UserError if an sbatch script for several tasks does not use srun, because only one process would start.
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
        return {
            "plugins": [TorchElasticEnvironment()],
            "num_nodes": max(1, launched.n_processes // launched.n_on_machine),
        }
    launched = launch()
    if launched is not None and without_srun(launched) and launched.n_processes > 1:
        raise UserError(f"this Slurm job has {launched.n_processes} tasks; put srun in front of the command")
    if in_shell_of_salloc() and (launched is None or launched.launcher == "Lightning"):
        return {"plugins": [LightningEnvironment()]}  # otherwise Lightning would read the rank of a Slurm task
    return {}


def check_processes(global_rank: int, n_devices: int) -> None:
    """Raises UserError if the number of processes that the launcher started is not the number that the Trainer expects.

    Without this check, some ranks would wait for ranks that do not exist, or two ranks would do the same work.
    """
    launched = launch()
    if launched is not None and (launched.rank, launched.n_processes) != (global_rank, n_devices):
        raise UserError(
            f"{launched.launcher} started {launched.n_processes} processes and trainer.devices x trainer.num_nodes is "
            f"{n_devices}; give trainer.devices={launched.n_on_machine}, or start as many processes as devices"
        )


@contextmanager
def processes_of_lightning(peers: Peers) -> Iterator[None]:
    """Inside the block, this process, which is the first, watches the processes that Lightning starts.

    If one of them fails, Lightning would kill the others at once with SIGKILL. Here the others get some seconds to
    report which process is missing and to end by themselves, so that only processes that hang are killed.
    """
    theirs = subprocess_script._launch_process_observer

    def watch(children: list[subprocess.Popen[bytes]]) -> None:
        threading.Thread(target=end_with, args=(children, peers), name="children", daemon=True).start()
        try:
            peers.join()
        except UserError:
            for child in children:  # otherwise they would report that this process was killed
                child.kill()
            raise

    subprocess_script._launch_process_observer = watch
    os.environ.setdefault(STARTED_BY, str(os.getpid()))
    try:
        yield
    finally:
        subprocess_script._launch_process_observer = theirs
        os.environ.pop(STARTED_BY, None)


def end_with(children: list[subprocess.Popen[bytes]], peers: Peers) -> None:
    """Wait until all children have ended. If one has failed, give the others time to end, then kill them."""
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


def messages_in_log() -> None:
    """Send Lightning's messages to the log of the run instead of the terminal."""
    for name in ("lightning", "lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).propagate = True
