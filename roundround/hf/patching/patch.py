"""Another normaliser or encoding inside a loaded model.

A decoder of this project takes any encoding. A Hugging Face model with RoPE can rotate at other frequencies itself. For
any other encoding it stops rotating, and the encoding acts inside the attention of each layer.

Shapes: P channel pairs.

Tested by tests/hf/test_hf_patch.py and tests/test_api.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
from roundround.hf.patching.frequencies import (
    OfPairs,
    RotaryTable,
    Rotation,
    replace_rotations,
    rotary_tables,
    tables_of_layers,
)
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
from roundround.probing.probed_model import in_evaluation_mode
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
        with ExitStack() as undo:
            given = list[PositionalEncoding]()
            encodings: list[PositionalEncoding] | None = None
            if make_encoding is not None:
                of_layers = tables_of_layers(model)
                given = given_encodings(model, make_encoding, of_layers)
                new = dict[RotaryTable | None, Rotation]()
                for table, encoding in zip(of_layers, given, strict=True):
                    rotation = rotation_of(encoding)
                    if rotation is None or not rotation.same_as(new.setdefault(table, rotation)):
                        encodings = placed(model, make_encoding, given)
                        break
                if encodings is None:
                    self.remark = remark_on(new)
                else:
                    new = {table: Rotation(torch.zeros_like(table.frequencies_P)) for table in of_layers if table}
                there = [new.get(table, table.rotation()) for table in rotary_tables(model)]
                undo.callback(replace_rotations, model, replace_rotations(model, there))
            undo.callback(install(model, make_softmax, encodings))
            own = normalisers_of(model)[0]
            if own.orders_keys and not (given and all(isinstance(encoding, NoPE) for encoding in given)):
                raise UserError(f"{type(own).__name__} takes positions from the order of the keys; give pe=nope")
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


def given_encodings(
    model: PreTrainedModel, make_encoding: MakeEncoding, of_layers: Sequence[RotaryTable | None]
) -> list[PositionalEncoding]:
    """The new encoding of each attention layer, for the channels that the model rotates.

    of_layers: the model's own rotation of each layer. Raises UserError if an encoding groups the channels into other
    pairs than the model, changes embeddings or draws random positions, or if it breaks a rule of `Bias.applied`.
    """
    used = [table for table in of_layers if table is not None]
    if not used:
        raise UserError(f"{type(model).__name__} has no RoPE whose frequencies could be replaced")
    found = []
    for layer, own in zip(attention_layers(model), of_layers, strict=True):
        table = own or used[0]  # a layer without rotation takes the sizes of another layer's table
        n_channels = 2 * len(table.frequencies_P)
        encoding = make_encoding(replace(shape_of(layer), head_dim=n_channels, theta=table.theta))
        wrong, (_, wrong_bias) = None, tried(encoding)
        if encoding.draws_positions or type(encoding).embed is not PositionalEncoding.embed:
            wrong = "draws positions or changes embeddings"
        elif isinstance(encoding, RotaryEncoding) and 2 * len(encoding.frequencies(torch.float32)) != n_channels:
            wrong = "groups the channels into other pairs"
        if wrong or wrong_bias:
            name = type(encoding).__name__
            raise UserError(f"{name} cannot be put into {type(model).__name__}: it {wrong or wrong_bias}")
        found.append(encoding)
    return found


def rotation_of(encoding: PositionalEncoding) -> Rotation | None:
    """The frequencies and the factor of an encoding, if they describe all that it does and it learns nothing.

    The factor takes the place of the factor of the model's own rotation (YaRN).
    """
    none = PositionalEncoding
    if isinstance(encoding, NoPE):
        return Rotation(torch.zeros(encoding.shape.head_dim // 2))
    more = type(encoding).rotate_values is not none.rotate_values or type(encoding).bias is not none.bias
    more |= next(encoding.parameters(), None) is not None
    if not isinstance(encoding, RotaryEncoding) or more or not is_said_by_frequencies(encoding):
        return None
    return Rotation(encoding.frequencies(torch.float32), encoding.attention_factor)


def placed(
    model: PreTrainedModel, make_encoding: MakeEncoding, given: Sequence[PositionalEncoding]
) -> list[PositionalEncoding]:
    """The encoding of each layer as it acts inside the layer's attention, at the base of `given`.

    Raises UserError if the model does not rotate known pairs of channels, or if values cannot be rotated like queries.
    """
    with in_evaluation_mode(model), installed(model):
        tokens = range(min(N_TOKENS, model.get_input_embeddings().num_embeddings))
        layouts = check(ProbedHuggingFaceModel(type(model).__name__, model, None), tokens)
    found: list[PositionalEncoding] = []
    for layer, layout, encoding in zip(attention_layers(model), layouts, given, strict=True):
        shape, kind, none = shape_of(layer), type(encoding), PositionalEncoding
        rotates, whole = kind.rotate_queries is not none.rotate_queries, layout.n_rotary == shape.head_dim
        if kind.rotate_values is not none.rotate_values and not whole:
            raise UserError(f"{kind.__name__} rotates values, and {type(model).__name__} rotates a part of each head")
        n_channels = layout.n_rotary if rotates else shape.head_dim
        wanted = replace(shape, head_dim=n_channels, theta=encoding.shape.theta)
        made = make_encoding(wanted)
        for name in ("n_heads", "head_dim"):
            if vars(made.shape).get(name) != (size := getattr(wanted, name)):
                raise UserError(
                    f"{kind.__name__} is made for another {name} than {size}; use the shape that pe= is given"
                )
        found.append(made if not rotates or (whole and layout.pairing == PAIRINGS[0]) else OfPairs(made, layout))
    return found


def remark_on(new: Mapping[RotaryTable | None, Rotation]) -> str | None:
    """A line for the user if the frequencies of rotating pairs, or the factor, differ from training; else None."""
    for table, after in new.items():
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
