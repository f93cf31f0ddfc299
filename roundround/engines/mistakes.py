"""Mistakes of position that engines make, each as another config or as an edit of the model's code.

A mistake is replayed by transformers itself: a model with the changed config, or with patched functions and modules.
Letters: B batch, T tokens, H heads, C head channels.

Tested by tests/engines/test_suite.py.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel
from transformers.masking_utils import create_sliding_window_causal_mask

Edit = Callable[[PreTrainedModel], AbstractContextManager[None]]
Rope = dict[str, Any]

FAR = 2**20  # tokens: a window or a chunk that hides nothing
KINDS = ("sliding_attention", "full_attention", "chunked_attention")
NEIGHBOURS = ("glm4", "cohere2", "llama4_text", "ernie4_5", "gptj", "helium", "deepseek_v3")  # pair channels 2m, 2m + 1
ROTATIONS = ("apply_rotary_pos_emb", "apply_rotary_pos_emb_interleave", "apply_rotary_emb")  # in modelling code
NORMS = ("q_norm", "k_norm", "q_layernorm", "k_layernorm", "qk_norm")
BASE, SCALING, WINDOW = "the base is 10,000", "the scaling is ignored", "the window is ignored"
PARTIAL, TEMPERATURE = "the partial rotation is ignored", "the temperature by position is dropped"
TOGETHER = [(BASE, SCALING), (BASE, WINDOW), (SCALING, WINDOW), (BASE, PARTIAL)]  # a part of the config is not read


Config = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """A mistake.

    changes: the values that the mistake changes in a config.json, for a given config. edits: changes of a model, each
    undone at the end of its block.
    """

    name: str
    changes: Callable[[Config], Config] = lambda config: {}
    edits: tuple[Edit, ...] = ()

    def __and__(self, other: Mistake) -> Mistake:
        """Both mistakes at once."""

        def changes(config: Config) -> Config:
            first = self.changes(config)
            return {**first, **other.changes({**config, **first})}

        return Mistake(name=f"{self.name}, and {other.name}", changes=changes, edits=self.edits + other.edits)

    @contextmanager
    def made_in(self, model: PreTrainedModel) -> Iterator[None]:
        """Make the edits inside the block."""
        with ExitStack() as undo:
            for edit in self.edits:
                undo.enter_context(edit(model))
            yield


def mistakes_of(config: Config, model: PreTrainedModel) -> list[Mistake]:
    """The mistakes that a family can suffer, single ones and pairs that occur together.

    config: the values of its config.json, without the defaults of its class.
    """
    found = {one.name: one for one in (*of_the_rope(config), *of_the_config(config), *of_the_code(model))}
    pairs = [(a, b) for a, b in TOGETHER if a in found and b in found]
    return [*found.values(), *(found[a] & found[b] for a, b in pairs)]


# -- mistakes in reading config.json


def ropes(config: Config) -> dict[str, Rope]:
    """The `rope_parameters` of each kind of layers, or of all layers under the name ""."""
    own = config.get("rope_parameters") or {}
    return {kind: own[kind] for kind in KINDS if kind in own} or {"": own}


def is_scaled(rope: Rope) -> bool:
    return rope.get("rope_type", "default") not in ("default", "proportional")


def of_ropes(name: str, change: Callable[[Rope], Rope], *, only: Callable[[Rope], bool] = lambda rope: True) -> Mistake:
    """A mistake in the `rope_parameters` of every kind of layers that `only` is true of."""

    def changes(config: Config) -> Config:
        changed = {kind: change(rope) if only(rope) else rope for kind, rope in ropes(config).items()}
        return {"rope_parameters": changed.get("", changed)}

    return Mistake(name=name, changes=changes)


def of_the_rope(config: Config) -> Iterator[Mistake]:
    """Mistakes in reading `rope_parameters`."""
    by_kind = ropes(config)
    if by_kind == {"": {}}:  # GPT-J: its base is a number in the code
        return
    scaled = next(filter(is_scaled, by_kind.values()), {})
    yield of_ropes(BASE, lambda rope: {**rope, "rope_theta": 1e4})
    if "full_attention" in by_kind:
        local, far = (by_kind[kind]["rope_theta"] for kind in KINDS[:2])
        if local != far:
            yield of_ropes("full layers have the base of windowed ones", lambda rope: {**rope, "rope_theta": local})
            yield of_ropes("windowed layers have the base of full ones", lambda rope: {**rope, "rope_theta": far})
        if scaled:
            name = "the scaling acts on windowed layers too"
            yield of_ropes(name, lambda rope: {**scaled, "rope_theta": rope["rope_theta"]})
    if scaled:
        yield of_ropes(SCALING, lambda rope: {**rope, "rope_type": "default"}, only=is_scaled)
    match scaled.get("rope_type"):
        case "yarn":
            exact = scaled.get("truncate", True)
            name = f"the bounds of YaRN are {'not ' if exact else ''}rounded"
            yield of_ropes(name, lambda rope: {**rope, "truncate": not exact}, only=is_scaled)
        case "longrope":
            swapped = {"short_factor": "long_factor", "long_factor": "short_factor"}
            name = "short and long factors are exchanged"
            yield of_ropes(name, lambda rope: {key: rope[swapped.get(key, key)] for key in rope})
        case "llama3":
            name = "the bounds of llama3 scaling follow the new length"
            old, slow, fast = "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"
            yield of_ropes(name, lambda rope: {**rope, old: int(rope[old] * rope["factor"])})
            yield of_ropes("llama3 scaling has no part in between", lambda rope: {**rope, fast: rope[slow] * 1.001})
    if scaled.get("rope_type") in ("yarn", "longrope") and "mscale" not in scaled:
        yield of_ropes(
            "the attention factor is dropped", lambda rope: {**rope, "attention_factor": 1.0}, only=is_scaled
        )
    if scaled.get("llama_4_scaling_beta"):
        yield of_ropes(TEMPERATURE, lambda rope: {**rope, "llama_4_scaling_beta": 0.0})
    for rope_type, name in (("default", PARTIAL), ("proportional", "p-RoPE rotates all pairs")):
        if any("partial_rotary_factor" in rope and rope["rope_type"] == rope_type for rope in by_kind.values()):
            yield of_ropes(name, lambda rope: {**rope, "partial_rotary_factor": 1.0})


def of_the_config(config: Config) -> Iterator[Mistake]:
    """Mistakes in reading the other keys about positions."""

    def of_key(name: str, key: str, value: Any) -> Mistake:
        return Mistake(name=name, changes=lambda config: {key: value})

    if rotates := config.get("no_rope_layers"):
        yield of_key("all layers rotate", "no_rope_layers", [1] * len(rotates))
        yield of_key("no layer rotates", "no_rope_layers", [0] * len(rotates))
        yield of_key("the list of layers that rotate is inverted", "no_rope_layers", [1 - one for one in rotates])
        yield of_key("the list of layers that rotate is shifted", "no_rope_layers", rotates[1:] + rotates[:1])
    if window := config.get("sliding_window"):
        yield of_key(WINDOW, "sliding_window", FAR)
        yield of_key("the window is one token too long", "sliding_window", window + 1)
        yield of_key("the window is one token too short", "sliding_window", window - 1)
    for key, name, value in (
        ("attention_chunk_size", "the chunks are ignored", FAR),
        ("attn_logit_softcapping", "the soft cap of attention is dropped", None),
        ("final_logit_softcapping", "the soft cap of the output is dropped", None),
        ("query_pre_attn_scalar", "the scale of the logits is the default", config.get("head_dim")),
        ("attention_multiplier", "the scale of the logits is the default", config.get("head_dim", 1) ** -0.5),
        ("floor_scale", TEMPERATURE, FAR),
    ):
        if config.get(key):
            yield of_key(name, key, value)


# -- mistakes in code


@contextmanager
def replaced(owner: Any, **attributes: Any) -> Iterator[None]:
    """Replace attributes of a module or a class of the modelling code inside the block."""
    own = {name: getattr(owner, name) for name in attributes}
    for name, value in attributes.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in own.items():
            setattr(owner, name, value)


def code_of(model: PreTrainedModel) -> Any:
    """The module of transformers in which the model's class is defined."""
    return sys.modules[type(model).__module__]


