"""This project's attention inside a Hugging Face model: a registered attention function and its mask function.

`installed(model)` gives every attention layer of the model a normaliser and an encoding as submodules. The layer then
calls them in place of its own attention; the encoding does nothing if the model keeps its own. Hooks on the normalisers
see the queries, keys and values of every layer, as in the decoder of this project.
The two functions must be registered under one name. Otherwise transformers passes no mask, and attention silently is
not causal.
Shapes: B batch, Q queries, K keys, H heads, G key heads, C head channels, D model width.

Tested by tests/hf/test_hf_attention.py.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from roundround.hf.private import attention_name, set_attention_name
from roundround.kernels.bias import GivenBias
from roundround.kernels.keys import AttentionShape, Keys
from roundround.model.parts import encoded
from roundround.pe.base import PositionalEncoding
from roundround.softmax.base import AttentionSoftmax
from roundround.softmax.sink import Sink
from roundround.softmax.soft_cap import SoftCap
from roundround.softmax.softmax import Softmax
from roundround.support.errors import UserError

NAME = "roundround"  # of the attention implementation
PATCHED = "the model is patched already; take that patch off first"
SLOT = "roundround_softmax"  # the normaliser, a submodule of each attention layer
ENCODING = "roundround_encoding"  # the same of the encoding, which acts beside the rotation of the model
INPUT = "roundround_input"  # attribute: the input of an attention layer, until the layer calls its attention
POSITIONS = "roundround_positions"  # attribute: the `position_ids` of this forward pass; None if it has none
ASKED = "roundround_asked"  # attribute: whether this forward pass returns attention weights
CHANGING = {"dynamic", "longrope"}  # kinds of RoPE whose frequencies follow the length
AT_RANDOM = 8  # random keys of every query in the sample of a large mask
ALL_PAIRS = 2**18  # pairs of query and key up to which a mask is compared as a whole; a larger one on a sample

MakeSoftmax = Callable[[AttentionShape], AttentionSoftmax]


@contextmanager
def installed(model: PreTrainedModel, make_softmax: MakeSoftmax | None = None) -> Iterator[list[AttentionSoftmax]]:
    """Run the model's attention through normalisers of this project inside the block; yields the layers' normalisers.

    make_softmax: a function that makes the normaliser of a layer; None keeps what the model has (softmax, soft cap or
    sinks). Raises UserError if the attention cannot be replaced, or if a normaliser would drop a soft cap or sinks.
    """
    with ExitStack() as undo:
        undo.callback(install(model, make_softmax))
        yield normalisers_of(model)


def install(
    model: PreTrainedModel,
    make_softmax: MakeSoftmax | None = None,
    encodings: Sequence[PositionalEncoding] | None = None,
) -> Callable[[], None]:
    """Do what `installed` does before its block; returns the function that undoes it.

    encodings: what each layer adds to the rotation of the model; None for nothing.
    """
    if getattr(model.config, "is_encoder_decoder", False):
        raise UserError(f"{type(model).__name__} has an encoder; roundround patches only models without one")
    layers = attention_layers(model)
    if is_patched(model):
        raise UserError(PATCHED)
    make = own_softmax if make_softmax is None else partial(replacement, make_softmax=make_softmax)
    made = [make(layer) for layer in layers]
    added = encodings or [PositionalEncoding(softmax.shape) for softmax in made]
    with ExitStack() as undo:
        for config in reversed(configs_of(model)):  # undo sets the outermost first, as that also sets the inner ones
            undo.callback(set_attention_name, config, attention_name(config))
        for layer, softmax, encoding in zip(layers, made, added, strict=True):
            own, parts = next(layer.parameters()), dict[str, nn.Module]({SLOT: softmax, ENCODING: encoding})
            for name, part in parts.items():
                if own.device.type != "meta":  # offloaded weights are on meta; their layer computes on the CPU
                    part.to(own.device)
                layer.add_module(name, part.train(layer.training))
                undo.callback(delattr, layer, name)
            for name in (INPUT, ASKED, POSITIONS):
                undo.callback(layer.__dict__.pop, name, None)
            undo.callback(layer.register_forward_pre_hook(remember_input, with_kwargs=True).remove)
            undo.callback(layer.register_forward_hook(check_input_taken).remove)
        for module in filter(follows_length_in, text_decoder(model).modules()):
            undo.callback(module.register_forward_pre_hook(forget_length).remove)
        undo.callback(model.register_forward_pre_hook(partial(ask_for_weights, layers), with_kwargs=True).remove)
        decoder, remember = text_decoder(model), partial(remember_positions, layers)
        undo.callback(decoder.register_forward_pre_hook(remember, with_kwargs=True).remove)
        AttentionInterface.register(NAME, attention)
        AttentionMaskInterface.register(NAME, mask)
        model.set_attn_implementation(NAME)
        return undo.pop_all().close


def configs_of(model: PreTrainedModel) -> list[Any]:
    """The configs of the model and of the models in it, the outermost first."""
    return list({id(m.config): m.config for m in model.modules() if isinstance(m, PreTrainedModel)}.values())


def text_decoder(model: PreTrainedModel) -> nn.Module:
    """The text decoder of the model, without its output head and without parts that read images."""
    decoder: nn.Module | None = model.get_decoder()
    if decoder is None or decoder is model:
        decoder = model.base_model
    inside = (child for child in model.children() if isinstance(child, PreTrainedModel))
    return next(inside, model) if decoder is model else decoder  # some models do not know their own (Llama 4's text)


def attention_layers(model: nn.Module) -> list[nn.Module]:
    """The self-attention modules of a decoder, in the order of layers. Raises UserError if none has a known form."""
    inside = text_decoder(model) if isinstance(model, PreTrainedModel) else model
    found = [
        m
        for m in inside.modules()
        if isinstance(getattr(m, "layer_idx", None), int)
        and hasattr(m, "scaling")
        and hasattr(m, "config")
        and size_of_head(m)
    ]
    if not found:
        raise UserError(
            f"{type(model).__name__} has no attention layers of a known form; "
            "if it is an export, give the run that it came from: run=DIR"
        )
    return sorted(found, key=lambda m: int(m.layer_idx))  # type: ignore[arg-type]


def normalisers_of(model: nn.Module) -> list[AttentionSoftmax]:
    """The normalisers of a model with an installed attention, in the order of layers."""
    return [m for layer in attention_layers(model) if isinstance(m := getattr(layer, SLOT, None), AttentionSoftmax)]


def follows_length_in(module: nn.Module) -> str | None:
    """The kind of RoPE for which a rotary module recomputes its frequencies at every length; None if it does not."""
    return next((kind for kind in rope_types(module).values() if kind in CHANGING), None)


def rope_types(module: nn.Module) -> dict[str, str]:
    """The kind of RoPE of each table of a rotary module, under the prefix of the table's name; empty if unknown."""
    kinds = getattr(module, "rope_type", None) or {}
    return {f"{layer}_": kind for layer, kind in kinds.items()} if isinstance(kinds, dict) else {"": str(kinds)}


