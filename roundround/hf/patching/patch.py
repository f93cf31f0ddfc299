"""Another normaliser, or RoPE of another kind, inside a loaded Hugging Face model.

Shapes: P channel pairs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import final

import torch
from transformers import PreTrainedModel

from roundround.attention.keys import AttentionShape
from roundround.errors import UserError
from roundround.hf.patching.attention import MakeSoftmax, attention_layers, install, remove, shape_of
from roundround.hf.patching.frequencies import Rotation, places, replace_rotations
from roundround.pe.base import PositionalEncoding
from roundround.pe.nope import NoPE
from roundround.pe.rotary import RotaryEncoding
from roundround.probing.rotation import is_said_by_frequencies

MakeEncoding = Callable[[AttentionShape], PositionalEncoding]


@final
class Patch:
    """A patched model: in force from its making until `remove`, or until the end of a `with` block.

    model: the Hugging Face model, which is changed in place; saved now, it would take the normalisers along.
    remark: what the user should know, None for nothing.
    Raises UserError where the model does something that would be dropped.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        make_softmax: MakeSoftmax | None = None,
        make_encoding: MakeEncoding | None = None,
    ) -> None:
        self.model, self.remark = model, None
        new = None if make_encoding is None else rotations_of(model, make_encoding)
        self.own_rotations = None if new is None else replace_rotations(model, new)
        if self.own_rotations is not None and new is not None:
            self.remark = remark_on(self.own_rotations, new)
        try:
            self.attention_before = install(model, make_softmax)
        except BaseException:
            self.give_rotations_back()
            raise

    def remove(self) -> None:
        """Give the model its own attention and frequencies back."""
        remove(self.model, self.attention_before)
        self.give_rotations_back()

    def give_rotations_back(self) -> None:
        if self.own_rotations is not None:
            replace_rotations(self.model, self.own_rotations)
            self.own_rotations = None

    def __enter__(self) -> PreTrainedModel:
        return self.model

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()


def rotations_of(model: PreTrainedModel, make_encoding: MakeEncoding) -> list[Rotation]:
    """The encoding's rotation in the place of each of the model's. UserError where it does not fit.

    A Hugging Face model rotates the pairs that its layout says, so an encoding can only say how fast: RoPE, p-RoPE in
    its forms, and NoPE. One that pairs other channels, that scales what it rotates, or that adds something to
    embeddings or logits, does not fit. What the model's own rotation scales by (YaRN) goes with its frequencies.
    """
    there = places(model)
    layer = attention_layers(model)[0]
    if not there:
        raise UserError(f"{type(model).__name__} has no RoPE whose frequencies could be replaced")
    tables = [place.table_P for place in there]
    found = []
    for table in tables:
        encoding = make_encoding(replace(shape_of(layer, 0), head_dim=2 * len(table)))
        name = type(encoding).__name__
        if isinstance(encoding, NoPE):
            found.append(Rotation(torch.zeros_like(table)))
            continue
        if encoding.draws_positions:
            raise UserError(
                f"{name} draws positions, which a loaded model does not take; pe.positions=consecutive is RoPE"
            )
        if not isinstance(encoding, RotaryEncoding) or not is_said_by_frequencies(encoding):
            raise UserError(
                f"{name} is no RoPE that its frequencies determine; "
                "a loaded model takes RoPE, p-RoPE in its forms and NoPE"
            )
        if len(tables) > 1 and not all(torch.equal(table, other) for other in tables):
            raise UserError(
                f"{type(model).__name__} rotates its layers at {len(tables)} different bases, and {name} knows one; "
                "`roundround probe ablate=...` cuts each of them"
            )
        frequencies = encoding.frequencies(torch.float32)
        if len(frequencies) != len(table):
            raise UserError(f"{name} pairs other channels than the model was trained with; it cannot be put into it")
        found.append(Rotation(frequencies))
    return found


def remark_on(own: list[Rotation], new: list[Rotation]) -> str | None:
    """A line where pairs rotate otherwise than the model was trained with; None where none does."""
    for before, after in zip(own, new, strict=True):
        rotating = after.frequencies_P > 0
        trained_P = before.frequencies_P.to(after.frequencies_P)
        if not torch.allclose(after.frequencies_P[rotating], trained_P[rotating], rtol=1e-4):
            return "the encoding rotates at other frequencies than the model was trained with; pe.theta=... is its base"
        if before.factor != after.factor:
            return (
                f"the model was trained with an attention factor of {before.factor:g} in its rotation, which goes with "
                "its frequencies: the encoding has none"
            )
    return None
