"""Weights of a checkpoint into a model: names and shapes are compared first, because a run.json may say anything."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from roundround.errors import UserError


def check_fits(model: nn.Module, weights: Mapping[str, Tensor], folder: Path) -> None:
    """Raises UserError for the first name or shape in which the weights of `folder` are not the model's.

    The model may lie on the meta device, where one of any size costs nothing.
    """
    state = model.state_dict()
    for name in sorted(state.keys() | weights.keys()):
        wanted, there = (list(tensors[name].shape) if name in tensors else None for tensors in (state, weights))
        if wanted != there:
            raise UserError(
                f"{folder} does not fit the config in run.json: {name} is {there or 'missing'} in the weights and "
                f"{wanted or 'missing'} in the model; one of them has been changed"
            )


def load_into(model: nn.Module, weights: Mapping[str, Tensor], folder: Path) -> None:
    """Give a model the weights of the checkpoint in `folder`. UserError where they are not this model's."""
    check_fits(model, weights, folder)
    model.load_state_dict(weights)
