"""How a Hugging Face model rotates: the frequencies and factors of its rotary modules, found there and replaced there.

Shapes: T tokens, P channel pairs, R rotated channels, N positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from roundround.loading.patching.attention import text_decoder
from roundround.support.errors import UserError

CHANGING = {"dynamic", "longrope"}  # kinds of RoPE whose frequencies follow the length
TABLE, FACTOR = "inv_freq", "attention_scaling"  # how names end; in front the kind of layer, where it has its own
FARTHEST = 2**20  # position at which a change of frequencies must show


@dataclass(frozen=True, eq=False)
class Rotation:
    """One rotation of a model: radians per token of each pair, and what cosines and sines are multiplied by.

    The factor is YaRN's attention factor (Peng et al. 2023, arXiv:2309.00071, section 3.4) or LongRoPE's; else 1.
    """

    frequencies_P: Tensor
    factor: float = 1.0

    def same_as(self, other: Rotation) -> bool:
        return self.factor == other.factor and torch.equal(self.frequencies_P, other.frequencies_P)


@dataclass(frozen=True)
class Place:
    """Where a rotation stands: a module, and the name of its buffer of frequencies."""

    module: nn.Module
    name: str

    @property
    def table_P(self) -> Tensor:
        return self.module.get_buffer(self.name)

    @property
    def factor_name(self) -> str:
        return self.name.removesuffix(TABLE) + FACTOR

    @property
    def theta(self) -> float:
        """The base of the frequencies: the config's, which every architecture keeps alike, else read off the table."""
        rope = getattr(getattr(self.module, "config", None), "rope_parameters", None) or {}
        base = rope.get(self.name.removesuffix("_" + TABLE), rope).get("rope_theta")
        if base is not None:
            return float(base)
        fastest, next_P = self.table_P[0].double(), self.table_P[1:2].double()
        return float(f"{float((fastest / next_P[0]) ** len(self.table_P)):.4g}") if next_P.any() else 10_000.0

    def rotation(self) -> Rotation:
        return Rotation(self.table_P.clone(), float(vars(self.module).get(self.factor_name, 1.0)))

    def put(self, rotation: Rotation) -> None:
        with torch.no_grad():
            self.table_P.copy_(rotation.frequencies_P)
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


def places(model: PreTrainedModel) -> list[Place]:
    """Every rotation of the decoder, in the order of its modules."""
    return [
        Place(module, name)
        for module in text_decoder(model).modules()
        for name, _ in module.named_buffers(recurse=False)
        if name.endswith(TABLE) and not name.endswith(f"original_{TABLE}")
    ]


def frequency_tables(model: PreTrainedModel) -> list[Tensor]:
    """The buffers from which the decoder's rotary modules compute their angles, radians per token; not copies."""
    return [place.table_P for place in places(model)]


def replace_frequencies(model: PreTrainedModel, tables: Sequence[Tensor]) -> list[Rotation]:
    """Let the model rotate at other frequencies, by its own factors; see `replace_rotations`."""
    own = [place.rotation().factor for place in places(model)]
    return replace_rotations(model, [Rotation(*rotation) for rotation in zip(tables, own, strict=True)])


def replace_rotations(model: PreTrainedModel, rotations: Sequence[Rotation]) -> list[Rotation]:
    """Let the model rotate otherwise; returns its own rotations. UserError where it would not follow."""
    for module in text_decoder(model).modules():
        kinds = getattr(module, "rope_type", None)
        changing = CHANGING & set(kinds.values() if isinstance(kinds, dict) else [kinds])
        if changing:
            raise UserError(
                f"{type(model).__name__} computes its frequencies anew for every length (rope_type {changing.pop()}); "
                "they can be looked at, not replaced"
            )
    there = places(model)
    own = [place.rotation() for place in there]
    for place, new in zip(there, rotations, strict=True):
        place.put(new)
    if not all(follows(*one) for one in zip(there, own, rotations, strict=True)):
        for place, before in zip(there, own, strict=True):
            place.put(before)
        raise UserError(
            f"{type(model).__name__} does not rotate at the frequencies and factor that it is given; "
            "they can be looked at, not replaced"
        )
    return own


def follows(place: Place, before: Rotation, rotation: Rotation) -> bool:
    """Whether the module gives its layers this rotation: some compute their frequencies anew, whatever they hold."""
    pos_N = telling_positions(before.frequencies_P, place.table_P)
    try:
        turns = place.turns(pos_N)
    except (TypeError, ValueError, IndexError, KeyError, AttributeError, RuntimeError):
        return False  # of a form that is not known
    angle_NP = pos_N[:, None].float() * place.table_P.float()  # as it is stored: half precision rounds it
    expected = rotation.factor * angle_NP.cos(), rotation.factor * angle_NP.sin()
    return all(same_channels(given, value) for given, value in zip(turns, expected, strict=True))


def telling_positions(before_P: Tensor, after_P: Tensor) -> Tensor:
    """A few positions, and for each pair that changes the one where it is a radian away from where it was, [N]."""
    apart_P = (before_P.double() - after_P.double()).abs()
    radian_away = (1 / apart_P[apart_P > 1 / FARTHEST]).round().long()
    always = torch.tensor([0, 1, 31, 1000], device=radian_away.device)
    return torch.cat([always, radian_away])


def same_channels(given_NR: Tensor, expected_NP: Tensor) -> bool:
    """Whether each pair's value is there, once or twice, in any order of the channels."""
    if given_NR.shape[1] % expected_NP.shape[1]:
        return False
    expected_NR = expected_NP.repeat(1, given_NR.shape[1] // expected_NP.shape[1])
    return torch.allclose(given_NR.float().sort().values, expected_NR.sort().values, atol=1e-3, rtol=0)
