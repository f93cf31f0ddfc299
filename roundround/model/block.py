"""One layer of the decoder: attention, then an MLP, each with an RMSNorm and a residual; and the kinds of layers.

Attention never asks which encoding or normaliser it has. Other layers that take its place derive from `AttentionLayer`.
Shapes: B batch, T tokens, H heads, G key heads, C head channels, D model width.

Tested by tests/model/test_decoder.py and tests/trained/test_patterns.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, final

import torch.nn.functional as F
from torch import Tensor, nn

from roundround.kernels.keys import AttentionShape, Keys
from roundround.kernels.variants import FinalVariants
from roundround.model.cache import LayerCache
from roundround.model.gate import OutputGate
from roundround.model.mix import Earlier, TokenMix
from roundround.model.qk_norm import QueryKeyNorm
from roundround.pe.base import PositionalEncoding
from roundround.pe.nope import NoPE
from roundround.softmax.base import AttentionSoftmax

SIZES = ("window", "chunk", "n_key_heads", "head_dim", "theta", "logit_scale")  # of a kind of layer
Mixed = Callable[[Tensor, str], Tensor]  # mixes the features of a site with those of earlier tokens: see `TokenMix`


class AttentionLayer(FinalVariants, nn.Module):
    """Base of what lets the tokens of a layer see each other: attention, or a layer in its place.

    A variant is one final class: `__init__(self, shape, kind, bias, *, tunables)`; each layer has one instance.

    reads: the parts and sizes of a `LayerKind` that the class uses; a pattern may set no others. widths: the number of
    channels at each site inside the layer that a `TokenMix` can mix. encoding_shape: the sizes of what the encoding
    rotates.
    """

    reads: ClassVar[frozenset[str]]
    widths: dict[str, int]

    def __init__(self, shape: AttentionShape) -> None:
        super().__init__()
        self.shape = self.encoding_shape = shape

    def check(self, encoding: PositionalEncoding) -> None:
        """Raises ValueError if the layer cannot use this encoding."""

    def forward(
        self,
        x_BTD: Tensor,
        encoding: PositionalEncoding,
        prepared: Any,
        keys: Keys,
        cache: LayerCache | None,
        mixed: Mixed,
    ) -> Tensor:
        """The output, [B, T, D]. `cache` holds what is kept of earlier tokens, and stores it for the new ones.

        With a cache, `keys` describes all tokens so far, without windows and chunks.
        """
        raise NotImplementedError

    def prepared(
        self, x_BTD: Tensor, encoding: PositionalEncoding, prepared: Any, keys: Keys, cache: LayerCache | None
    ) -> Any:
        """What the encoding's hooks need from the layer's input, with or without a cache."""
        if cache is None:
            return encoding.prepare_layer(x_BTD, prepared, keys)
        return cache.continue_layer(encoding, x_BTD, prepared, keys)

    def products(self, n_keys: int) -> int:
        """The multiplications of a token with `n_keys` others or with a state, beside those of the `nn.Linear`s."""
        return 2 * self.shape.n_heads * self.shape.head_dim * n_keys


class MultiHeadAttention(AttentionLayer):
    """Base of layers with queries, keys and values of each head; parameters have Hugging Face's names.

    bias: whether the four projections have biases. maps: the number of query heads for each head of the output; the
    encoding, the normaliser and `qk_norm` have the sizes of the query heads.
    """

    reads = frozenset(("pe", "softmax", "qk_norm", "gate", *SIZES))
    maps: ClassVar[int] = 1

    def __init__(self, shape: AttentionShape, kind: LayerKind, bias: bool = False) -> None:
        super().__init__(shape)
        self.encoding_shape = of_queries = replace(shape, n_heads=self.maps * shape.n_heads)
        self.softmax = kind.make_softmax(of_queries)
        n_queries, n_keys, n_out = (n * shape.head_dim for n in (of_queries.n_heads, shape.n_key_heads, shape.n_heads))
        self.q_proj = nn.Linear(shape.d_model, n_queries, bias=bias)
        self.k_proj = nn.Linear(shape.d_model, n_keys, bias=bias)
        self.v_proj = nn.Linear(shape.d_model, n_keys, bias=bias)
        self.o_proj = nn.Linear(n_out, shape.d_model, bias=bias)
        self.qk_norm = None if kind.make_qk_norm is None else kind.make_qk_norm(of_queries)
        self.gate = None if kind.make_gate is None else kind.make_gate(shape)
        self.widths = {"queries": n_queries, "keys": n_keys, "values": n_keys}

    def read_values(self, v_BGKC: Tensor) -> Tensor:
        """The values that the query heads of each key head read; they may have other channels."""
        return v_BGKC

    def combined(self, out_BHTC: Tensor, x_BTD: Tensor) -> Tensor:
        """The output of each head from that of each query head. `x_BTD` is the normed input of the layer."""
        return out_BHTC

    def products(self, n_keys: int) -> int:
        return self.maps * super().products(n_keys)

    def check(self, encoding: PositionalEncoding) -> None:
        check_order(self.softmax, encoding)

    def forward(
        self,
        x_BTD: Tensor,
        encoding: PositionalEncoding,
        prepared: Any,
        keys: Keys,
        cache: LayerCache | None,
        mixed: Mixed,
    ) -> Tensor:
        prepared = self.prepared(x_BTD, encoding, prepared, keys, cache)
        projections = (self.q_proj, self.k_proj, self.v_proj)
        q_BHTC, k_BGTC, v_BGTC = (
            heads(mixed(proj(x_BTD), site), self.shape.head_dim)
            for proj, site in zip(projections, self.widths, strict=True)
        )
        norm = self.qk_norm
        if norm is not None and not norm.after_rotation:
            q_BHTC, k_BGTC = norm(q_BHTC, k_BGTC)
        q_BHTC, k_BGTC = encoding.rotate_queries(q_BHTC, prepared), encoding.rotate_keys(k_BGTC, prepared)
        if norm is not None:
            q_BHTC, k_BGTC = norm(q_BHTC, k_BGTC) if norm.after_rotation else (q_BHTC, k_BGTC)
            v_BGTC = norm.of_values(v_BGTC)
        k_BGKC, v_BGKC = k_BGTC, encoding.rotate_values(v_BGTC, prepared)
        if cache is not None:
            k_BGKC, v_BGKC = cache.extend(k_BGKC, v_BGKC)
            keys = cache.narrowed(keys)
        bias, rows = encoding.bias(q_BHTC, k_BGKC, prepared), self.softmax.row_parameters(x_BTD)
        read_BGKC, scale = self.read_values(v_BGKC), self.shape.scale
        out_BHTC = self.softmax(q_BHTC, k_BGKC, read_BGKC, scale=scale, keys=keys, bias=bias, rows=rows)
        out_BHTC = encoding.rotate_outputs(self.combined(out_BHTC, x_BTD), prepared)
        if self.gate is not None:
            out_BHTC = self.gate(out_BHTC, x_BTD, v_BGTC)
        out: Tensor = self.o_proj(out_BHTC.transpose(1, 2).flatten(2))
        return out


@final
class Attention(MultiHeadAttention):
    """Grouped-query attention (Ainslie et al. 2023, arXiv:2305.13245)."""


def check_order(softmax: AttentionSoftmax, encoding: PositionalEncoding) -> None:
    """Raises ValueError if the normaliser takes positions from the order of the keys and an encoding adds others."""
    if softmax.orders_keys and type(encoding) not in (NoPE, PositionalEncoding):
        raise ValueError(
            f"{type(softmax).__name__} takes positions from the order of the keys and cannot be combined with "
            f"{type(encoding).__name__}; give pe=nope"
        )


def heads(x_BTW: Tensor, n_channels: int) -> Tensor:
    """[B, T, heads * C] -> [B, heads, T, C]."""
    return x_BTW.reshape(*x_BTW.shape[:-1], -1, n_channels).transpose(1, 2)


class MLP(nn.Module):
    """down(activation(gate x) * up x): SwiGLU, or GeGLU in Gemma's flavour (Shazeer 2020, arXiv:2002.05202)."""

    def __init__(self, d_model: int, d_mlp: int, *, geglu: bool, bias: bool = False) -> None:
        super().__init__()
        self.geglu = geglu
        self.widths = {"mlp_input": d_model, "mlp_gate": d_mlp, "mlp_up": d_mlp}
        self.gate_proj = nn.Linear(d_model, d_mlp, bias=bias)
        self.up_proj = nn.Linear(d_model, d_mlp, bias=bias)
        self.down_proj = nn.Linear(d_mlp, d_model, bias=bias)

    def forward(self, x_BTD: Tensor, mixed: Mixed) -> Tensor:
        gate = mixed(self.gate_proj(x_BTD), "mlp_gate")
        active = F.gelu(gate, approximate="tanh") if self.geglu else F.silu(gate)
        out: Tensor = self.down_proj(active * mixed(self.up_proj(x_BTD), "mlp_up"))
        return out


