"""Turns the node `pattern` into the kinds of a decoder's layers, and describes each kind in a line of text."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf
from torch import nn

from roundround.config.build import checked, maker, plain, target_class
from roundround.model.block import SIZES, Attention, AttentionLayer, Block, LayerKind, order_of_layers
from roundround.model.decoder import Decoder
from roundround.model.gate import OutputGate
from roundround.model.mix import TokenMix
from roundround.model.qk_norm import QueryKeyNorm
from roundround.pe.base import PositionalEncoding
from roundround.softmax.base import AttentionSoftmax
from roundround.support.errors import UserError, nearest, one_line

FAMILIES = {
    "pe": PositionalEncoding,
    "softmax": AttentionSoftmax,
    "qk_norm": QueryKeyNorm,
    "gate": OutputGate,
    "mix": TokenMix,
    "attention": AttentionLayer,
}
PARTS = ("pattern", *FAMILIES)  # the parts of a decoder besides its sizes
KINDS_PARTS = (*FAMILIES, *SIZES)
REPLACEABLE = ("pe", "softmax", "window", "chunk", "logit_scale")  # in a kind of layer of a trained model
ALWAYS_READ = ("mix", "attention")  # parts that every layer uses
ATTRIBUTES = {"pe": "encoding"}  # the name of a part in `LayerKind`, after make_, if it differs
OF_THE_PATTERN = ("order", "last", "whole")  # every other key is a kind of layer


@dataclass
class KindConfig:
    """A kind of layer in a pattern. null stands for the run's own part (`pe`, `softmax`, ...) or the model's size."""

    pe: Any = None
    softmax: Any = None
    qk_norm: Any = None
    gate: Any = None
    mix: Any = None
    attention: Any = None
    window: int | None = None
    chunk: int | None = None
    n_key_heads: int | None = None
    head_dim: int | None = None
    theta: float | None = None
    logit_scale: float | None = None

    def check(self) -> None:
        """Does nothing: `LayerKind` checks the sizes."""


def parts_of(config: Any) -> dict[str, DictConfig | None]:
    """The nodes of a run's config for the parts that PARTS names; None for a part that the config lacks."""
    return {name: getattr(config, name, None) for name in PARTS}


def chosen_parts(choices: Mapping[str, Any]) -> str:
    """The options of a run's parts, without options that do nothing: `pattern=gemma4, softmax=sink`."""
    shown = [*PARTS, *(group for group in choices if "@pattern." in group)]
    plain = (None, "uniform", "none", "grouped")
    return ", ".join(f"{part}={choices[part]}" for part in shown if choices.get(part) not in plain)


def kinds_of(n_layers: int, *, pattern: DictConfig | None, **parts: DictConfig | None) -> list[LayerKind]:
    """The kind of each layer; a list with one kind, for all layers, if there is no pattern.

    parts: the node of each part in FAMILIES, for kinds that do not set it. Raises UserError if the pattern is wrong.
    """
    makers = {name: maker_of(name, node) for name, node in parts.items()}
    if not pattern:
        return [kind_of("layer", KindConfig(), parts, makers)]
    kinds, order, last = kinds_by_name(pattern), plain(pattern.get("order")) or [], pattern.get("last")
    try:
        names = order_of_layers(kinds, order, n_layers, last=last, whole=bool(pattern.get("whole")))
        made = {name: kind_of(name, kind, parts, makers) for name, kind in kinds.items()}
    except ValueError as error:
        raise UserError(f"pattern: {one_line(error)}") from error
    return [made[name] for name in names]


def kinds_by_name(pattern: DictConfig) -> dict[str, KindConfig]:
    """The kinds of layers of a pattern. Raises UserError if a kind is not a node or has an unknown key."""
    kinds = {}
    for name in (str(key) for key in pattern if key not in OF_THE_PATTERN):
        node = pattern[name]
        if not isinstance(node, DictConfig):
            raise UserError(f"pattern.{name} must give a kind of layer by its parts, such as pe and window")
        for part in FAMILIES:
            refuse_name(f"pattern.{name}.{part}", part, node.get(part))
        try:
            kinds[name] = checked(KindConfig, node)
        except UserError as error:
            raise UserError(f"pattern.{name}: {error}") from error
    return kinds


