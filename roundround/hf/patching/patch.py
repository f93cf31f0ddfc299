"""Another normaliser, or RoPE of another kind, inside a loaded Hugging Face model.

Shapes: P channel pairs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import final

import torch
from torch import Tensor
from transformers import PreTrainedModel

from roundround.attention.keys import AttentionShape
from roundround.errors import UserError
from roundround.hf.patching.attention import MakeSoftmax, attention_layers, install, remove, shape_of
from roundround.hf.patching.frequencies import frequency_tables, replace_frequencies
from roundround.pe.base import PositionalEncoding
from roundround.pe.nope import NoPE
from roundround.pe.rotary import RotaryEncoding

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
        new = None if make_encoding is None else replaced_tables(model, make_encoding)
        self.own_tables = None if new is None else replace_frequencies(model, new)
        if self.own_tables is not None and new is not None:
            self.remark = remark_on(self.own_tables, new)
        try:
            self.attention_before = install(model, make_softmax)
        except BaseException:
            self.give_frequencies_back()
            raise

    def remove(self) -> None:
        """Give the model its own attention and frequencies back."""
        remove(self.model, self.attention_before)
        self.give_frequencies_back()

    def give_frequencies_back(self) -> None:
        if self.own_tables is not None:
            replace_frequencies(self.model, self.own_tables)
            self.own_tables = None

    def __enter__(self) -> PreTrainedModel:
        return self.model

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()


def replaced_tables(model: PreTrainedModel, make_encoding: MakeEncoding) -> list[Tensor]:
    """The encoding's frequencies in the place of each of the model's tables. UserError where they do not fit.

    A Hugging Face model rotates the pairs that its layout says, so an encoding can only say how fast: RoPE, p-RoPE in
    its forms, and NoPE. One that pairs other channels, or adds something to embeddings or logits, does not fit.
    """
    tables = frequency_tables(model)
    layer = attention_layers(model)[0]
    if not tables:
        raise UserError(f"{type(model).__name__} has no RoPE whose frequencies could be replaced")
    found = []
    for table in tables:
        encoding = make_encoding(replace(shape_of(layer, 0), head_dim=2 * len(table)))
        name = type(encoding).__name__
        if isinstance(encoding, NoPE):
            found.append(torch.zeros_like(table))
            continue
        if not isinstance(encoding, RotaryEncoding):
            raise UserError(f"{name} is no RoPE; only the frequencies of a loaded model can be replaced")
        if len(tables) > 1 and not all(torch.equal(table, other) for other in tables):
            raise UserError(
                f"{type(model).__name__} rotates its layers at {len(tables)} different bases, and {name} knows one; "
                "`roundround probe ablate=...` cuts each of them"
            )
        frequencies = encoding.frequencies(torch.float32)
        if len(frequencies) != len(table):
            raise UserError(f"{name} pairs other channels than the model was trained with; it cannot be put into it")
        found.append(frequencies)
    return found


def remark_on(own: list[Tensor], new: list[Tensor]) -> str | None:
    """A line where pairs rotate at frequencies that the model was not trained with; None where none does."""
    for before, after in zip(own, new, strict=True):
        rotating = after > 0
        if not torch.allclose(after[rotating], before[rotating].to(after), rtol=1e-4):
            return "the encoding rotates at other frequencies than the model was trained with; pe.theta=... is its base"
    return None
