"""Weights of a checkpoint into a model: names and shapes are compared first, because a run.json may say anything."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from roundround.errors import UserError
from roundround.runs.checkpoint_files import TRAINER, WEIGHTS
from roundround.runs.checkpoints import Checkpoint, damaged


def check_weights(model: nn.Module, weights: Mapping[str, Tensor], folder: Path) -> None:
    """Raises UserError where the weights of the checkpoint in `folder` are not the model's, by name or by shape.

    The model may lie on the meta device, where one of any size costs nothing.
    """
    own = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    given = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    wrong = sorted(name for name in own.keys() | given.keys() if own.get(name) != given.get(name))
    if wrong:
        first, n = wrong[0], len(wrong)
        raise UserError(
            f"{folder / WEIGHTS} does not fit the model of the run: {first} is {described(given.get(first))} there and "
            f"{described(own.get(first))} in the model" + (f", and {n - 1:,} more differ" if n > 1 else "")
        )


def load_into(model: nn.Module, weights: Mapping[str, Tensor], folder: Path) -> None:
    """Give a model the weights of the checkpoint in `folder`. UserError where they are not this model's."""
    check_weights(model, weights, folder)
    model.load_state_dict(dict(weights))


def described(shape: tuple[int, ...] | None) -> str:
    return "missing" if shape is None else f"of shape {list(shape)}"


def check_optimizer(checkpoint: Checkpoint, optimizer: torch.optim.Optimizer) -> None:
    """Raises UserError where a checkpoint's optimizer state is that of other parameters."""
    own, saved = optimizer.param_groups, checkpoint.optimizer["param_groups"]
    shapes = dict(enumerate(tuple(p.shape) for group in own for p in group["params"]))
    fits = [len(group["params"]) for group in own] == [len(group["params"]) for group in saved] and all(
        tensor.ndim == 0 or tuple(tensor.shape) == shapes.get(n)
        for n, values in checkpoint.optimizer["state"].items()
        for tensor in values.values()
    )
    if not fits:
        raise damaged(checkpoint.folder, TRAINER, "it is that of another model")