class SquaredReLU(nn.Module):
    """down(max(0, up x)^2) (So et al. 2021, arXiv:2109.08668)."""

    def __init__(self, d_model: int, d_mlp: int, *, bias: bool) -> None:
        super().__init__()
        self.widths = {"mlp_input": d_model, "mlp_up": d_mlp}
        self.up_proj = nn.Linear(d_model, d_mlp, bias=bias)
        self.down_proj = nn.Linear(d_mlp, d_model, bias=bias)

    def forward(self, x_BTD: Tensor, mixed: Mixed) -> Tensor:
        out: Tensor = self.down_proj(F.relu(mixed(self.up_proj(x_BTD), "mlp_up")).square())
        return out


def mlp_of(kind: str, d_model: int, d_mlp: int, *, geglu: bool, bias: bool) -> MLP | SquaredReLU | None:
    """The MLP of the kind `gated` or `relu_squared`; None if `d_mlp` is 0.

    Raises ValueError for any other kind, and for `geglu` with a kind that is not `gated`.
    """
    if kind not in ("gated", "relu_squared"):
        raise ValueError(f"mlp={kind} must be gated or relu_squared")
    if kind == "relu_squared" and geglu:
        raise ValueError("geglu=true needs mlp=gated; give mlp=gated, or geglu=false")
    if not d_mlp:
        return None
    return MLP(d_model, d_mlp, geglu=geglu, bias=bias) if kind == "gated" else SquaredReLU(d_model, d_mlp, bias=bias)