def forget_length(module: nn.Module, args: tuple[Any, ...]) -> None:
    """Restore the original frequencies of dynamic NTK before a call, so that they depend only on this call's length.

    By itself, transformers keeps the frequencies of the longest text so far.
    """
    for name in (name for name, kind in rope_types(module).items() if kind == "dynamic"):
        own_P = getattr(module, f"{name}original_inv_freq").clone()
        module.register_buffer(f"{name}inv_freq", own_P, persistent=False)
        setattr(module, f"{name}max_seq_len_cached", module.original_max_seq_len)


def is_patched(model: nn.Module) -> bool:
    """Whether the model's attention runs through normalisers of this project."""
    return any(hasattr(layer, SLOT) for layer in attention_layers(model))


def size_of_head(layer: nn.Module) -> int | None:
    """The number of channels of a query, which has three names in transformers; None if the layer has none of them.

    Latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1) has the first: values have another size there.
    """
    found = (getattr(layer, name, None) for name in ("qk_head_dim", "head_dim", "head_size"))
    return next((size for size in found if size and isinstance(size, int)), None)


def other_layers(model: PreTrainedModel) -> dict[int, str]:
    """The kind of each layer of a hybrid model that has no attention to measure, such as `conv`, by its number."""
    kinds = getattr(model.config.get_text_config(), "layer_types", None) or []
    known = {layer.layer_idx for layer in attention_layers(model)}
    return {number: str(kind) for number, kind in enumerate(kinds) if number not in known}


def shape_of(layer: Any) -> AttentionShape:
    """The sizes of an attention layer of a Hugging Face model."""
    config, head_dim = layer.config, size_of_head(layer)
    assert head_dim is not None
    n_heads = int(getattr(layer, "num_heads", None) or config.num_attention_heads)  # kinds of layers can differ
    return AttentionShape(
        n_heads=n_heads,
        n_key_heads=n_heads // int(getattr(layer, "num_key_value_groups", 1)),
        head_dim=head_dim,
        d_model=int(config.hidden_size),
        layer=int(layer.layer_idx),
        train_length=int(config.max_position_embeddings),
    )