def attentions(model: PreTrainedModel) -> list[nn.Module]:
    return [m for m in model.modules() if hasattr(m, "layer_idx") and type(m).__name__.endswith("Attention")]


def of_the_code(model: PreTrainedModel) -> Iterator[Mistake]:
    """Mistakes that no config expresses."""
    code, config = code_of(model), model.config
    kinds = set(getattr(config, "layer_types", None) or [])
    full, window = (getattr(code, f"create_{name}causal_mask", None) for name in ("", "sliding_window_"))
    layer = attentions(model)[0]

    def mistake(name: str, edit: Edit) -> Mistake:
        return Mistake(name=name, edits=(edit,))

    way = "in halves" if config.model_type in NEIGHBOURS else "as neighbours"
    yield mistake(f"channels are paired {way}", other_pairing)
    if rotated(model) < head_dim(model):
        yield mistake("the other end of each head rotates", other_end)
    if {"sliding_attention", "full_attention"} <= kinds:
        yield mistake("all layers have the window", lambda model: replaced(code, create_causal_mask=window))
        both = {"create_causal_mask": window, "create_sliding_window_causal_mask": full}
        yield mistake("the wrong layers have the window", lambda model: replaced(code, **both))
    if "chunked_attention" in kinds:
        yield mistake("chunks are windows", lambda model: replaced(code, create_chunked_causal_mask=window_of_a_chunk))
        chunk = code.create_chunked_causal_mask
        yield mistake("all layers have chunks", lambda model: replaced(code, create_causal_mask=chunk))
    if getattr(layer, "num_key_value_groups", 1) > 1 and hasattr(code, "repeat_kv"):
        wrong = {"repeat_kv": lambda x_BGTC, n: x_BGTC.repeat(1, n, 1, 1)}
        yield mistake("key heads are repeated in the wrong order", lambda model: replaced(code, **wrong))
    if any(name.endswith("sinks") for name, _ in model.named_parameters()):
        yield mistake("the sinks are dropped", without_sinks)
    if any(hasattr(layer, name) for name in NORMS):
        yield mistake("queries and keys are not normalised", without_norms)
        if any(getattr(layer, name, None) is not None and hasattr(getattr(layer, name), "weight") for name in NORMS):
            yield mistake("queries and keys are normalised after the rotation", norms_after_rotation)
    if config.model_type in ("cohere2", "exaone4"):
        yield mistake("layers without a window rotate", all_rotate)
    if model.config.model_type != "gptj":  # its table is not made in a forward pass
        yield mistake("angles are bfloat16", lambda model: rotary_calls(model, RoundedAngles))
        yield mistake("positions are bfloat16", lambda model: rotary_calls(model, RoundedPositions))