NORMS = ("before", "both", "after")


class Block(nn.Module):
    """Transformer layer with residuals (Touvron et al. 2023, arXiv:2302.13971); names as in Hugging Face's models.

    norms: the positions of the RMSNorms. `before`: before attention and before the MLP, as in Llama. `after`: after
    attention and after the MLP, as in OLMo 2 and 3. `both`: at all four positions, as in Gemma 2 to 4.
    Without an MLP the layer consists of attention and its norms.
    make_mix: makes the `TokenMix` of the layer from its shape and the widths of its sites.
    """

    def __init__(
        self,
        attention: AttentionLayer,
        mlp: MLP | SquaredReLU | None,
        *,
        norm_eps: float,
        norms: str,
        make_mix: Callable[[AttentionShape, Mapping[str, int]], TokenMix],
    ) -> None:
        super().__init__()
        if norms not in NORMS:
            raise ValueError(f"norms={norms} must be one of {', '.join(NORMS)}")
        shape = attention.shape

        def norm(*, there: bool = True) -> nn.RMSNorm | None:
            return nn.RMSNorm(shape.d_model, eps=norm_eps) if there else None

        has_mlp, after = mlp is not None, norms != "before"
        self.input_layernorm = norm(there=norms != "after")
        self.self_attn = attention
        # with norms=before this is the norm before the MLP, otherwise the norm after attention
        self.post_attention_layernorm = norm(there=after or has_mlp)
        self.pre_feedforward_layernorm = norm(there=has_mlp and norms == "both")
        self.mlp = mlp
        self.post_feedforward_layernorm = norm(there=has_mlp and after)
        self.norms_after = after
        self.mix = make_mix(shape, {"input": shape.d_model, **attention.widths, **({} if mlp is None else mlp.widths)})

    def forward(
        self,
        x_BTD: Tensor,
        encoding: PositionalEncoding,
        prepared: Any,
        keys: Keys,
        cache: LayerCache | None = None,
    ) -> Tensor:
        mixed: Mixed = partial(self.mix, earlier=Earlier(keys, cache))
        read_BTD = mixed(normed(self.input_layernorm, x_BTD), "input")
        found_BTD = self.self_attn(read_BTD, encoding, prepared, keys, cache, mixed)
        x_BTD = x_BTD + (normed(self.post_attention_layernorm, found_BTD) if self.norms_after else found_BTD)
        if self.mlp is None:
            return x_BTD
        before = self.pre_feedforward_layernorm if self.norms_after else self.post_attention_layernorm
        found_BTD = self.mlp(mixed(normed(before, x_BTD), "mlp_input"), mixed)
        return x_BTD + normed(self.post_feedforward_layernorm, found_BTD)


