"""This project's attention inside a Hugging Face model: one registered attention function; its mask is in mask.py.

`installed(model)` gives every attention layer of the model a normaliser as a submodule, and lets the model call it in
place of its own attention. Hooks on the normalisers then see the queries, keys and values of every layer, as in the
decoder of this project.
Shapes: B batch, Q queries, K keys, H heads, G key heads, C head channels, D model width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from roundround.attention.keys import AttentionShape
from roundround.loading.patching.mask import ModelKeys, mask
from roundround.softmax.base import AttentionSoftmax
from roundround.softmax.sink import Sink
from roundround.softmax.soft_cap import SoftCap
from roundround.softmax.softmax import Softmax
from roundround.support.errors import UserError

NAME = "roundround"  # of the attention implementation
SLOT = "roundround_softmax"  # of the submodule of each attention layer
INPUT = "roundround_input"  # of what an attention layer was called with, until its attention is
ASKED = "roundround_asked"  # of whether the weights of attention are asked for in this pass

MakeSoftmax = Callable[[AttentionShape], AttentionSoftmax]


@contextmanager
def installed(model: PreTrainedModel, make_softmax: MakeSoftmax | None = None) -> Iterator[list[AttentionSoftmax]]:
    """Run the model's attention through normalisers of this project inside the block; yields them by layer.

    `make_softmax` None keeps what the model has (softmax, soft cap or sinks). Raises UserError where the model's
    attention cannot be replaced, or does something that the given normaliser would drop.
    """
    before = install(model, make_softmax)
    try:
        yield normalisers_of(model)
    finally:
        remove(model, before)


def install(model: PreTrainedModel, make_softmax: MakeSoftmax | None = None) -> list[tuple[Any, str | None]]:
    """Begin what `installed` does; returns the model's configs with the attention that each had, for `remove`."""
    if getattr(model.config, "is_encoder_decoder", False):
        raise UserError(f"{type(model).__name__} has an encoder; roundround looks inside decoders alone")
    layers = attention_layers(model)
    if is_patched(model):
        raise UserError("the model is patched already; take that patch off first")
    make = own_softmax if make_softmax is None else partial(replacement, make_softmax=make_softmax)
    made = [make(layer, number) for number, layer in enumerate(layers)]
    before = [(config, config._attn_implementation) for config in configs_of(model)]
    try:
        for layer, softmax in zip(layers, made, strict=True):
            own = next(layer.parameters())
            if own.device.type != "meta":  # offloaded weights: what runs, runs on the CPU
                softmax.to(own.device)
            layer.add_module(SLOT, softmax.train(layer.training))
            hooks = [
                layer.register_forward_pre_hook(remember_input, with_kwargs=True),
                layer.register_forward_hook(check_input_taken),
            ]
            if layer is layers[0]:
                hooks += [
                    model.register_forward_pre_hook(partial(ask_for_weights, layers), with_kwargs=True),
                    model.register_forward_hook(partial(check_weights_given, layers)),
                ]
            object.__setattr__(softmax, "layer_hooks", hooks)
        AttentionInterface.register(NAME, attention)
        AttentionMaskInterface.register(NAME, mask)
        model.set_attn_implementation(NAME)
    except BaseException as error:
        remove(model, before)
        if isinstance(error, ValueError | KeyError | ImportError):
            raise UserError(f"{type(model).__name__} does not let its attention be replaced: {error}") from error
        raise
    return before


def remove(model: PreTrainedModel, before: list[tuple[Any, str | None]]) -> None:
    """End what `install` began."""
    for layer in attention_layers(model):
        softmax = layer._modules.pop(SLOT, None)
        if isinstance(softmax, AttentionSoftmax):
            for hook in softmax.layer_hooks:  # type: ignore[union-attr]
                hook.remove()
        layer.__dict__.pop(INPUT, None)
        layer.__dict__.pop(ASKED, None)
    for config, name in before:
        config._attn_implementation = name