def own_softmax(layer: Any) -> AttentionSoftmax:
    """The layer's own normaliser: plain softmax, or softmax with a soft cap (Gemma 2) or with sinks (gpt-oss)."""
    shape = shape_of(layer)
    cap, sinks = getattr(layer, "attn_logit_softcapping", None), getattr(layer, "sinks", None)
    if cap is not None:
        return SoftCap(shape, cap=float(cap))
    if isinstance(sinks, nn.Parameter):
        sink = Sink(shape, init_logit=0.0)
        sink.logit = sinks
        return sink
    return Softmax(shape)


def replacement(layer: Any, *, make_softmax: MakeSoftmax) -> AttentionSoftmax:
    """The new normaliser of the layer. Raises UserError if it would drop the layer's own soft cap or sinks."""
    softmax = make_softmax(shape_of(layer))
    own = own_softmax(layer)
    keeps = isinstance(softmax, type(own)) and not (isinstance(softmax, SoftCap) and softmax.cap != own.cap)
    if isinstance(own, SoftCap | Sink) and not keeps:
        cap = f" at {own.cap:g}" if isinstance(own, SoftCap) else ""
        raise UserError(f"the model has a {type(own).__name__}{cap} in its softmax; {type(softmax).__name__} drops it")
    if isinstance(own, Sink) and isinstance(softmax, Sink):
        if softmax.logit.any():
            raise UserError("softmax=sink keeps the sinks that this model has learned; leave out softmax.init_logit")
        softmax.logit = own.logit
    return softmax


def remember_input(layer: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> None:
    """Keep a layer's input until the layer calls its attention, for normalisers that read it (`row_parameters`)."""
    layer.__dict__[INPUT] = args[0] if args else options["hidden_states"]


def remember_positions(
    layers: list[nn.Module], decoder: nn.Module, args: tuple[Any, ...], options: dict[str, Any]
) -> None:
    """Keep the positions that the decoder is given, for encodings that act inside the layers."""
    for layer in layers:
        layer.__dict__[POSITIONS] = options.get("position_ids")


def check_input_taken(layer: nn.Module, args: tuple[Any, ...], output: Any) -> None:
    """Raises UserError if a layer did not call its attention: its normaliser would have no effect."""
    if layer.__dict__.pop(INPUT, None) is not None:
        raise UserError(f"{type(layer).__name__} does not call the attention that it is given; it cannot be patched")


def ask_for_weights(
    layers: list[nn.Module], model: PreTrainedModel, args: tuple[Any, ...], options: dict[str, Any]
) -> None:
    """Note in each layer whether `output_attentions` is set: some models do not pass it to their layers."""
    asked = options.get("output_attentions")
    for layer in layers:
        layer.__dict__[ASKED] = model.config.output_attentions if asked is None else asked


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: ModelKeys | Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    indices: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, Tensor | None]:
    """The function that models call: queries [B, H, Q, C], keys and values [B, G, K, C] -> output [B, Q, H, C].

    Also returns the weights [B, H, Q, K] if `output_attentions` is set, else None.
    """
    softmax, encoding, name = getattr(module, SLOT, None), getattr(module, ENCODING, None), type(module).__name__
    x_BTD = module.__dict__.pop(INPUT, None)
    if not isinstance(softmax, AttentionSoftmax) or not isinstance(encoding, PositionalEncoding) or x_BTD is None:
        raise UserError(f"{name} calls its attention twice in a layer, or in a form that roundround does not know")
    if not isinstance(attention_mask, ModelKeys):
        raise UserError("the model makes its own attention mask; roundround would ignore it and lose causality")
    own = type(softmax).__name__
    n_chosen = key.shape[2] if indices is None else indices.shape[-1]  # keys that an indexer chose for each query
    eager = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    read = {} if eager is None else inspect.signature(eager).parameters  # the mask has `sliding_window`
    unknown = [key for key in others if key in read and others[key] is not None and key != "sliding_window"]
    for dropped, what in (
        (unknown, f"{', '.join(unknown)} that roundround does not know"),  # such as the sinks of Inkling 2
        (attention_mask.of_no_layer, "a layer with a window of 0 tokens"),
        (key.shape[2] > attention_mask.n_given, "keys that its mask does not know"),  # DeepSeek-V4's compressed keys
        (dropout, "dropout; call model.eval()"),
        (n_chosen < key.shape[2], f"an indexer that hides keys of texts longer than {n_chosen:,} tokens"),
        (softcap is not None and not isinstance(softmax, SoftCap), f"a cap on its logits, which {own} drops"),
        (s_aux is not None and not isinstance(softmax, Sink), f"sinks, which {own} drops"),
    ):
        if dropped:
            raise UserError(f"roundround cannot replace the attention of {name}, which has {what}")
    if isinstance(softmax, Sink) and s_aux is not None:
        softmax.logit = s_aux if isinstance(s_aux, nn.Parameter) else nn.Parameter(s_aux)
    keys = attention_mask.at(module.__dict__.get(POSITIONS))
    of_encoding, of_softmax = (x_BTD.to(next(part.parameters(), x_BTD).dtype) for part in (encoding, softmax))
    given = (query, key[:, :, : keys.n_keys], value[:, :, : keys.n_keys])  # a static cache has empty rows at its end
    (q, k, v), bias, prepared = encoded(encoding, *given, of_encoding, keys)
    options: dict[str, Any] = {
        "scale": query.shape[-1] ** -0.5 if scaling is None else scaling,
        "keys": keys,
        "bias": bias if position_bias is None else GivenBias(position_bias),
        "rows": softmax.row_parameters(of_softmax),
    }
    out_BHQC = encoding.rotate_outputs(softmax(q, k, v, **options), prepared)
    asked = module.__dict__.get(ASKED) or others.get("output_attentions")
    alpha_BHQK = softmax.all_weights(q, k, **options) if asked else None
    return out_BHQC.transpose(1, 2).contiguous(), alpha_BHQK


