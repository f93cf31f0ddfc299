"""Weights of a checkpoint into a model: names and shapes are compared first, because a run.json may say anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from roundround.runs.checkpoint_files import OF_OPTIMIZER, STATE, TRAINER, WEIGHTS, join_optimizer
from roundround.runs.checkpoints import Checkpoint, damaged, refused
from roundround.support.errors import UserError


def check_weights(model: nn.Module, weights: Mapping[str, Tensor], folder: Path) -> None:
    """Raises UserError where the weights of the checkpoint in `folder` are not the model's, by name or by shape.

    The model may lie on the meta device, where one of any size costs nothing.
    """
    check_shapes(model, {name: tuple(tensor.shape) for name, tensor in weights.items()}, folder)


def check_shapes(model: nn.Module, given: Mapping[str, tuple[int, ...]], folder: Path) -> None:
    """`check_weights` of shapes."""
    own = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
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


def load_shards_into(model: nn.Module, checkpoint: Checkpoint) -> None:
    """Give a sharded model the rows that lie here, in all its processes at once. UserError in all of them."""
    from roundround.runs.sharded_checkpoints import check_together, read_into, shapes

    folder = checkpoint.folder
    check_together(folder, checkpoint.state)
    check_shapes(model, {name: of for name, of in shapes(folder).items() if not OF_OPTIMIZER.fullmatch(name)}, folder)
    read_into(model.state_dict(), folder)


def load_shards_of_optimizer(optimizer: torch.optim.Optimizer, checkpoint: Checkpoint) -> None:
    """Give the optimizer of a sharded model the rows that lie here; `load_shards_into` has seen the files to be right.

    Raises UserError where the state is that of other parameters.
    """
    from roundround.runs.sharded_checkpoints import read_into, shapes

    folder, numbers = checkpoint.folder, checkpoint.state["optimiser"]
    parameters = dict(enumerate(p for group in optimizer.param_groups for p in group["params"]))
    tensors: dict[str, Tensor] = {}
    for name, shape in shapes(folder).items():
        of = parameters.get(int(name.partition(".")[0])) if OF_OPTIMIZER.fullmatch(name) else None
        if of is not None:
            tensors[name] = torch.zeros_like(of) if shape == tuple(of.shape) else torch.zeros(shape)
    with refused(folder, STATE):
        state = join_optimizer(tensors, numbers)
    check_optimizer(replace(checkpoint, optimizer=state), optimizer)
    read_into(tensors, folder)
    optimizer.load_state_dict(state)


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
