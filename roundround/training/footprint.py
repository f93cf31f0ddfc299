"""How much memory a training run needs at the least, which a device must have before the run begins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from roundround.distributed.launcher import launched_from_outside
from roundround.support.memory import check_fits
from roundround.training.trainer_options import shards

COPIES = 4  # the weights, their gradients, and the two moments of Adam


def device_of(trainer: Mapping[str, Any]) -> torch.device:
    """The kind of device that the Trainer's settings choose."""
    wanted = trainer["accelerator"]
    gpu = torch.cuda.is_available() and wanted in ("gpu", "cuda", "auto")
    return torch.device("cuda" if gpu else "cpu")


def check_model_fits(n_parameters: int, trainer: Mapping[str, Any]) -> None:
    """Raises UserError where weights, gradients and moments, or a process's share of them, are more than it has."""
    in_64_bits, n_shares = str(trainer["precision"]).startswith("64"), memories(trainer) if shards(trainer) else 1
    needed = -(-n_parameters // n_shares) * COPIES * (8 if in_64_bits else 4)
    check_fits(
        needed,
        device_of(trainer),
        f"training {n_parameters:,} parameters" + (f" in {n_shares} shares" if n_shares > 1 else ""),
        "give a smaller model.d_model, model.n_layers or tokenizer.vocab_size",
    )


def memories(trainer: Mapping[str, Any]) -> int:
    """Among how many memories processes are spread: those of their GPUs, or of their machines."""
    n_nodes, devices = int(trainer.get("num_nodes", 1)), trainer["devices"]
    launched = launched_from_outside()
    if launched is not None:
        n_nodes, devices = max(n_nodes, launched.n_processes // launched.n_on_machine), launched.n_on_machine
    if device_of(trainer).type == "cpu":
        return n_nodes
    if devices in ("auto", -1, "-1"):
        devices = torch.cuda.device_count()
    if isinstance(devices, str):  # "0,2": which ones
        devices = [name for name in devices.split(",") if name] if "," in devices else int(devices)
    return n_nodes * (devices if isinstance(devices, int) else len(devices))


def bytes_of_window(sizes: Mapping[str, Any]) -> int:
    """What the backward pass of one window needs at the least; see `check_batch_fits`."""
    of_mlp = sizes["d_model"] + 2 * sizes["d_mlp"] if sizes["d_mlp"] else 0
    channels = sizes["n_layers"] * (sizes["d_model"] + of_mlp)
    return int(sizes["train_length"] * (8 + 2 * channels))


def check_window_fits(sizes: Mapping[str, Any], trainer: Mapping[str, Any]) -> None:
    """`check_batch_fits` of one window, which can be known before a text is tokenised and an example is drawn."""
    what = f"one window of {sizes['train_length']:,} tokens"
    check_fits(bytes_of_window(sizes), device_of(trainer), what, "train on shorter ones")


def check_batch_fits(batch_size: int, sizes: Mapping[str, Any], *, n_shares: int, device: torch.device) -> None:
    """Raises UserError where what the backward pass needs of one share of the batch is more than the device holds.

    Counted are the inputs of both halves of each layer and the two activations of its MLP, in 16 bits; without MLPs
    the input of each layer alone. `sizes` are the decoder's. `n_shares`: processes times micro-batches.
    """
    needed = 8 * batch_size + batch_size // n_shares * bytes_of_window(sizes)
    check_fits(
        needed,
        device,
        f"batch_size={batch_size} of {sizes['train_length']:,} tokens",
        "give a smaller one, or a larger trainer.accumulate_grad_batches",
    )