# -- the mask: which query sees which key, without a mask tensor


@dataclass(frozen=True, kw_only=True)
class ModelKeys(Keys):
    """Keys in place of a mask tensor, with the few operations that models apply to a mask.

    A model can slice this object along the axis of queries. An indexer takes the one head of the mask and gets a
    tensor, True at visible keys. Generation with a static cache makes the object before it
    calls the model; `mask` then returns the same object. n_given: the number of keys for which the model requested the
    mask, including keys after the last visible one. of_no_layer: whether the window has 0 tokens; no layer can then use
    the mask (as in a Qwen2 MoE model without windows).
    """

    ndim: ClassVar[int] = 4
    n_given: int
    of_no_layer: bool = False

    def contiguous(self) -> ModelKeys:
        return self

    def at(self, pos_BQ: Tensor | None) -> ModelKeys:
        """The same with the positions of the text; `pos_BQ` are those that the model is given for the queries.

        Without them, and with a cache, positions count from the first token that is not padding.
        """
        if pos_BQ is not None and pos_BQ.dim() == 2 and pos_BQ.shape[1] == self.n_queries == self.n_keys:
            return replace(self, q_pos_BQ=pos_BQ, k_pos_BK=pos_BQ)
        pos_BK = self.k_pos_BK if self.valid_BK is None else (self.valid_BK.cumsum(-1) - 1).clamp(min=0)
        pos_BK = pos_BK + (self.n_forgotten.flatten(1) if isinstance(self.n_forgotten, Tensor) else self.n_forgotten)
        return replace(self, q_pos_BQ=pos_BK[:, self.q_pos_BQ[0]], k_pos_BK=pos_BK)

    def __getitem__(self, index: Any) -> ModelKeys | Tensor:
        every, whole = range(self.n_keys), slice(None)
        if index in ((whole, 0), (whole, 0, whole, whole)):
            return self.visible(0, self.n_queries)[:, 0]
        known = isinstance(index, tuple) and len(index) == 4 and index[:2] == (whole, whole)
        if not known or not all(isinstance(part, slice) for part in index[2:]) or every[index[3]] != every:
            raise UserError(f"the model slices its attention mask by [{index}], which roundround does not know")
        return replace(self, q_pos_BQ=self.q_pos_BQ[:, index[2]])


