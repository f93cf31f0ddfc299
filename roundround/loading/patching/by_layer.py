"""Cosines of its own for each attention layer of a Hugging Face model, for an encoding that differs by layer.

Such a model computes cosines and sines once and hands the same to all its layers. Where a layer is to rotate otherwise,
a copy of the rotary module computes what that layer needs, and a hook on the layer hands it over.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel

from roundround.loading.patching.attention import attention_layers, text_decoder
from roundround.loading.patching.frequencies import TABLE, Place, Rotation, places, replace_rotations
from roundround.support.errors import UserError

COPY = "roundround_copy_"  # of a rotary module, inside it; a number follows
COMPUTED = "roundround_computed"  # what a rotary module and its copies gave last, by the name of the table


def places_of_layers(model: PreTrainedModel) -> list[Place | None]:
    """The rotation that each attention layer is handed, seen in a pass over two tokens; None where there is none."""
    layers, there = attention_layers(model), places(model)
    if len(there) < 2:
        return [there[0] if there else None] * len(layers)
    found: dict[int, Place] = {}

    def look(layer: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        own = set(layer.modules())
        for place in there:
            given = place.module.__dict__.get(COMPUTED, {}).get(place.name, [None])[0]
            if place.module in own or (given is not None and any(v is given for v in (*args, *options.values()))):
                found[id(layer)] = place

    weight = model.get_input_embeddings().weight
    device = "cpu" if weight.device.type == "meta" else weight.device  # offloaded weights run on the CPU
    hooks = [*listen(there, {}), *(layer.register_forward_pre_hook(look, with_kwargs=True) for layer in layers)]
    try:
        with torch.no_grad():
            text_decoder(model)(input_ids=torch.zeros(1, 2, dtype=torch.long, device=device), use_cache=False)
    finally:
        end(there, hooks)
    return [found.get(id(layer)) for layer in layers]


def rotate_layers(
    model: PreTrainedModel, of_layers: Sequence[Place | None], rotations: Sequence[Rotation]
) -> Callable[[], None]:
    """Let each layer, which has one of the model's rotations, rotate as given; returns what undoes that.

    UserError where the model would not follow.
    """
    there = places(model)
    own = [place.rotation() for place in there]
    wanted: dict[Place, list[Rotation]] = {}  # of each place, those that differ
    number_of: list[int] = []  # of each layer's rotation among those of its place
    for place, rotation in zip(of_layers, rotations, strict=True):
        of_place = [] if place is None else wanted.setdefault(place, [])
        alike = [i for i, other in enumerate(of_place) if rotation.same_as(other)]
        number_of.append(alike[0] if alike else len(of_place))
        if not alike:
            of_place.append(rotation)
    copies = {place: [copy_of(place.module) for _ in of_place[1:]] for place, of_place in wanted.items()}
    put = {place: of_place[0] for place, of_place in wanted.items()}
    put |= {
        Place(module, place.name): rotation
        for place, modules in copies.items()
        for module, rotation in zip(modules, wanted[place][1:], strict=True)
    }
    hooks: list[RemovableHandle] = []

    def undo() -> None:
        end(there, hooks)
        replace_rotations(model, own)

    try:
        replace_rotations(model, [put.get(place, place.rotation()) for place in places(model)])
    except BaseException:
        end(there, hooks)
        raise
    if any(copies.values()):
        hooks += listen(there, copies)
    for layer, place, number in zip(attention_layers(model), of_layers, number_of, strict=True):
        if place is not None and number:
            hooks.append(layer.register_forward_pre_hook(HandOver(place, number), with_kwargs=True))
    return undo


def copy_of(module: nn.Module) -> nn.Module:
    """A copy of a rotary module, put into it, so that its tables are among the model's."""
    made = copy.deepcopy(module, {id(getattr(module, "config", None)): getattr(module, "config", None)})
    for name in [name for name in made._modules if name.startswith(COPY)]:
        del made._modules[name]
    n = sum(name.startswith(COPY) for name in module._modules)
    module.add_module(f"{COPY}{n}", made)
    return made


def listen(there: Sequence[Place], copies: Mapping[Place, Sequence[nn.Module]]) -> list[RemovableHandle]:
    """Let each rotary module keep what it computes, and its copies compute the same with their own tables."""

    def compute(module: nn.Module, args: tuple[Any, ...], options: dict[str, Any], output: Any) -> None:
        kind = options.get("layer_type", args[2] if len(args) > 2 else None)
        name = TABLE if kind is None else f"{kind}_{TABLE}"
        others = [made(*args, **options) for made in copies.get(Place(module, name), [])]
        module.__dict__.setdefault(COMPUTED, {})[name] = [output, *others]

    modules = {id(place.module): place.module for place in there}
    return [module.register_forward_hook(compute, with_kwargs=True) for module in modules.values()]


def end(there: Sequence[Place], hooks: Sequence[RemovableHandle]) -> None:
    """Take hooks, copies and what they computed out of the model."""
    for hook in hooks:
        hook.remove()
    for place in there:
        place.module.__dict__.pop(COMPUTED, None)
        for name in [name for name in place.module._modules if name.startswith(COPY)]:
            del place.module._modules[name]


class HandOver:
    """Hands a layer what a copy computed, in the place of what the model gives to all layers."""

    def __init__(self, place: Place, number: int) -> None:
        self.place, self.number = place, number

    def __call__(
        self, layer: nn.Module, args: tuple[Any, ...], options: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        computed = self.place.module.__dict__.get(COMPUTED, {}).get(self.place.name, [None])
        if not any(value is computed[0] for value in (*args, *options.values()) if value is not None):
            raise UserError(
                f"{type(layer).__name__} is not handed its cosines from outside; an encoding that differs by layer "
                "cannot be put into it"
            )

        def own(value: Any) -> Any:
            return computed[self.number] if value is computed[0] and value is not None else value

        return tuple(map(own, args)), {name: own(value) for name, value in options.items()}
