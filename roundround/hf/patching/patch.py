"""Another normaliser or encoding inside a loaded model.

A decoder of this project takes any encoding. A Hugging Face model with RoPE can rotate at other frequencies itself. For
any other encoding it stops rotating, and the encoding acts inside the attention of each layer.

Shapes: P channel pairs.

Tested by tests/hf/test_hf_patch.py and tests/test_api.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType
from typing import cast, final

import torch
from torch import nn
from transformers import PreTrainedModel

from roundround.hf.load import ProbedHuggingFaceModel
from roundround.hf.patching.attention import (
    PATCHED,
    MakeSoftmax,
    attention_layers,
    install,
    installed,
    normalisers_of,
    shape_of,
)
from roundround.hf.patching.frequencies import RotaryTable, Rotation, rotate_layers, tables_of_layers
from roundround.kernels.keys import AttentionShape
from roundround.model.block import AttentionLayer
from roundround.model.decoder import Decoder, encodings_of
from roundround.model.trial import check_encodings, tried
from roundround.pe.base import PositionalEncoding
from roundround.pe.nope import NoPE
from roundround.pe.rotary import RotaryEncoding
from roundround.pe.xpos import XPos
from roundround.probing.layout import N_TOKENS, PAIRINGS, is_said_by_frequencies
from roundround.probing.probe import check
from roundround.softmax.base import AttentionSoftmax
from roundround.support.errors import UserError

MakeEncoding = Callable[[AttentionShape], PositionalEncoding]


@final
class Patch:
    """Puts other parts into a model, from the construction of the patch until `remove` or the end of a `with` block.

    model: the model, which is changed in place. If it is saved while patched, the file contains the normalisers.
    remark: a line for the user about the encoding; None if there is nothing to say.
    Raises UserError if the new parts do not fit the model, or if a new normaliser would drop a soft cap or sinks.
    """

    def __init__(
        self,
        model: PreTrainedModel | Decoder,
        make_softmax: MakeSoftmax | None = None,
        make_encoding: MakeEncoding | None = None,
    ) -> None:
        self.model, self.remark = model, None
        if isinstance(model, Decoder):
            self.undo = replace_parts(model, make_softmax, make_encoding)
            return
        encodings: list[PositionalEncoding] | None = None
        with ExitStack() as undo:
            if make_encoding is not None:
                of_layers = tables_of_layers(model)
                new, encodings = encodings_of_layers(model, make_encoding, of_layers)
                self.remark = remark_on(of_layers, new)
                undo.callback(rotate_layers(model, of_layers, new))
            undo.callback(install(model, make_softmax, encodings))
            own = normalisers_of(model)[0]
            if own.orders_keys and (
                make_encoding is None
                or any(rotation.frequencies_P.any() for rotation in new)
                or not all(isinstance(encoding, NoPE) for encoding in encodings or ())
            ):
                raise UserError(f"{type(own).__name__} takes positions from the order of the keys; give pe=nope")
            if make_encoding is not None:
                of_table = dict(zip(of_layers, new, strict=True))
                alike = all(rotation.same_as(of_table[table]) for table, rotation in zip(of_layers, new, strict=True))
                rotating = [bool(rotation.frequencies_P.any()) for rotation in new]
                if not alike or len(set(rotating)) > 1:  # the rotation differs by layer: test what each layer does
                    probed = ProbedHuggingFaceModel(type(model).__name__, model, None)
                    layouts = check(probed, some_tokens(model))
                    wrong = [
                        str(softmax.shape.layer)
                        for softmax, layout, turns in zip(probed.normalisers, layouts, rotating, strict=True)
                        if bool(layout.n_rotated) != turns
                    ]
                    if wrong:  # some models leave layers without any rotation
                        raise UserError(
                            f"{probed.name} does not let layer {', '.join(wrong)} rotate as the encoding requires "
                            "(the encoding differs from layer to layer)"
                        )
            self.undo = undo.pop_all()

    def remove(self) -> None:
        """Give the model its own attention and frequencies back."""
        self.undo.close()

    def __enter__(self) -> PreTrainedModel | Decoder:
        return self.model

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()


def some_tokens(model: PreTrainedModel) -> range:
    return range(min(N_TOKENS, model.get_input_embeddings().num_embeddings))


def replace_parts(decoder: Decoder, make_softmax: MakeSoftmax | None, make_encoding: MakeEncoding | None) -> ExitStack:
    """Give every layer of a decoder of this project another normaliser or encoding; the returned stack undoes it.

    The other parts of a layer, such as its window, do not change. Raises UserError if the decoder is patched already,
    or if the encoding does not fit the layers or their normalisers.
    """
    if decoder.is_patched:
        raise UserError(PATCHED)
    device = decoder.embed_tokens.weight.device
    with ExitStack() as undo:
        undo.callback(setattr, decoder, "is_patched", False)
        decoder.is_patched = True
        attentions = cast("list[AttentionLayer]", [layer.self_attn for layer in decoder.layers])
        if not decoder.normalisers:
            raise UserError("no layer of this model has attention, so there is nothing to patch")
        if make_encoding is not None:
            own = [decoder.all_encodings[number] for number in decoder.encoding_of_layer]
            shapes = [
                replace(attention.encoding_shape, theta=before.theta)
                if isinstance(before, RotaryEncoding | XPos)
                else attention.encoding_shape
                for attention, before in zip(attentions, own, strict=True)
            ]
            encoded = [layer for layer, attention in enumerate(attentions) if "pe" in attention.reads]
            kinds = list(decoder.kinds)
            for layer in encoded:
                kinds[layer] = replace(kinds[layer], make_encoding=make_encoding)
            try:
                encodings, of_layer, leaders = encodings_of(kinds, shapes)
            except ValueError as error:
                raise UserError(str(error)) from error
            new = [encodings[of_layer[layer]] for layer in encoded]
            check_alike(make_encoding, [shapes[layer] for layer in encoded], new)
            made = nn.ModuleList(encodings).to(device).train(decoder.training)
            for name, value in (("encodings", made), ("encoding_of_layer", of_layer), ("leaders", leaders)):
                undo.callback(setattr, decoder, name, getattr(decoder, name))
                setattr(decoder, name, value)
        if make_softmax is not None:
            for attention in (one for one in attentions if "softmax" in one.reads):
                own_softmax = cast("AttentionSoftmax", attention.softmax)
                softmax = make_softmax(own_softmax.shape).to(device).train(decoder.training)
                undo.callback(setattr, attention, "softmax", own_softmax)
                attention.softmax = softmax
        try:
            for attention, number in zip(attentions, decoder.encoding_of_layer, strict=True):
                attention.check(decoder.all_encodings[number])
            check_encodings(decoder)
        except ValueError as error:
            raise UserError(str(error)) from error
        return undo.pop_all()


def check_alike(
    make_encoding: MakeEncoding, shapes: Sequence[AttentionShape], of_layers: Sequence[PositionalEncoding]
) -> None:
    """Raises UserError if `make_encoding` gives different encodings to layers that must share one."""
    for shape, shared in zip(shapes, of_layers, strict=True):
        if shared.shape == shape:
            continue
        own = make_encoding(shape)
        alike = type(own) is type(shared)
        if alike and isinstance(own, RotaryEncoding) and isinstance(shared, RotaryEncoding):
            alike = torch.equal(own.frequencies(torch.float64), shared.frequencies(torch.float64))
        if not alike:
            raise UserError(
                f"pe= would give layers of one kind different encodings ({type(own).__name__} in layer {shape.layer}, "
                f"{type(shared).__name__} in layer {shared.shape.layer}), but these layers share one; set the encoding "
                "of each kind with pattern="
            )


def encodings_of_layers(
    model: PreTrainedModel, make_encoding: MakeEncoding, of_layers: Sequence[RotaryTable | None]
) -> tuple[list[Rotation], list[PositionalEncoding]]:
    """The new rotation of each attention layer by the model itself, and what the layer does beside it.

    of_layers: the model's own rotation of each layer. If frequencies and one factor describe all that an encoding does,
    the model rotates by them; the factor replaces the factor of the model's own rotation (YaRN). Otherwise the model
    stops rotating, and the layer has an instance of the encoding, with parameters of its own.
    Raises UserError if an encoding groups the channels into other pairs than the model, changes embeddings or draws
    random positions, or if it breaks a rule of `Bias.applied`.
    """
    used = [table for table in of_layers if table is not None]
    if not used:
        raise UserError(f"{type(model).__name__} has no RoPE whose frequencies could be replaced")
    rotations, others = list[Rotation](), list[PositionalEncoding]()
    for layer, own in zip(attention_layers(model), of_layers, strict=True):
        table = own or used[0]  # a layer without rotation takes the sizes of another layer's table
        own_P, shape, none = table.frequencies_P, replace(shape_of(layer), theta=table.theta), PositionalEncoding
        encoding = make_encoding(replace(shape, head_dim=2 * len(own_P)))
        kind, wrong = type(encoding), None
        does_more = kind.rotate_values is not none.rotate_values or kind.bias is not none.bias
        does_more |= next(encoding.parameters(), None) is not None
        if encoding.draws_positions or kind.embed is not none.embed:
            wrong = "draws positions or changes embeddings"
        elif isinstance(encoding, RotaryEncoding) and not does_more and is_said_by_frequencies(encoding):
            frequencies = encoding.frequencies(torch.float32)
            rotations.append(Rotation(frequencies, encoding.attention_factor))
            others.append(none(shape))
            wrong = "groups the channels into other pairs" if len(frequencies) != len(own_P) else None
        else:
            others.append(make_encoding(shape))
            rotations.append(Rotation(torch.zeros_like(own_P)))
            _, wrong = tried(others[-1])
        if wrong:
            raise UserError(f"{kind.__name__} cannot be put into {type(model).__name__}: it {wrong}")
    if any(type(one).rotate_queries is not PositionalEncoding.rotate_queries for one in others):
        with installed(model):
            probed = ProbedHuggingFaceModel(type(model).__name__, model, None)
            layouts = check(probed, some_tokens(model))
        rotating = [layout for layout in layouts if layout.n_rotated]
        if any((layout.pairing, layout.n_rotary) != (PAIRINGS[0], 2 * layout.n_pairs) for layout in rotating):
            raise UserError(
                f"{type(others[0]).__name__} cannot be put into {probed.name}: it pairs channels m and m + C/2 of the "
                "whole head, and the model pairs others; RoPE at any frequencies and encodings without rotation can"
            )
    return rotations, others


def remark_on(of_layers: Sequence[RotaryTable | None], new: Sequence[Rotation]) -> str | None:
    """A line for the user if the frequencies of rotating pairs, or the factor, differ from training; else None."""
    for table, after in zip(of_layers, new, strict=True):
        if table is None:
            continue
        before, rotating = table.rotation(), after.frequencies_P > 0
        trained_P = before.frequencies_P.to(after.frequencies_P)
        alike = torch.allclose(after.frequencies_P[rotating], trained_P[rotating], rtol=1e-4)
        if not alike or before.factor != after.factor:
            return (
                "the encoding's frequencies or its attention factor differ from those that the model was trained with: "
                f"the model's base is {table.theta:,.0f} and its attention factor {before.factor:g}; pe.theta=... sets "
                "the encoding's base"
            )
    return None