def refuse_name(place: str, part: str, value: Any) -> None:
    """Raises UserError if a part is the name of an option instead of a node."""
    if isinstance(value, str) and part in FAMILIES:
        raise UserError(f"{place}={value} is the name of an option; give {part}@{place}={value}")


def nodes_of(name: str, kind: KindConfig, parts: Mapping[str, DictConfig | None]) -> dict[str, DictConfig]:
    """The nodes of the parts that layers of a kind have, of the kind or else of the run, without empty nodes.

    Raises UserError if the kind sets a part or a size that its attention does not use, or lacks one that it needs.
    """
    nodes = {part: parts.get(part) if getattr(kind, part) is None else getattr(kind, part) for part in FAMILIES}
    attention = attention_class(nodes["attention"])
    for key in KINDS_PARTS:
        if getattr(kind, key) and key not in (*attention.reads, *ALWAYS_READ):
            raise UserError(f"pattern.{name}.{key}: {attention.__name__} uses no {key}; leave it out")
    for part in ("pe", "softmax"):
        if nodes[part] is None and part in attention.reads:
            raise UserError(
                f"{part} has no value; give {part}=... or, for a kind of layer, {part}@pattern.KIND.{part}=..."
            )
    return {part: node for part, node in nodes.items() if node and part in (*attention.reads, *ALWAYS_READ)}


def attention_class(node: DictConfig | None) -> type[AttentionLayer]:
    """The class of a layer's attention; grouped attention for an empty node."""
    return target_class(node, AttentionLayer) if node else Attention


def kind_of(
    name: str,
    kind: KindConfig,
    parts: Mapping[str, DictConfig | None],
    makers: Mapping[str, Callable[..., Any] | None],
) -> LayerKind:
    """A kind of layer. parts, makers: {part: the node, or the function that makes it} if the kind does not set it."""
    nodes = nodes_of(name, kind, parts)
    own = {part: makers[part] if node is parts.get(part) else maker_of(part, node) for part, node in nodes.items()}
    made = {f"make_{ATTRIBUTES.get(part, part)}": make for part, make in own.items()}
    return LayerKind(name=name, **made, **{size: getattr(kind, size) for size in SIZES})  # type: ignore[arg-type]


def maker_of(part: str, node: DictConfig | None) -> Callable[..., Any] | None:
    return maker(node, FAMILIES[part]) if node else None  # an option such as qk_norm=none is an empty node


def unread_keys(cfg: DictConfig, typed: Collection[str], chosen: str | None) -> list[str]:
    """The keys of a config that no layer reads.

    There are three cases: `pe` (or another part) is not read if every kind of layer in the pattern sets this part
    itself, or has an attention that does not use it; `pattern.KIND.theta` is not read if the encoding of this kind sets
    a different `theta`.
    typed: the keys of the command line. chosen: the option of `pattern=`. Raises UserError if the command line gives a
    key that no layer reads.
    """
    pattern, attention, unread = cfg.get("pattern"), cfg.get("attention"), list[str]()
    kinds = kinds_by_name(pattern) if pattern else {"layer": KindConfig()}
    for name, kind in kinds.items():
        encoding = cfg.get("pe") if kind.pe is None else kind.pe
        own = encoding.get("theta") if encoding else None
        if own is not None and kind.theta is not None and own != kind.theta:
            if f"pattern.{name}.theta" in typed:
                raise UserError(
                    f"pattern.{name}.theta={kind.theta:g}, but its encoding has theta={own:g}; give only one theta"
                )
            unread.append(f"pattern.{name}.theta")
    for part in FAMILIES:
        why = why_unread(part, kinds, f"pattern={chosen}", attention)
        if why and part in {key.partition(".")[0] for key in typed}:
            raise UserError(why)
        if why:
            unread.append(part)
    used = {size for kind in kinds.values() for size in attention_class(kind.attention or attention).reads}
    sizes = cfg.get("model") or {}
    other = sizes.get("n_key_heads") != sizes.get("n_heads")
    if "model.n_key_heads" in typed and "n_key_heads" not in used and other:
        raise UserError("model.n_key_heads is read by no layer: latent attention has as many key heads as heads")
    return unread