def configs_of(model: PreTrainedModel) -> list[Any]:
    """The configs of the model and of the models in it, the outermost first."""
    found = {id(m.config): m.config for m in model.modules() if isinstance(m, PreTrainedModel)}
    return list(found.values())


def text_decoder(model: PreTrainedModel) -> nn.Module:
    """The text decoder without its head; what reads images, in a model that does, lies outside."""
    decoder: nn.Module | None = model.get_decoder()
    return model.base_model if decoder is None or decoder is model else decoder


def attention_layers(model: nn.Module) -> list[nn.Module]:
    """The self-attention modules of a decoder, by layer. UserError where there is none of a known form."""
    inside = text_decoder(model) if isinstance(model, PreTrainedModel) else model
    found = [
        m
        for m in inside.modules()
        if hasattr(m, "layer_idx") and hasattr(m, "scaling") and hasattr(m, "config") and size_of_head(m)
    ]
    if not found:
        raise UserError(
            f"{type(model).__name__} has no attention layers of a known form; roundround cannot look inside"
        )
    return sorted(found, key=lambda m: int(m.layer_idx))  # type: ignore[arg-type]


def normalisers_of(model: nn.Module) -> list[AttentionSoftmax]:
    """The normalisers of a model with an installed attention, by layer."""
    return [m for layer in attention_layers(model) if isinstance(m := getattr(layer, SLOT, None), AttentionSoftmax)]


def is_patched(model: nn.Module) -> bool:
    """Whether the model's attention runs through normalisers of this project."""
    return any(hasattr(layer, SLOT) for layer in attention_layers(model))


def size_of_head(layer: nn.Module) -> int | None:
    """Channels of a head, which architectures keep under two names."""
    size = getattr(layer, "head_dim", None) or getattr(layer, "head_size", None)
    return int(size) if isinstance(size, int) else None


def shape_of(layer: Any, number: int) -> AttentionShape:
    """The sizes of an attention layer of a Hugging Face model."""
    config, head_dim = layer.config, size_of_head(layer)
    assert head_dim is not None
    n_heads = int(config.num_attention_heads)
    return AttentionShape(
        n_heads=n_heads,
        n_key_heads=n_heads // int(getattr(layer, "num_key_value_groups", 1)),
        head_dim=head_dim,
        d_model=int(config.hidden_size),
        layer=number,
        train_length=int(config.max_position_embeddings),
    )


def own_softmax(layer: Any, number: int) -> AttentionSoftmax:
    """What the layer has by itself: the softmax, with a soft cap (Gemma 2) or a sink a head (gpt-oss)."""
    shape = shape_of(layer, number)
    cap, sinks = soft_cap_of(layer), sinks_of(layer)
    if cap is not None:
        return SoftCap(shape, cap=cap)
    if sinks is not None:
        sink = Sink(shape, init_logit=0.0)
        sink.logit = sinks
        return sink
    return Softmax(shape)


def replacement(layer: Any, number: int, *, make_softmax: MakeSoftmax) -> AttentionSoftmax:
    """Another normaliser for the layer; UserError where what the layer has would be lost."""
    softmax = make_softmax(shape_of(layer, number))
    own = own_softmax(layer, number)
    if isinstance(own, SoftCap) and not (isinstance(softmax, SoftCap) and softmax.cap == own.cap):
        raise UserError(
            f"this model caps its logits at {own.cap:g} inside its softmax; {type(softmax).__name__} would drop the "
            "cap, so it is refused"
        )
    if isinstance(own, Sink) and not isinstance(softmax, Sink):
        raise UserError(
            f"this model has learned a sink for every head; {type(softmax).__name__} would drop it, so it is refused"
        )
    if isinstance(own, Sink) and isinstance(softmax, Sink):
        softmax.logit = own.logit
    return softmax


def soft_cap_of(layer: Any) -> float | None:
    cap = getattr(layer, "attn_logit_softcapping", None)
    return None if cap is None else float(cap)


def sinks_of(layer: Any) -> nn.Parameter | None:
    sinks = getattr(layer, "sinks", None)
    return sinks if isinstance(sinks, nn.Parameter) else None


