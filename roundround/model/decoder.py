"""The language model: token embeddings, a stack of layers, a final norm and the output matrix.

Parameters have the names of Hugging Face's `LlamaForCausalLM` without `model.`, so weights can be copied both ways.
Shapes: B batch, T tokens, D model width, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from roundround.kernels.documents import documents_of
from roundround.kernels.keys import AttentionShape, Keys
from roundround.kernels.precision import at_least_float32
from roundround.model.block import AttentionLayer, Block, LayerKind, mlp_of, shape_of
from roundround.model.cache import Cache, LayerCache
from roundround.pe.base import PositionalEncoding
from roundround.softmax.base import AttentionSoftmax

LOGITS_AT_ONCE = 2**27  # half a GiB of float32: a long window times a large vocabulary would not fit
LOGITS_AT_ONCE_ON_CPU = 2**21  # 8 MiB stay in the cache and in the allocator's reach: 1.1 times as fast a training step


@final
class Decoder(nn.Module):
    """Llama's decoder, or Gemma's if some switches are set; each kind of layer can have any encoding and normaliser.

    h <- h + attention(norm(h)); h <- h + mlp(norm(h)); logits = W norm(h)

    Touvron et al. 2023, arXiv:2302.13971; Gemma Team 2024, arXiv:2403.08295.

    kinds: the kinds of the layers, repeated if there are more layers than kinds.
    train_length: the length of the training context in tokens.
    head_dim: the number of channels of a head; None means d_model / n_heads.
    d_mlp: the width of the MLPs; 0 leaves them out, so that a whole layer is h <- h + attention(norm(h)).
    mlp: the kind of the MLPs, `gated` or `relu_squared`.
    norms: the positions of a layer's norms, see `Block`.
    attention_bias: whether the four projections of attention have biases.
    other_biases: whether the MLPs and an untied output matrix have biases.
    embedding_norm: whether an RMSNorm follows the embeddings.
    logit_cap: the number c, if the logits are c z / sqrt(z^2 + c^2) instead of z; None for z.
    zero_init: see `initialise`.
    """

    is_patched = False  # whether a `Patch` has replaced a normaliser or an encoding

    def __init__(
        self,
        *,
        n_vocab: int,
        kinds: Sequence[LayerKind],
        d_model: int,
        n_layers: int,
        n_heads: int,
        n_key_heads: int,
        head_dim: int | None,
        d_mlp: int,
        train_length: int,
        tied_embeddings: bool,
        geglu: bool,
        scaled_embeddings: bool,
        norm_eps: float,
        initializer_range: float,
        norms: str = "before",
        attention_bias: bool = False,
        mlp: str = "gated",
        other_biases: bool = False,
        embedding_norm: bool = False,
        logit_cap: float | None = None,
        zero_init: bool = False,
        shard_layer: Callable[[Block], object] | None = None,
    ) -> None:
        """`shard_layer` is called with each new layer, and can reduce it to this process's share of its parameters."""
        super().__init__()
        if logit_cap is not None and not logit_cap > 0:
            raise ValueError(f"logit_cap={logit_cap} must be above 0, or null for no cap")
        self.kinds = [kinds[layer % len(kinds)] for layer in range(n_layers)]
        shapes = [
            shape_of(kind, layer, d_model, n_heads, n_key_heads, head_dim, train_length)
            for layer, kind in enumerate(self.kinds)
        ]
        seed = int(torch.randint(2**62, (), device="cpu"))  # drawn first: no variant's draws change other weights
        self.embedding_scale = math.sqrt(d_model) if scaled_embeddings else None
        self.activation_checkpointing = False  # True: a layer's backward pass computes its activations again
        self.embed_tokens = nn.Embedding(n_vocab, d_model)
        self.embedding_norm = nn.RMSNorm(d_model, eps=norm_eps) if embedding_norm else None
        self.logit_cap, self.zero_init = logit_cap, zero_init
        self.encodings, self.layers = nn.ModuleList(), nn.ModuleList()
        drawn = torch.get_rng_state()
        for kind, shape in zip(self.kinds, shapes, strict=True):
            attention = kind.make_attention(shape, kind, attention_bias)
            own_mlp = mlp_of(mlp, d_model, d_mlp, geglu=geglu, bias=other_biases)
            layer = Block(attention, own_mlp, norm_eps=norm_eps, norms=norms, make_mix=kind.make_mix)
            self.layers.append(layer)
            if shard_layer is not None:
                shard_layer(layer)
        torch.set_rng_state(drawn)  # what encodings draw does not depend on the layers
        attentions = cast("list[AttentionLayer]", [layer.self_attn for layer in self.layers])
        of_layers = [attention.encoding_shape for attention in attentions]
        encodings, self.encoding_of_layer, self.leaders = encodings_of(self.kinds, of_layers)
        self.encodings.extend(encodings)
        for attention, own in zip(attentions, self.encoding_of_layer, strict=True):
            attention.check(encodings[own])
        self.norm = nn.RMSNorm(d_model, eps=norm_eps)
        self.lm_head = None if tied_embeddings else nn.Linear(d_model, n_vocab, bias=other_biases)
        self.initialise(initializer_range, torch.Generator().manual_seed(seed))

    @property
    def encoding(self) -> PositionalEncoding:
        """The encoding that all layers share; if they share none, the first layer's encoding."""
        return self.all_encodings[0]

    @property
    def all_encodings(self) -> list[PositionalEncoding]:
        """Every encoding once; `encoding_of_layer` holds, for each layer, the index in this list."""
        return cast("list[PositionalEncoding]", list(self.encodings))

    @property
    def normalisers(self) -> list[AttentionSoftmax]:
        """The normaliser of each layer of attention; a layer in the place of attention has none."""
        return [module for module in self.layers.modules() if isinstance(module, AttentionSoftmax)]

    def draws(self, tokens_BT: Tensor) -> Sequence[Any]:
        """The draws over which an evaluation of these tokens takes its mean: see `PositionalEncoding.draws`."""
        longest: Sequence[Any] = ()
        for own in set(self.leaders):  # max(key=len) would break the graph of PyTorch's compiler before 2.13
            draws = self.all_encodings[own].draws(tokens_BT)
            longest = draws if len(draws) > len(longest) else longest
        return longest

    @property
    def draws_positions(self) -> bool:
        """Whether an evaluation takes the mean of several draws of the positions."""
        return any(encoding.draws_positions for encoding in self.all_encodings)

    def longest(self) -> int | None:
        """The largest number of positions that all encodings support; None if there is no limit."""
        limits = [encoding.longest() for encoding in self.all_encodings]
        return min((limit for limit in limits if limit is not None), default=None)

    def facts(self) -> dict[str, int | str]:
        """The facts that the encodings report; for a fact that differs between layers, its least and largest value."""
        by_layer = [encoding.facts() for encoding in self.all_encodings]
        found: dict[str, int | str] = {}
        for name in dict.fromkeys(name for facts in by_layer for name in facts):
            values = [facts.get(name, 0) for facts in by_layer]
            least, most = min(values), max(values)
            found[name] = least if least == most else f"{least:,} to {most:,} by layer"
        return found

    def forward(
        self,
        tokens_BT: Tensor,
        *,
        targets_BT: Tensor | None = None,
        scored_BT: Tensor | None = None,
        step: Any = None,
        ends_BT: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Logits [B, T, V] of the next token, or, given targets, the loss of each target in nats, [B, T].

        Where `scored_BT` is False the loss is 0 and no logits are computed; None scores all targets. `step` is the
        optimizer step in training and None otherwise. If `step` is None and an encoding draws positions
        (`PositionalEncoding.draws`), the loss is the mean over the draws. `ends_BT` and `cache` are as in `hidden`.
        """
        if targets_BT is not None and step is None and cache is None:
            alike = tokens_BT if ends_BT is None else tokens_BT.new_zeros(1, 1)  # documents of a batch share a draw
            draws = self.draws(alike)
            if len(draws) > 1:
                options: dict[str, Any] = {"targets_BT": targets_BT, "scored_BT": scored_BT, "ends_BT": ends_BT}
                return torch.stack([self.forward(tokens_BT, step=draw, **options) for draw in draws]).mean(0)
            [step] = draws
        x_BTD = self.hidden(tokens_BT, step=step, ends_BT=ends_BT, cache=cache)
        if targets_BT is None:
            return self.unembed(x_BTD)
        if scored_BT is None:
            return self.token_loss(x_BTD, targets_BT)
        loss_S = self.token_loss(x_BTD[scored_BT][None], targets_BT[scored_BT][None])[0]
        loss_BT = loss_S.new_zeros(targets_BT.shape)
        loss_BT[scored_BT] = loss_S
        return loss_BT

    def hidden(
        self,
        tokens_BT: Tensor,
        *,
        step: Any = None,
        pos_BT: Tensor | None = None,
        valid_BT: Tensor | None = None,
        ends_BT: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Normed output of the last layer, [B, T, D]; positions are 0, 1, 2, ... unless `pos_BT` gives others.

        `valid_BT` is False for padding, which no token sees and which is not counted. `ends_BT` is True at the last
        token of a document: documents do not see each other, and positions begin at 0 in each. `ends_BT` excludes
        `pos_BT` and `valid_BT`. `cache` (from `empty_cache`) holds the earlier tokens; the call adds `tokens_BT` to it.
        """
        encodings = self.all_encodings
        if cache is not None:
            if step is not None or ends_BT is not None:
                raise ValueError(
                    "a cache holds one text at fixed positions; leave out step= (random positions) and ends_BT= "
                    "(several documents)"
                )
            pos_BT, valid_BT = cache.place(tokens_BT, pos_BT, valid_BT), None
        keys = self.keys(tokens_BT, step, pos_BT, valid_BT, ends_BT)  # one for each encoding
        x_BTD = self.embed_tokens(tokens_BT)
        if self.embedding_scale is not None:
            x_BTD = x_BTD * self.embedding_scale
        if self.embedding_norm is not None:
            x_BTD = self.embedding_norm(x_BTD)
        for own in dict.fromkeys(self.leaders):
            x_BTD = encodings[own].embed(x_BTD, keys[own].q_pos_BQ)
        if cache is None:
            prepared = [
                encoding.prepare(own.q_pos_BQ, x_BTD.dtype) for encoding, own in zip(encodings, keys, strict=True)
            ]
            of_layers: Sequence[LayerCache | None] = [None] * len(self.layers)
        else:
            prepared = [
                encoding.prepare_part(own.q_pos_BQ, x_BTD.dtype, cache.length)
                for encoding, own in zip(encodings, keys, strict=True)
            ]
            firsts = {id(new): own for own, new in reversed(list(enumerate(keys)))}  # most encodings share theirs
            whole = {shared: cache.keys(own, keys[own]) for shared, own in firsts.items()}
            keys, of_layers = [whole[id(new)] for new in keys], cache.layers
        each = zip(self.layers, self.kinds, self.encoding_of_layer, of_layers, strict=True)
        for layer, kind, own, kept in each:
            seen = keys[own].within(kind.window, kind.chunk) if kept is None else keys[own]
            inputs = (x_BTD, encodings[own], prepared[own], seen)
            again = self.activation_checkpointing and torch.is_grad_enabled() and kept is None
            x_BTD = checkpoint(layer, *inputs, use_reentrant=False) if again else layer(*inputs, kept)
        out: Tensor = self.norm(x_BTD)
        return out

    def empty_cache(self, *, length: int | None = None) -> Cache:
        """An empty cache for `hidden`. length: the number of tokens that the text will have in all; None if unknown.

        Raises ValueError if an encoding does not support a cache.
        """
        base = PositionalEncoding
        for encoding in self.all_encodings:
            own = type(encoding)
            if own.prepare_layer is not base.prepare_layer and own.continue_layer is base.continue_layer:
                raise ValueError(
                    f"{own.__name__} cannot be used with a cache: its method prepare_layer reads the input of a layer, "
                    "and it has no method `continue_layer` that returns the part of this input to keep"
                )
        layers = []
        of_softmax = {softmax.shape.layer: softmax.window for softmax in self.normalisers}
        for layer, kind in enumerate(self.kinds):
            windows = [window for window in (kind.window, of_softmax.get(layer)) if window is not None]
            layers.append(LayerCache(min(windows, default=None), kind.chunk))
        return Cache(layers, length=length)

    def keys(
        self,
        tokens_BT: Tensor,
        step: Any,
        pos_BT: Tensor | None,
        valid_BT: Tensor | None,
        ends_BT: Tensor | None,
    ) -> list[Keys]:
        """For each encoding, the `Keys`: the tokens' positions and visibility; windows and chunks are not included."""
        made: dict[int | None, Keys] = {}
        for own in self.leaders:
            encoding = self.all_encodings[own]
            moves = type(encoding).positions is not PositionalEncoding.positions
            if (own if moves else None) not in made:
                made[own if moves else None] = keys_of(encoding, tokens_BT, step, pos_BT, valid_BT, ends_BT)
            made[own] = made[own if moves else None]
        return [made[own] for own in self.leaders]

    def unembed(self, x_BTD: Tensor) -> Tensor:
        """Logits [..., V] of hidden states [..., D]."""
        return self.capped(F.linear(x_BTD, self.embed_tokens.weight) if self.lm_head is None else self.lm_head(x_BTD))

    def capped(self, logits: Tensor) -> Tensor:
        """The logits z; with a cap c, c z / sqrt(z^2 + c^2) in at least float32. Gemma 2 uses c tanh(z / c) instead."""
        if self.logit_cap is None:
            return logits
        z = at_least_float32(logits)
        return self.logit_cap * z * (z.square() + self.logit_cap**2).rsqrt()

    def token_loss(self, x_BTD: Tensor, targets_BT: Tensor) -> Tensor:
        """-ln p(target), [B, T], at least float32; it computes the logits of a few rows at a time."""
        at_once = LOGITS_AT_ONCE_ON_CPU if x_BTD.device.type == "cpu" else LOGITS_AT_ONCE
        n_rows = max(1, at_once // self.embed_tokens.num_embeddings)
        rows = zip(torch.split(x_BTD.flatten(0, 1), n_rows), torch.split(targets_BT.flatten(), n_rows), strict=True)
        losses = [F.cross_entropy(at_least_float32(self.unembed(x)), target, reduction="none") for x, target in rows]
        return torch.cat(losses).view_as(targets_BT)

    def marked(self, tokens_BT: Tensor, targets_BT: Tensor, scored_BT: Tensor, step: Any) -> tuple[Tensor, Tensor]:
        """For each scored target, its loss in nats, and whether its logit is the largest; elsewhere 0 and False."""
        n_rows = max(1, LOGITS_AT_ONCE // 8 // self.embed_tokens.num_embeddings)
        x_SD, nats, right = self.hidden(tokens_BT, step=step)[scored_BT], [], []
        for x_RD, targets_R in zip(torch.split(x_SD, n_rows), torch.split(targets_BT[scored_BT], n_rows), strict=True):
            logits_RV = at_least_float32(self.unembed(x_RD))
            nats.append(F.cross_entropy(logits_RV, targets_R, reduction="none"))
            right.append(logits_RV.argmax(-1) == targets_R)
        nats_BT = nats[0].new_zeros(scored_BT.shape).masked_scatter(scored_BT, torch.cat(nats))
        return nats_BT, torch.zeros_like(scored_BT).masked_scatter(scored_BT, torch.cat(right))

    def initialise(self, initializer_range: float, generator: torch.Generator) -> None:
        """Draw normal weights with the standard deviation `initializer_range`.

        For `o_proj` and `down_proj`, which write to the residual stream, the standard deviation is divided by
        sqrt(2 n_layers), as in GPT-2.
        With `zero_init`, as in modded-nanogpt, `initializer_range` is not used: `o_proj`, `down_proj`, the output
        matrix and all biases begin at 0, embeddings have a standard deviation of 1, and all other matrices have a
        standard deviation of sqrt(0.33 / columns).
        Encodings and normalisers have already initialised their own parameters.
        """
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear | nn.Embedding) and not belongs_to_a_variant(name):
                writes = name.endswith(("o_proj", "down_proj"))
                std = initializer_range / math.sqrt(2 * len(self.layers)) if writes else initializer_range
                if self.zero_init:
                    std = 1.0 if name == "embed_tokens" else math.sqrt(0.33 / module.weight.shape[1])
                    std = 0.0 if writes or name == "lm_head" else std
                whole = torch.empty(module.weight.shape, dtype=module.weight.dtype)  # drawn alike in every process
                fill(module.weight, nn.init.normal_(whole, std=std, generator=generator))
                if self.zero_init and isinstance(module, nn.Linear) and module.bias is not None:
                    fill(module.bias, torch.zeros(module.bias.shape, dtype=module.bias.dtype))


def encodings_of(
    kinds: Sequence[LayerKind], shapes: Sequence[AttentionShape]
) -> tuple[list[PositionalEncoding], list[int], list[int]]:
    """All encodings; the index of each layer's encoding; and the index of each encoding's leader.

    The leader is the first encoding of the same kind. If each layer has its own instance, only the leader gives the
    positions and changes the embeddings. Raises ValueError if encodings of different kinds draw positions.
    """
    made: list[PositionalEncoding] = []
    of_layer, leaders = [], []
    first_of: dict[object, int] = {}
    for kind, shape in zip(kinds, shapes, strict=True):
        alike = kind.make_encoding, replace(shape, layer=0)
        if alike not in first_of or made[first_of[alike]].per_layer:
            made.append(kind.make_encoding(shape))
            leaders.append(first_of.setdefault(alike, len(made) - 1))
            of_layer.append(len(made) - 1)
        else:
            of_layer.append(first_of[alike])
    if sum(made[own].draws_positions for own in set(leaders)) > 1:
        raise ValueError("the encodings of two kinds of layers draw positions, but only one may; change one of them")
    return made, of_layer, leaders


def keys_of(
    encoding: PositionalEncoding,
    tokens_BT: Tensor,
    step: Any,
    pos_BT: Tensor | None,
    valid_BT: Tensor | None,
    ends_BT: Tensor | None,
) -> Keys:
    """The `Keys` for an encoding: the tokens' positions and visibility. The arguments are as in `Decoder.hidden`."""
    if ends_BT is not None:
        if pos_BT is not None or valid_BT is not None:
            raise ValueError(
                "ends_BT= fixes the positions of the tokens and what they see; leave out pos_BT= and valid_BT="
            )
        documents = documents_of(ends_BT, lambda pos_1T: encoding.positions(pos_1T, step))
        return Keys(q_pos_BQ=documents.pos_BT, k_pos_BK=documents.pos_BT, documents=documents)
    if pos_BT is None:
        pos_BT = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)[None]
        pos_BT = pos_BT if valid_BT is None else (valid_BT.cumsum(-1) - 1).clamp(min=0)
    pos_BT = encoding.positions(pos_BT, step)
    return Keys(q_pos_BQ=pos_BT, k_pos_BK=pos_BT, valid_BK=valid_BT)


def belongs_to_a_variant(name: str) -> bool:
    """Whether the module or parameter of this name belongs to an encoding or a normaliser."""
    return name.startswith("encodings.") or ".softmax." in name


def n_parameters(decoder: Decoder) -> int:
    return sum(parameter.numel() for parameter in decoder.parameters())


# -- parameters whose rows are shared out among processes


def is_sharded(parameter: Tensor) -> bool:
    """Whether `fully_shard` has sharded the parameter; found without importing DTensor, which takes a second."""
    return type(parameter) not in (Tensor, nn.Parameter)


@torch.no_grad()
def fill(parameter: Tensor, whole: Any) -> None:
    """Copy `whole`, a tensor or a slice of a file, into a parameter. A sharded parameter gets only its process's rows.

    Each rank holds a block of ceil(n / ranks) of the n rows; the last ranks hold fewer or none.
    """
    if not is_sharded(parameter):
        parameter.copy_(whole[...])
        return
    from torch.distributed.tensor import DTensor

    assert isinstance(parameter, DTensor), "fully_shard makes nothing else"
    own, mesh, n_rows = parameter.to_local(), parameter.device_mesh, parameter.shape[0]
    first = min(n_rows, mesh.get_local_rank() * -(-n_rows // mesh.size()))
    if len(own):
        own.copy_(whole[first : first + len(own)])