def mask(
    *,
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Tensor],
    attention_mask: Tensor | ModelKeys | None = None,
    local_size: int | None = None,
    device: torch.device | str = "cpu",
    **others: Any,
) -> ModelKeys:
    """The registered mask function. It returns an object that the model hands to `attention` in place of a mask.

    local_size: the length of a window or of a chunk. Raises UserError if the model's own mask hides keys that
    causality, the window or the chunk, and padding leave visible.
    """
    if isinstance(attention_mask, ModelKeys):
        return attention_mask
    offset = int(q_offset) - kv_offset
    n_keys = min(kv_length, offset + q_length)
    valid_BK = begins = None
    n_forgotten: Tensor | int = kv_offset  # keys that the cache of a window has dropped; some normalisers count them
    if attention_mask is not None:
        n_forgotten = attention_mask[:, :kv_offset].bool().sum(-1)[:, None, None, None] if kv_offset else 0
        valid_BK = attention_mask[:, kv_offset : kv_offset + n_keys].bool()
        if bool(valid_BK.all()):
            valid_BK = None
    keys = ModelKeys(
        q_pos_BQ=torch.arange(n_keys - q_length, n_keys, device=device)[None],
        k_pos_BK=torch.arange(n_keys, device=device)[None],
        valid_BK=valid_BK,
        window=None if not local_size or local_size >= n_keys else local_size,
        of_no_layer=local_size == 0,
        n_given=kv_length,
        n_forgotten=n_forgotten,
    )
    if kv_offset:  # chunks count from the first token that is not padding, and the cache has dropped it
        padding = 0 if attention_mask is None else (attention_mask.cumsum(-1) == 0).sum(-1)[:, None, None]
        begins = (padding - kv_offset) % (local_size or 1)
    chunked = replace(keys, window=None, chunk=local_size or None, begins=begins)
    for known in (keys, chunked):
        if known.of_no_layer or agrees(known, mask_function, int(q_offset), kv_offset, batch_size):
            return known
    raise UserError(
        "the model's attention mask is neither causal nor a sliding window nor chunks; roundround cannot replace it"
    )


def agrees(keys: Keys, mask_function: Callable[..., Tensor], q_offset: int, kv_offset: int, batch_size: int) -> bool:
    """Whether the model's own mask equals `keys`, except for padding. A large mask is compared on a sample.

    The sample has all keys of four queries and, for every query, the keys at distances 0, 1, 2, 4, 8, ... to either
    side, the keys at the edge of the window, and AT_RANDOM random keys. So it finds every difference next to the
    diagonal or to the edge of the window. A difference elsewhere that covers R queries and K of the N keys is missed
    with a probability of about exp(-AT_RANDOM R K / N).
    """
    row_Q = torch.arange(keys.n_queries, device=keys.k_pos_BK.device)
    column_K = torch.arange(keys.n_keys, device=row_Q.device)
    if batch_size * len(row_Q) * len(column_K) <= ALL_PAIRS:
        rows, columns = row_Q[:, None], column_K[None]
    else:
        rows, columns = some_pairs(keys)
    seen = (columns >= keys.first_visible(rows)) & (columns < keys.end_visible(rows))  # [B, ...] after padding
    batch_B111 = torch.arange(batch_size, device=row_Q.device)[:, None, None, None]
    theirs = mask_function(
        batch_B111, torch.zeros_like(batch_B111[:1]), rows[None, None] + q_offset, columns[None, None] + kv_offset
    )
    alike = theirs == (seen[:, None] if seen.ndim == 3 else seen)
    return bool((alike if keys.valid_BK is None else alike | ~keys.valid_BK[:, columns][:, None]).all())


def some_pairs(keys: Keys) -> tuple[Tensor, Tensor]:
    """Rows and columns of the sample of `agrees`, [1, N] each; N grows with Q log K."""
    row_Q = torch.arange(keys.n_queries, device=keys.k_pos_BK.device)
    last = keys.n_keys - keys.n_queries
    steps = [2**i for i in range(keys.n_keys.bit_length())]
    window = [end for size in (keys.window, keys.chunk) if size is not None for end in (size - 1, size)]
    distance_D = torch.tensor(sorted({0, *steps, *(-n for n in steps), *window}), device=row_Q.device)
    column_DQ = row_Q + last - distance_D[:, None]
    there_DQ = (column_DQ >= 0) & (column_DQ < keys.n_keys)
    whole_R = row_Q[[0, len(row_Q) // 3, len(row_Q) // 2, -1]]
    seeded = torch.Generator().manual_seed(0)
    anywhere = torch.randint(keys.n_keys, (AT_RANDOM * len(row_Q),), generator=seeded).to(row_Q.device)
    every_key = torch.arange(keys.n_keys, device=row_Q.device)
    rows = [row_Q.expand_as(column_DQ)[there_DQ], whole_R.repeat_interleave(keys.n_keys), row_Q.repeat(AT_RANDOM)]
    columns = [column_DQ[there_DQ], every_key.repeat(len(whole_R)), anywhere]
    return torch.cat(rows)[None], torch.cat(columns)[None]
