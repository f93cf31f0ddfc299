"""A kind of layer: what its attention is made of, and in which order kinds follow each other.

Tested by tests/trained/test_patterns.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from roundround.kernels.keys import AttentionShape
from roundround.model.gate import OutputGate
from roundround.model.qk_norm import QueryKeyNorm
from roundround.pe.base import PositionalEncoding
from roundround.softmax.base import AttentionSoftmax


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
        for name in ("window", "chunk"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{self.name}: {name}={value} must be at least 1")


def order_of_layers(
    kinds: Mapping[str, object], order: Sequence[str], n_layers: int, *, last: str | None, whole: bool
) -> list[str]:
    """The kind of each layer: `order` again and again, but for the last layer where `last` names its kind.

    Raises ValueError for a name that is no kind, for a kind that no layer is of, and, where `whole` says that the
    order stands a whole number of times, for a number of layers that it does not divide.
    """
    unknown = [name for name in (*order, last) if name not in (*kinds, None)]
    if unknown or not order:
        raise ValueError(f"order and last name {unknown or 'no kind'}; the kinds are {', '.join(kinds)}")
    if whole and n_layers % len(order):
        raise ValueError(f"its order of {len(order)} layers does not divide n_layers={n_layers}")
    names = [order[layer % len(order)] for layer in range(n_layers)]
    if last is not None:
        names[-1] = last
    unused = [name for name in kinds if name not in names]
    if unused:
        raise ValueError(
            f"no layer of n_layers={n_layers} is of the kind {unused[0]}; its order has {len(order)} layers"
        )
    return names


def shape_of(
    kind: LayerKind, layer: int, d_model: int, n_heads: int, n_key_heads: int, head_dim: int | None, train_length: int
) -> AttentionShape:
    """The sizes of a layer's attention. Raises ValueError where they do not fit each other."""
    n_key_heads = n_key_heads if kind.n_key_heads is None else kind.n_key_heads
    head_dim = head_dim if kind.head_dim is None else kind.head_dim
    if n_heads % n_key_heads:
        raise ValueError(f"n_heads={n_heads} must be a multiple of n_key_heads={n_key_heads}")
    if head_dim is None:
        if d_model % n_heads:
            raise ValueError(f"d_model={d_model} must be a multiple of n_heads={n_heads} (or set head_dim)")
        head_dim = d_model // n_heads
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
