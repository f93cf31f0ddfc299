"""Before the first step: whether the run fits into memory, and a line for each setting that may be a mistake."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from roundround.config.verb import WHERE
from roundround.distributed.device import check_fits
from roundround.distributed.launcher import launched_from_outside
from roundround.model.decoder import Decoder
from roundround.records.directories import jobs_of_sweep
from roundround.records.run import Run
from roundround.softmax.base import AttentionSoftmax, softmax_over_visible
from roundround.softmax.softmax import Softmax
from roundround.training.material import Material
from roundround.training.schedules import Schedule
from roundround.training.trainer import shards
from roundround.verbs import keys_of

COPIES = 4  # the weights, their gradients, and the two moments of Adam


# -- memory


def device_of(trainer: Mapping[str, Any]) -> torch.device:
    """The kind of device that the Trainer's settings choose."""
    gpu = torch.cuda.is_available() and trainer["accelerator"] in ("gpu", "cuda", "auto")
    return torch.device("cuda" if gpu else "cpu")


def check_model_fits(n_parameters: int, trainer: Mapping[str, Any]) -> None:
    """Raises UserError if memory is too small for weights, gradients and moments, or a process's share of them."""
    in_64_bits, n_shares = str(trainer["precision"]).startswith("64"), memories(trainer) if shards(trainer) else 1
    needed = -(-n_parameters // n_shares) * COPIES * (8 if in_64_bits else 4)
    check_fits(
        needed,
        device_of(trainer),
        f"training {n_parameters:,} parameters" + (f" in {n_shares} shares" if n_shares > 1 else ""),
        "give a smaller model.d_model, model.n_layers or tokenizer.vocab_size",
    )


def memories(trainer: Mapping[str, Any]) -> int:
    """The number of memories that the processes use: one for each GPU, or for each machine."""
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


def bytes_of_window(sizes: Mapping[str, Any], *, recomputed: bool) -> int:
    """The least that the backward pass of one window needs; see `check_batch_fits`."""
    of_mlp = sizes["d_model"] + 2 * sizes["d_mlp"] if sizes["d_mlp"] else 0
    channels = sizes["n_layers"] * sizes["d_model"] + of_mlp * (1 if recomputed else sizes["n_layers"])
    return int(sizes["train_length"] * (8 + 2 * channels))


def check_window_fits(sizes: Mapping[str, Any], trainer: Mapping[str, Any], *, recomputed: bool = False) -> None:
    """`check_batch_fits` of one window, which can be checked before a text is tokenised or an example drawn."""
    what = f"one window of {sizes['train_length']:,} tokens"
    check_fits(bytes_of_window(sizes, recomputed=recomputed), device_of(trainer), what, "train on shorter ones")


def check_batch_fits(
    batch_size: int, sizes: Mapping[str, Any], *, n_shares: int, device: torch.device, recomputed: bool = False
) -> None:
    """Raises UserError if the device is too small for what the backward pass keeps of one share of the batch.

    Counted are the inputs of both halves of each layer and the two activations of its MLP, in 16 bits; without MLPs
    only the input of each layer. sizes: of the decoder. n_shares: processes times micro-batches. recomputed:
    `activation_checkpointing`, which keeps only the input of all layers but one.
    """
    needed = 8 * batch_size + batch_size // n_shares * bytes_of_window(sizes, recomputed=recomputed)
    check_fits(
        needed,
        device,
        f"batch_size={batch_size} of {sizes['train_length']:,} tokens",
        "give a smaller one, or a larger trainer.accumulate_grad_batches",
    )


# -- settings


def about_settings(run: Run, material: Material, decoder: Decoder, schedule: Schedule, *, n_steps: int) -> list[str]:
    """A line for each setting that may be a mistake; the manifest records whether this trains as the softmax."""
    run.note(trains_as_softmax=trains_as_softmax(decoder))
    notes = [about_warmup(schedule, n_steps), *material.notes(), about_softmax(run, decoder)]
    return [note for note in notes if note is not None]


def about_warmup(schedule: Schedule, n_steps: int) -> str | None:
    """A line if the warm-up takes at least half of the run."""
    warmup = schedule.warmup_steps
    if 2 * warmup < n_steps:
        return None
    most = "the whole run" if warmup >= n_steps else f"{100 * warmup / n_steps:.0f}% of the run"
    return f"the learning rate warms up during {most}: schedule.warmup_steps={warmup}, trainer.max_steps={n_steps}"


def about_softmax(run: Run, decoder: Decoder) -> str | None:
    """A line if the normaliser is the plain softmax in training, or if a job of the sweep has trained the same.

    run: its manifest says whether the decoder `trains_as_softmax`.
    """
    name, as_softmax = run.manifest["choices"].get("softmax"), run.manifest["trains_as_softmax"]
    at_inference = as_softmax and not isinstance(decoder.layers[0].self_attn.softmax, Softmax)
    duplicate = duplicate_job(run)
    if duplicate is not None:
        same = f"the same training as job {duplicate.name} of this sweep"
        return f"softmax={name}: {same}; to eval, give softmax= instead" if at_inference else same
    if not at_inference:
        return None
    return f"softmax={name} acts at inference only: this training is that of softmax=softmax"


def duplicate_job(run: Run) -> Path | None:
    """A job of the same sweep with the same training: both train as the plain softmax, and nothing else differs.

    A job that failed or was interrupted does not count: it leaves no model to evaluate.
    """
    if run.manifest["sweep"] is None or not run.manifest["trains_as_softmax"]:
        return None
    elsewhere = dict.fromkeys(keys_of(WHERE) | {"softmax"})
    mine = run.manifest["config"] | elsewhere
    for directory, manifest in jobs_of_sweep(Path(run.manifest["sweep"])):
        same = manifest["config"] | elsewhere == mine and manifest["status"] in ("done", "running")
        if same and directory != run.directory and manifest.get("trains_as_softmax"):
            return directory
    return None


@torch.no_grad()
def trains_as_softmax(decoder: Decoder) -> bool:
    """Whether this decoder trains as with the plain softmax, checked with rows up to the training length."""
    normalisers = [module for module in decoder.modules() if isinstance(module, AttentionSoftmax)]
    return all(map(is_softmax_in_training, normalisers))


def is_softmax_in_training(softmax: AttentionSoftmax, n_rows: int = 16) -> bool:
    """Whether a normaliser without parameters gives the weights of the softmax, from even rows to sharp ones."""
    narrows = softmax.window is not None and softmax.window < softmax.shape.train_length
    if narrows or any(True for _ in softmax.parameters()):
        return False
    shape, generator = softmax.shape, torch.Generator().manual_seed(0)
    n_visible_Q = torch.linspace(1, shape.train_length, n_rows).long()
    visible_B1QK = (torch.arange(shape.train_length) < n_visible_Q[:, None])[None, None]
    logits_BHQK = torch.randn(1, shape.n_heads, n_rows, shape.train_length, dtype=torch.float64, generator=generator)
    logits_BHQK *= torch.linspace(0.1, 10, n_rows)[:, None].roll(5, 0)
    x_BTD = torch.randn(1, n_rows, shape.d_model, generator=generator)
    rows = {**softmax.row_parameters(x_BTD), "n_visible": n_visible_Q[None, None, :, None]}
    weights_BHQK = softmax.train().weights(logits_BHQK, visible_B1QK, rows)
    return torch.allclose(weights_BHQK, softmax_over_visible(logits_BHQK, visible_B1QK), rtol=1e-9, atol=0)