def remember_input(layer: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> None:
    """Keep a layer's input for normalisers that read it (`row_parameters`), until its attention is called."""
    layer.__dict__[INPUT] = args[0] if args else options["hidden_states"]


def check_input_taken(layer: nn.Module, args: tuple[Any, ...], output: Any) -> None:
    """UserError where a layer came to its output without calling its attention: a normaliser would be ignored."""
    if layer.__dict__.pop(INPUT, None) is not None:
        raise UserError(f"{type(layer).__name__} does not call the attention that it is given; it cannot be replaced")


def ask_for_weights(
    layers: list[nn.Module], model: PreTrainedModel, args: tuple[Any, ...], options: dict[str, Any]
) -> None:
    """Tell each layer whether `output_attentions` is given: some models do not hand it on."""
    asked = options.get("output_attentions")
    for layer in layers:
        layer.__dict__[ASKED] = model.config.output_attentions if asked is None else asked


def check_weights_given(layers: list[nn.Module], model: PreTrainedModel, args: tuple[Any, ...], output: Any) -> None:
    """UserError where weights were asked for and the model left them behind on their way."""
    asked = [layer.__dict__.pop(ASKED, False) for layer in layers]
    if not any(asked) or isinstance(output, tuple):
        return
    given = [alpha for alpha in getattr(output, "attentions", None) or () if alpha is not None]
    if len(given) < len(layers):
        raise UserError(
            f"{type(model).__name__} does not hand on the weights of its attention; leave out output_attentions"
        )


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
    **others: Any,
) -> tuple[Tensor, Tensor | None]:
    """What Hugging Face models call: queries [B, H, Q, C], keys and values [B, G, K, C] -> output [B, Q, H, C].

    Also the weights [B, H, Q, K] where `output_attentions` asks for them.
    """
    softmax = getattr(module, SLOT, None)
    if not isinstance(softmax, AttentionSoftmax):
        raise UserError(f"{type(module).__name__} calls its attention in a form that roundround does not know")
    if not isinstance(attention_mask, ModelKeys):
        raise UserError("the model makes its own attention mask; roundround would lose causality, so it is refused")
    if key.shape[2] > attention_mask.n_given:  # DeepSeek-V4 adds compressed ones
        raise UserError(f"{type(module).__name__} attends to keys that its mask does not know; they would be dropped")
    if dropout or position_bias is not None:
        raise UserError("dropout and position biases inside the model's attention are not supported; call model.eval()")
    if softcap is not None and not isinstance(softmax, SoftCap):
        raise UserError(f"the model caps its logits at {softcap:g}, which {type(softmax).__name__} would drop")
    if s_aux is not None:
        if not isinstance(softmax, Sink):
            raise UserError(f"the model has sinks, which {type(softmax).__name__} would drop")
        softmax.logit = s_aux if isinstance(s_aux, nn.Parameter) else nn.Parameter(s_aux)
    x_BTD = module.__dict__.pop(INPUT, None)
    if x_BTD is None:
        raise UserError(f"{type(module).__name__} calls its attention twice a layer, which roundround does not know")
    parameter = next(softmax.parameters(), None)
    if parameter is not None:
        x_BTD = x_BTD.to(parameter.dtype)
    n_keys = attention_mask.n_keys  # a static cache has room behind the last key
    options: dict[str, Any] = {
        "scale": query.shape[-1] ** -0.5 if scaling is None else scaling,
        "keys": attention_mask,
        "bias": None,
        "rows": softmax.row_parameters(x_BTD),
    }
    q, k, v = query, key[:, :, :n_keys], value[:, :, :n_keys]
    out_BHQC = softmax(q, k, v, **options)
    asked = module.__dict__.get(ASKED) or others.get("output_attentions")
    alpha_BHQK = softmax.all_weights(q, k, **options) if asked else None
    return out_BHQC.transpose(1, 2).contiguous(), alpha_BHQK