def normed(norm: nn.RMSNorm | None, x_BTD: Tensor) -> Tensor:
    return x_BTD if norm is None else norm(x_BTD)


# -- kinds of layers and their order


@dataclass(frozen=True, kw_only=True)
class LayerKind:
    """The parts and sizes of one kind of layer.

    Layers with the same `make_encoding` and the same sizes share one instance of their encoding, unless the encoding
    sets `per_layer`. If `make_qk_norm` or `make_gate` is None, the layer has no such part. `make_attention` makes the
    layer's attention from its shape, this kind and whether it has biases, and uses the other parts.
    window: the largest number of tokens that a query sees, itself included; None for all tokens.
    chunk: the number of tokens in a chunk, if a query sees only its own chunk; None if there are no chunks.
    n_key_heads: the number of key heads; None for the model's number.
    head_dim: the number of channels of a head; None for the model's number.
    theta: the base of RoPE for an encoding that sets none; None means 10,000.
    logit_scale: the factor of q . k; None means 1 / sqrt(head_dim).
    """

    make_encoding: Callable[[AttentionShape], PositionalEncoding] = PositionalEncoding  # does nothing
    make_softmax: Callable[[AttentionShape], AttentionSoftmax] = AttentionSoftmax  # for layers that have none
    make_qk_norm: Callable[[AttentionShape], QueryKeyNorm] | None = None
    make_gate: Callable[[AttentionShape], OutputGate] | None = None
    make_mix: Callable[[AttentionShape, Mapping[str, int]], TokenMix] = TokenMix
    make_attention: Callable[[AttentionShape, LayerKind, bool], AttentionLayer] = Attention
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
    """The kind of each layer: `order` repeated, except that `last`, if given, is the kind of the last layer.

    Raises ValueError if a name is not in `kinds`, if a kind has no layer, or, with `whole`, if the number of layers is
    not a multiple of the length of `order`.
    """
    unknown = [name for name in (*order, last) if name not in (*kinds, None)]
    if unknown or not order:
        raise ValueError(
            f"order= and last= contain {unknown or 'no kind'}; they must contain only these kinds: {', '.join(kinds)}"
        )
    if whole and n_layers % len(order):
        raise ValueError(
            f"order= has {len(order)} layers, and n_layers={n_layers} must be a multiple of this number; change one of "
            "the two"
        )
    names = [order[layer % len(order)] for layer in range(n_layers)]
    if last is not None:
        names[-1] = last
    unused = [name for name in kinds if name not in names]
    if unused:
        raise ValueError(
            f"none of the n_layers={n_layers} layers is of the kind {unused[0]}; order= has {len(order)} layers"
        )
    return names


def shape_of(
    kind: LayerKind, layer: int, d_model: int, n_heads: int, n_key_heads: int, head_dim: int | None, train_length: int
) -> AttentionShape:
    """The sizes of a layer's attention. Raises ValueError if they do not fit each other."""
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
