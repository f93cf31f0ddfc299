"""A kind of layer: what its attention is made of, and in which order kinds follow each other.

Tested by tests/trained/test_patterns.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from roundround.kernels.keys import AttentionShape
from roundround.model.attention import Attention
from roundround.model.gate import OutputGate
from roundround.model.qk_norm import QueryKeyNorm
from roundround.pe.base import PositionalEncoding
from roundround.softmax.base import AttentionSoftmax

MOST_LAYERS = 10_000  # each takes milliseconds to construct: a typo or a foreign file would take hours


@dataclass(frozen=True, kw_only=True)
class LayerKind:
    """What one kind of layer computes with.

    Layers whose kinds have the same `make_encoding` and the same sizes share one instance of their encoding, unless it
    is one a layer. `make_qk_norm` and `make_gate` None: there is none.
    window: tokens that a query sees at most, itself included; None for all. chunk: a query sees the tokens of its own
    chunk of this many alone; None for all.
    n_key_heads, head_dim: None is the model's. theta: the base of RoPE where the encoding names none; None is 10,000.
    logit_scale: what multiplies q . k; None is 1 / sqrt(head_dim).
    """

    make_encoding: Callable[[AttentionShape], PositionalEncoding]
    make_softmax: Callable[[AttentionShape], AttentionSoftmax]
    make_qk_norm: Callable[[AttentionShape], QueryKeyNorm] | None = None
    make_gate: Callable[[AttentionShape], OutputGate] | None = None
    name: str = "layer"
    window: int | None = None
    chunk: int | None = None
    n_key_heads: int | None = None
    head_dim: int | None = None
    theta: float | None = None
    logit_scale: float | None = None

    def __post_init__(self) -> None:
        for name in ("window", "chunk", "n_key_heads", "head_dim"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{self.name}: {name}={value} must be at least 1")
        if self.theta is not None and not 1 < self.theta < float("inf"):
            raise ValueError(f"{self.name}: theta={self.theta} must be a finite number above 1")
        if self.logit_scale is not None and not 0 < self.logit_scale < float("inf"):
            raise ValueError(f"{self.name}: logit_scale={self.logit_scale} must be a finite number above 0")


def order_of_layers(
    kinds: Mapping[str, object], order: Sequence[str], n_layers: int, *, last: str | None, whole: bool
) -> list[str]:
    """The kind of each layer: `order` again and again, but for the last layer where `last` names its kind.

    Raises ValueError for a name that is no kind, for a kind that no layer is of, and, where `whole` says that the
    order stands a whole number of times, for a number of layers that it does not divide.
    """
    if not order:
        raise ValueError("order is empty; name the kinds of the first layers")
    for place, name in (*(("order", name) for name in order), *([] if last is None else [("last", last)])):
        if name not in kinds:
            raise ValueError(f"{place} names '{name}', and the kinds are {', '.join(kinds)}")
    if whole and n_layers % len(order):
        raise ValueError(f"its order of {len(order)} layers does not divide n_layers={n_layers}")
    names = [order[layer % len(order)] for layer in range(n_layers)]
    if last is not None:
        names[-1] = last
    unused = [name for name in kinds if name not in names]
    if unused:
        if unused[0] not in (*order, last):
            raise ValueError(f"its order names no kind {unused[0]}; it has {', '.join(dict.fromkeys(order))}")
        raise ValueError(
            f"no layer of n_layers={n_layers} is of the kind {unused[0]}; give model.n_layers={len(order)} or more"
        )
    return names


def shape_of(
    kind: LayerKind, layer: int, d_model: int, n_heads: int, n_key_heads: int, head_dim: int | None, train_length: int
) -> AttentionShape:
    """The sizes of a layer's attention. Raises ValueError where they do not fit each other."""
    n_key_heads = n_key_heads if kind.n_key_heads is None else kind.n_key_heads
    head_dim = head_dim if kind.head_dim is None else kind.head_dim
    check_sizes(n_heads=n_heads, n_key_heads=n_key_heads)
    if n_heads % n_key_heads:
        raise ValueError(f"n_heads={n_heads} must be a multiple of n_key_heads={n_key_heads}")
    if head_dim is None:
        if d_model % n_heads:
            raise ValueError(f"d_model={d_model} must be a multiple of n_heads={n_heads} (or set head_dim)")
        head_dim = d_model // n_heads
    check_sizes(head_dim=head_dim)
    return AttentionShape(
        n_heads=n_heads,
        n_key_heads=n_key_heads,
        head_dim=head_dim,
        d_model=d_model,
        layer=layer,
        train_length=train_length,
        logit_scale=kind.logit_scale,
        **({} if kind.theta is None else {"theta": kind.theta}),
    )


def attention_of(kind: LayerKind, shape: AttentionShape, *, bias: bool) -> Attention:
    """A layer's attention, freshly initialised."""
    return Attention(
        shape,
        kind.make_softmax(shape),
        qk_norm=None if kind.make_qk_norm is None else kind.make_qk_norm(shape),
        gate=None if kind.make_gate is None else kind.make_gate(shape),
        bias=bias,
    )


def check_sizes(**sizes: int) -> None:
    """Raises ValueError for the first size below 1, and for layers that would take hours to construct."""
    for name, value in sizes.items():
        if value < 1:
            raise ValueError(f"{name}={value} must be at least 1")
        if name == "n_layers" and value > MOST_LAYERS:
            raise ValueError(f"n_layers={value} must be at most {MOST_LAYERS}")