def head_dim(model: PreTrainedModel) -> int:
    """Channels of the part of a head that has the rotated channels."""
    config = model.config
    own = getattr(config, "qk_rope_head_dim", None) or getattr(config, "head_dim", None)
    return int(own or config.hidden_size // config.num_attention_heads)


def rotated(model: PreTrainedModel) -> int:
    """Channels of a head that rotate in some layer; for p-RoPE all, because its slow pairs are spread over the head."""
    shares = [
        1.0 if rope.get("rope_type") == "proportional" else rope.get("partial_rotary_factor", 1.0)
        for rope in ropes(model.config.to_dict()).values()
    ]
    return int(getattr(model.config, "rotary_dim", None) or max(shares) * head_dim(model))


def around_rotation(
    model: PreTrainedModel, before: Callable[[Tensor], Tensor], after: Callable[[Tensor], Tensor]
) -> AbstractContextManager[None]:
    """Apply `before` to queries and keys in front of their rotation, and `after` behind it; both [..., C]."""

    def wrapped(rotate: Callable[..., Any]) -> Callable[..., Any]:
        names = [*inspect.signature(rotate).parameters][:2]
        n_vectors = 2 if names[1] in ("k", "xk") else 1

        def call(*args: Any, **options: Any) -> Any:
            args = (*args, *(options.pop(name) for name in names[len(args) : n_vectors]))
            made = rotate(*(before(x) for x in args[:n_vectors]), *args[n_vectors:], **options)
            return tuple(after(x) for x in made) if isinstance(made, tuple) else after(made)

        return call

    code = code_of(model)
    return replaced(code, **{name: wrapped(getattr(code, name)) for name in ROTATIONS if hasattr(code, name)})


def other_pairing(model: PreTrainedModel) -> AbstractContextManager[None]:
    """Channels m and m + n / 2 rotate where 2m and 2m + 1 should, or the reverse."""
    n = rotated(model)
    halves = torch.arange(n).view(-1, 2).T.reshape(-1)  # brings channels 2m, 2m + 1 to m, m + n / 2
    order = torch.argsort(halves) if model.config.model_type in NEIGHBOURS else halves

    def moved(x: Tensor, index: Tensor) -> Tensor:
        return torch.cat([x[..., :n][..., index], x[..., n:]], -1)

    return around_rotation(model, partial(moved, index=order), partial(moved, index=torch.argsort(order)))


def other_end(model: PreTrainedModel) -> AbstractContextManager[None]:
    """The last channels of a head rotate where the first should."""
    n, whole = rotated(model), head_dim(model)

    def moved(x: Tensor, by: int) -> Tensor:
        return torch.roll(x, by, -1) if x.shape[-1] == whole else x

    return around_rotation(model, partial(moved, by=n), partial(moved, by=-n))


def window_of_a_chunk(config: Any, **options: Any) -> Any:
    """The mask of a window that is as long as the config's chunks."""
    changed = copy(config)
    changed.sliding_window = config.attention_chunk_size
    return create_sliding_window_causal_mask(config=changed, **options)


@contextmanager
def without_sinks(model: PreTrainedModel) -> Iterator[None]:
    for name, parameter in model.named_parameters():
        if name.endswith("sinks"):
            parameter.data.fill_(-1e4)
    yield


@contextmanager
def without_norms(model: PreTrainedModel) -> Iterator[None]:
    for layer in attentions(model):
        for name in NORMS:
            if hasattr(layer, name):
                setattr(layer, name, nn.Identity())
    yield


@contextmanager
def norms_after_rotation(model: PreTrainedModel) -> Iterator[None]:
    """Queries and keys are rotated first, then normalised."""
    pending: list[nn.Module] = []  # norms of the layer that runs, in the order of their use

    def remember(layer: nn.Module, args: Any, *, norms: list[nn.Module]) -> None:
        pending[:] = norms

    for layer in attentions(model):
        norms = [getattr(layer, name) for name in NORMS if hasattr(layer, name)]
        layer.register_forward_pre_hook(partial(remember, norms=norms))

    def normalised(x_BHTC: Tensor) -> Tensor:
        if not pending:
            return x_BHTC
        norm = pending.pop(0)
        if cast(Tensor, norm.weight).numel() <= x_BHTC.shape[-1]:
            return cast(Tensor, norm(x_BHTC))
        n_heads = x_BHTC.shape[1]  # a norm over all heads
        return cast(Tensor, norm(x_BHTC.transpose(1, 2).flatten(2))).unflatten(2, (n_heads, -1)).transpose(1, 2)

    with without_norms(model), around_rotation(model, lambda x: x, normalised):
        yield


@contextmanager
def all_rotate(model: PreTrainedModel) -> Iterator[None]:
    """Layers without a window rotate too; their mask stays."""
    for layer in attentions(model):
        layer.is_sliding = True  # EXAONE 4 reads this
        layer.sliding_window = layer.sliding_window or FAR  # Cohere 2 reads this
    yield


@contextmanager
def rotary_calls(model: PreTrainedModel, change: type[TorchFunctionMode]) -> Iterator[None]:
    """Compute the tables of cosines under a mode of torch that changes functions."""
    for module in model.modules():
        if type(module).__name__.endswith("RotaryEmbedding"):
            module.forward = under(change, module.forward)  # type: ignore[method-assign]
    yield


def under(change: type[TorchFunctionMode], function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **options: Any) -> Any:
        with change():
            return function(*args, **options)

    return call


def in_bfloat16(x: Tensor) -> Tensor:
    return x.to(torch.bfloat16).to(x.dtype)


class RoundedAngles(TorchFunctionMode):
    """Angles are rounded to bfloat16 before their cosine and sine."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.cos, torch.sin, Tensor.cos, Tensor.sin):
            args = (in_bfloat16(args[0]), *args[1:])
        if func is torch.polar:
            args = (args[0], in_bfloat16(args[1]), *args[2:])
        return func(*args, **(kwargs or {}))


class RoundedPositions(TorchFunctionMode):
    """Positions are rounded to bfloat16 when they become numbers with a fraction."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func is Tensor.float and not args[0].dtype.is_floating_point:
            return in_bfloat16(made)
        return made
