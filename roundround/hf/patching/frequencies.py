"""The frequencies and factors of a Hugging Face model's rotary modules: how they are found and replaced.

A model computes cosines and sines once for each of its rotations and hands them to its layers.

Shapes: T tokens, P channel pairs, R rotated channels, N positions.

Tested by tests/hf/test_hf_patch.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from roundround.hf.patching.attention import ENCODING, attention_layers, follows_length_in, shape_of, text_decoder
from roundround.kernels.keys import Keys
from roundround.pe.base import PositionalEncoding
from roundround.pe.rotary import RotaryEncoding
from roundround.probing.layout import Layout
from roundround.probing.probed_model import PassesOn
from roundround.support.errors import UserError

TABLE, FACTOR = "inv_freq", "attention_scaling"  # ends of names; the prefix, if any, is the kind of layer
FARTHEST = 2**20  # a frequency counts as changed if its angle differs by a radian at this position


@dataclass(frozen=True, eq=False)
class Rotation:
    """One rotation of a model: the frequency of each pair in radians per token, and a factor of cosines and sines.

    The factor is YaRN's attention factor (Peng et al. 2023, arXiv:2309.00071, section 3.4) or LongRoPE's; else 1.
    """

    frequencies_P: Tensor
    factor: float = 1.0

    def same_as(self, other: Rotation) -> bool:
        return self.factor == other.factor and torch.equal(self.frequencies_P, other.frequencies_P)


@dataclass(frozen=True)
class RotaryTable:
    """A rotation in the model: a module, and the name of its buffer of frequencies."""

    module: nn.Module
    name: str

    @property
    def frequencies_P(self) -> Tensor:
        return self.module.get_buffer(self.name)

    @property
    def within_context_P(self) -> Tensor:
        """Frequencies within the trained context, even if the model has changed its table for a longer text."""
        of_kind = self.name.removesuffix(TABLE)
        changes = follows_length_in(self.module) is not None
        original = getattr(self.module, f"{of_kind}original_{TABLE}", None) if changes else None
        return self.frequencies_P if original is None else original

    @property
    def parameters(self) -> dict[str, Any]:
        """The config's `rope_parameters` of this rotation; empty if the module has no config."""
        rope = getattr(getattr(self.module, "config", None), "rope_parameters", None) or {}
        own: dict[str, Any] = rope.get(self.name.removesuffix("_" + TABLE), rope)
        return own

    @property
    def turning_length(self) -> int | None:
        """The number of tokens beyond which LongRoPE uses its long factors; None for other kinds of RoPE."""
        rope = self.parameters
        return int(rope["original_max_position_embeddings"]) if rope.get("rope_type") == "longrope" else None

    @property
    def factor_name(self) -> str:
        return self.name.removesuffix(TABLE) + FACTOR

    @property
    def theta(self) -> float:
        """The base of the frequencies: `rope_theta` of the config, else computed from the table."""
        base = self.parameters.get("rope_theta")
        if base is not None:
            return float(base)
        fastest, next_P = self.frequencies_P[0].double(), self.frequencies_P[1:2].double()
        return float(f"{float((fastest / next_P[0]) ** len(self.frequencies_P)):.4g}") if next_P.any() else 10_000.0

    def rotation(self) -> Rotation:
        return Rotation(self.frequencies_P.clone(), float(vars(self.module).get(self.factor_name, 1.0)))

    def put(self, rotation: Rotation) -> None:
        with torch.no_grad():
            self.frequencies_P.copy_(rotation.frequencies_P)
        if self.factor_name in vars(self.module):
            setattr(self.module, self.factor_name, rotation.factor)

    def turns(self, pos_N: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines [N, R] of some positions, as the module gives them to its layers, in float32."""
        options: dict[str, Any] = {"position_ids": pos_N[None]}
        if self.name != TABLE:
            options["layer_type"] = self.name.removesuffix("_" + TABLE)
        given = self.module(torch.zeros(1, len(pos_N), 1, device=pos_N.device), **options)
        cos, sin = (given.real, given.imag) if isinstance(given, Tensor) else given
        return cos.reshape(-1, *cos.shape[-2:])[0], sin.reshape(-1, *sin.shape[-2:])[0]


def rotary_tables(model: PreTrainedModel) -> list[RotaryTable]:
    """Every rotation of the decoder, in the order of its modules."""
    return [
        RotaryTable(module, name)
        for module in text_decoder(model).modules()
        for name, _ in module.named_buffers(recurse=False)
        if name.endswith(TABLE) and not name.endswith(f"original_{TABLE}")
    ]


def follows_length(model: PreTrainedModel) -> str | None:
    """The kind of RoPE for which the model recomputes its frequencies at every length; None if it does not."""
    return next(filter(None, map(follows_length_in, text_decoder(model).modules())), None)


# -- rotations that act inside the layers, in place of those


@final
class OfPairs(PassesOn):
    """An encoding `own` that rotates the pairs of a layer's layout, in place of channels m and m + C/2 of the head.

    Queries and keys leave it with the first channels of all pairs in front, then the second ones, then the same of the
    pairs that do not rotate. Their products do not depend on the order.
    """

    def __init__(self, own: PositionalEncoding, layout: Layout) -> None:
        super().__init__(own.shape)
        n_pairs, self.own = layout.n_rotary // 2, own
        self.n_rotary, pairs_P2 = layout.n_rotary, layout.split(torch.arange(2 * layout.n_pairs))
        self.order_C = torch.cat([pairs_P2[:n_pairs].mT.flatten(), pairs_P2[n_pairs:].mT.flatten()])

    def rotated(self, x: Tensor, rotate: Callable[[Tensor, Any], Tensor], prepared: Any) -> Tensor:
        covered, others = x[..., self.order_C.to(x.device)].tensor_split((self.n_rotary,), -1)
        return torch.cat([rotate(covered, prepared), others], -1)

    @property
    def reads_input(self) -> bool:
        return self.own.reads_input

    def prepare(self, pos_BT: Tensor, dtype: torch.dtype) -> Any:
        return self.own.prepare(pos_BT, dtype)

    def prepare_part(self, pos_BT: Tensor, dtype: torch.dtype, length: int | None) -> Any:
        return self.own.prepare_part(pos_BT, dtype, length)

    def prepare_layer(self, x_BTD: Tensor, prepared: Any, keys: Keys) -> Any:
        return self.own.prepare_layer(x_BTD, prepared, keys)

    def rotate_queries(self, q_BHTC: Tensor, prepared: Any) -> Tensor:
        return self.rotated(q_BHTC, self.own.rotate_queries, prepared)

    def rotate_keys(self, k_BGTC: Tensor, prepared: Any) -> Tensor:
        return self.rotated(k_BGTC, self.own.rotate_keys, prepared)


def placed_rotations(model: PreTrainedModel) -> list[tuple[nn.Module, str]]:
    """Where the rotary encodings lie that a patch has put into layers: a module and the name of its submodule."""
    slots = [(layer, getattr(layer, ENCODING, None)) for layer in attention_layers(model)]
    places = [(slot, "own") if isinstance(slot, OfPairs) else (layer, ENCODING) for layer, slot in slots]
    return [(module, name) for module, name in places if isinstance(getattr(module, name, None), RotaryEncoding)]


# -- how they are replaced


def replace_rotations(model: PreTrainedModel, rotations: Sequence[Rotation]) -> list[Rotation]:
    """Replace the model's rotations; returns the old ones. Raises UserError if the model does not use the new ones."""
    if kind := follows_length(model):
        raise UserError(
            f"{type(model).__name__} computes its frequencies anew for every length (rope_type {kind}); "
            "they can be probed, but not replaced"
        )
    there = rotary_tables(model)
    own = [table.rotation() for table in there]
    for table, new in zip(there, rotations, strict=True):
        table.put(new)
    if not all(follows(*one) for one in zip(there, own, rotations, strict=True)):
        for table, before in zip(there, own, strict=True):
            table.put(before)
        raise UserError(
            f"{type(model).__name__} does not rotate at the frequencies and factor that it is given; "
            "its own frequencies can be probed, but not replaced"
        )
    return own


def follows(table: RotaryTable, before: Rotation, rotation: Rotation) -> bool:
    """Whether the module gives its layers this new rotation: some modules ignore the table and recompute frequencies.

    before: the rotation that the table had before.
    """
    apart_P = (before.frequencies_P.double() - table.frequencies_P.double()).abs()
    radian_away = (1 / apart_P[apart_P > 1 / FARTHEST]).round().long()  # position where a changed pair is 1 radian off
    pos_N = torch.cat([torch.tensor([0, 1, 31, 1000], device=radian_away.device), radian_away])
    try:
        turns = table.turns(pos_N)
    except (TypeError, ValueError, IndexError, KeyError, AttributeError, RuntimeError):
        return False  # the form of the module is unknown
    angle_NP = pos_N[:, None].float() * table.frequencies_P.float()  # the stored values: half precision rounds them
    for given_NR, turned_NP in zip(turns, (angle_NP.cos(), angle_NP.sin()), strict=True):
        times, left = divmod(given_NR.shape[1], turned_NP.shape[1])
        if left:
            return False
        expected_NR = (rotation.factor * turned_NP).repeat(1, times)  # one or two channels a pair, in any order
        if not torch.allclose(given_NR.float().sort().values, expected_NR.sort().values, atol=1e-3, rtol=0):
            return False
    return True


def tables_of_layers(model: PreTrainedModel) -> list[RotaryTable | None]:
    """The rotation that each attention layer gets, found by a pass over two tokens; None for a layer that gets none.

    A layer whose cosines are not found has the rotation of another layer of its kind (`layer_types` of the config).

    If the model has one rotation, it is taken to be that of every layer.
    """
    layers, there = attention_layers(model), rotary_tables(model)
    if len(there) < 2:
        return [there[0] if there else None] * len(layers)
    computed: dict[RotaryTable, Any] = {}
    found: dict[int, RotaryTable] = {}

    def keep(module: nn.Module, args: tuple[Any, ...], options: dict[str, Any], output: Any) -> None:
        kind = options.get("layer_type", args[2] if len(args) > 2 else None)
        computed[RotaryTable(module, TABLE if kind is None else f"{kind}_{TABLE}")] = output

    def find_table(layer: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        own = set(layer.modules())
        for table in there:
            given = computed.get(table)
            if table.module in own or (given is not None and any(v is given for v in (*args, *options.values()))):
                found[id(layer)] = table

    weight = model.get_input_embeddings().weight
    device = "cpu" if weight.device.type == "meta" else weight.device  # offloaded weights run on the CPU
    with ExitStack() as hooks:
        for module in {table.module for table in there}:
            hooks.callback(module.register_forward_hook(keep, with_kwargs=True).remove)
        for layer in layers:
            hooks.callback(layer.register_forward_pre_hook(find_table, with_kwargs=True).remove)
        with torch.no_grad():
            text_decoder(model)(input_ids=torch.zeros(1, 2, dtype=torch.long, device=device), use_cache=False)
    types = dict(enumerate(getattr(model.config.get_text_config(), "layer_types", None) or ()))
    kinds = [types.get(shape_of(layer).layer) for layer in layers]
    # layers that share keys (Gemma 4) get a copy of the cosines of their kind
    of_kind = {kind: found[id(layer)] for layer, kind in zip(layers, kinds, strict=True) if kind and id(layer) in found}
    return [found.get(id(layer), of_kind.get(kind)) for layer, kind in zip(layers, kinds, strict=True)]