def replaced_in_pattern(own: DictConfig | None, given: DictConfig) -> DictConfig:
    """A copy of the run's pattern `own`, in which `given` replaces parts of kinds of layers.

    Raises UserError if a part cannot be replaced after training, or if `given` names a kind that the run lacks.
    """
    if not own:
        raise UserError(
            "the run has no pattern, because all its layers are alike; give pe= and softmax=, or a whole pattern="
        )
    kinds = kinds_by_name(own)
    merged = copy.deepcopy(own)
    for kind in map(str, given):
        if kind not in kinds:
            raise UserError(f"pattern.{kind}: the run has no such kind of layer{nearest(kind, kinds)}")
        for part, value in given[kind].items():
            place = f"pattern.{kind}.{part}"
            if part not in REPLACEABLE:
                why = "fixed by the training of the run" if part in KINDS_PARTS else "no part of a kind of layer"
                raise UserError(f"{place} is {why}; only {', '.join(REPLACEABLE)} and pe.theta can be replaced")
            refuse_name(place, part, value)
            if isinstance(value, DictConfig) and "_target_" not in value:  # new values for the run's class
                value = OmegaConf.merge(merged[kind][part] or {}, value)
            merged[kind][part] = value
    return merged


def why_unread(part: str, kinds: Mapping[str, KindConfig], pattern: str, attention: DictConfig | None) -> str:
    """The message for a part, such as `pe`, that no layer reads; otherwise "".

    A kind of layer does not read it if it sets the part itself, or if its attention does not use it. pattern: its name
    in the message. attention: the node of the run's `attention=`.
    """
    of_kinds = {
        name: attention_class(attention if kind.attention is None else kind.attention) for name, kind in kinds.items()
    }
    using = [name for name, own in of_kinds.items() if part in (*own.reads, *ALWAYS_READ)]
    if not kinds or any(getattr(kinds[name], part) is None for name in using):
        return ""
    if not using:
        return f"{part}= is read by no layer: {' and '.join({own.__name__ for own in of_kinds.values()})} uses none"
    instead = " or ".join(f"{part}@pattern.{name}.{part}=..." for name in using)
    return f"{part}= is read by no layer: every kind of layer in {pattern} sets this part itself; give {instead}"


def layer_lines(decoder: Decoder) -> list[str]:
    """A line for each kind of layer: its layers, its parts and its window."""
    lines = []
    for kind in dict.fromkeys(decoder.kinds):
        layers = [layer for layer, own in enumerate(decoder.kinds) if own is kind]
        block = cast("Block", decoder.layers[layers[0]])
        encoding = decoder.all_encodings[decoder.encoding_of_layer[layers[0]]]
        numbers = ", ".join(f"{name.replace('_', ' ')} {value:,}" for name, value in encoding.facts().items())
        parts = [block.self_attn, encoding, *block.self_attn.children(), block.mix]
        plain = (Attention, PositionalEncoding, TokenMix, nn.Linear, nn.RMSNorm)
        about = [
            type(part).__name__ + (f" ({numbers})" if part is encoding and numbers else "")
            for part in parts
            if type(part) not in plain
        ]
        about += [
            *(f"{name} {getattr(kind, name):,} tokens" for name in ("window", "chunk") if getattr(kind, name)),
        ]
        lines.append(f"{kind.name}: {runs_of(layers)}: {', '.join(about)}")
    return lines


def without_attention(others: Mapping[int, str]) -> str:
    """A line about layers without attention: `no attention: layers 0-2 (conv)`. others: their kinds by number."""
    kinds = dict.fromkeys(others.values())
    parts = (f"{runs_of([n for n, own in others.items() if own == kind])} ({kind})" for kind in kinds)
    return f"no attention: {'; '.join(parts)}"


def runs_of(layers: list[int]) -> str:
    """Layer numbers, counted from 0, as ranges: `layers 0-4, 6-10`."""
    ends = [i for i, layer in enumerate(layers) if layer + 1 not in layers]
    starts = [0, *(i + 1 for i in ends[:-1])]
    parts = [f"{layers[a]}" if a == b else f"{layers[a]}-{layers[b]}" for a, b in zip(starts, ends, strict=True)]
    return f"layer{'s' if len(layers) > 1 else ''} {', '.join(parts)}"
