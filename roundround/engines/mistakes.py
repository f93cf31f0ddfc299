"""Mistakes of position that engines make, each as another config or as an edit of the model that transformers builds.

Letters: B batch, T tokens, H heads, G key heads, C head channels, P pairs of channels.

Tested by tests/engines/test_suite.py.
"""

from __future__ import annotations

import inspect
import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel
from transformers.masking_utils import create_sliding_window_causal_mask

Config = Mapping[str, Any]
Rope = Mapping[str, Any]
Edit = Callable[[PreTrainedModel], Mapping[str, Any]]


class Mistake(NamedTuple):
    """A mistake. changes: values of config.json. edit: changes the model; returns functions to replace in its code."""

    changes: Config = MappingProxyType({})
    edit: Edit = lambda model: {}


FAR = 2**20  # tokens: a window or a chunk that hides nothing
SLIDING, FULL, CHUNKED = KINDS = ("sliding_attention", "full_attention", "chunked_attention")
NEIGHBOURS = ("glm4", "cohere2", "llama4_text", "ernie4_5", "gptj", "helium", "deepseek_v3")  # pair channels 2m, 2m + 1
ROTATIONS = ("apply_rotary_pos_emb", "apply_rotary_pos_emb_interleave", "apply_rotary_emb")  # in modelling code
IN_TABLES = ("frequencies", "positions", "angles")  # what a table of cosines is computed from
COSINES = (torch.cos, torch.sin, Tensor.cos, Tensor.sin, torch.polar)
NORMS = ("q_norm", "k_norm", "q_layernorm", "k_layernorm", "qk_norm")
BASE, LARGE, USUAL = "the base is 10,000", "the base is 1,000,000", "the base is the default of the class"
SCALING, WINDOW = "the scaling is ignored", "the window is ignored"
ORDER = "the order of layer kinds is the default of the class"
CAPS = ("the soft cap of attention is dropped", "the soft cap of the output is dropped")
PARTIAL, TEMPERATURE = "the partial rotation is ignored", "the temperature by position is dropped"
SCALED = ("factor", "long_factor")  # a scaling has one of these keys
SHORT = "the short factors stand for the long ones (exchanged, or switched at a wrong length)"
WAYS = ("channels are paired in halves", "channels are paired as neighbours")
AND = ", and "  # between the names of two mistakes that occur together
TOGETHER = (BASE, LARGE, USUAL, SCALING, WINDOW, PARTIAL, ORDER, *CAPS, *WAYS)  # any two of these occur together


def mistakes_of(config: Config, model: PreTrainedModel) -> dict[str, Mistake]:
    """The mistakes that a family can suffer, by name: single ones and pairs that occur together.

    config: the values of its config.json, without the defaults of its class.
    """
    default = ropes(type(model.config)().to_dict())
    found = {name: Mistake(changes) for name, changes in of_the_config(config, default).items()} | of_the_code(model)
    for one, other in itertools.combinations(TOGETHER, 2):
        if one in found and other in found:
            first = found[one].changes
            second = of_the_config({**config, **first}, default).get(other, {})
            both = Mistake({**first, **second}, found[other].edit)
            if both not in found.values():  # a base replaces another one
                found[f"{one}{AND}{other}"] = both
    return found


# -- mistakes in reading config.json


def ropes(config: Config) -> dict[str, Rope]:
    """The `rope_parameters` of each kind of layers, or of all layers under the name ""."""
    own = config.get("rope_parameters") or {}
    return {kind: own[kind] for kind in KINDS if kind in own} or {"": own}


def of_the_config(config: Config, default: Mapping[str, Rope]) -> dict[str, dict[str, Any]]:
    """The wrong values of each mistake in reading a config. default: the `ropes` of its class."""
    by_kind, window = ropes(config), config.get("sliding_window", 0)
    bases = {kind: rope.get("rope_theta") for kind, rope in by_kind.items()}
    usual = {kind: default.get(kind, default.get("", {})).get("rope_theta") for kind in by_kind}
    scaled: Rope = next((rope for rope in by_kind.values() if not rope.keys().isdisjoint(SCALED)), {})
    exact, factor, width = scaled.get("truncate", True), scaled.get("factor", 1.0), config.get("head_dim", 4)
    lengths = {  # that scaling is wrongly counted from
        "the new length": int(scaled.get("original_max_position_embeddings", 0) * factor),
        "max_position_embeddings": config["max_position_embeddings"],
    }
    grown = scaled.get("rope_theta", 1.0) * (factor**2 - factor + 1) ** (width / (width - 2))  # dynamic, factor times
    in_ropes: list[tuple[str, Sequence[str], Callable[[str], Rope]]] = [  # name, which kinds or keys, what changes
        (BASE, ["rope_theta"], lambda kind: {"rope_theta": 1e4}),
        (LARGE, ["rope_theta"], lambda kind: {"rope_theta": 1e6}),
        (USUAL, ["rope_theta"], lambda kind: {"rope_theta": usual[kind]}),
        ("windowed layers have the default base of the class", [SLIDING], lambda kind: {"rope_theta": usual[kind]}),
        ("windowed layers have the base of full ones", [SLIDING], lambda kind: {"rope_theta": bases[FULL]}),
        ("full layers have the base of windowed ones", [FULL], lambda kind: {"rope_theta": bases[SLIDING]}),
        ("the scaling acts on windowed layers too", [SLIDING], lambda kind: {**scaled, "rope_theta": bases[kind]}),
        (SCALING, SCALED, lambda kind: {"rope_type": "default"}),
        ("the attention factor is dropped", ["beta_fast", "long_factor"], lambda kind: {"attention_factor": 1.0}),
        (f"the bounds of YaRN are {'not ' * exact}rounded", ["beta_fast"], lambda kind: {"truncate": not exact}),
        (SHORT, ["long_factor"], lambda kind: {"long_factor": scaled["short_factor"]}),
        *(
            (
                f"the bounds of the scaling follow {words}",
                ["low_freq_factor", "beta_fast"],
                lambda kind, length=length: {"original_max_position_embeddings": length},
            )
            for words, length in lengths.items()
        ),
        (
            "llama3 scaling has no part in between",
            ["low_freq_factor"],
            lambda kind: {"high_freq_factor": scaled["low_freq_factor"] * 1.001},
        ),
        (TEMPERATURE, ["llama_4_scaling_beta"], lambda kind: {"llama_4_scaling_beta": 0.0}),
        (PARTIAL, ["partial_rotary_factor"], lambda kind: {"partial_rotary_factor": 1.0}),
        (
            "the partial rotation is applied twice",
            ["partial_rotary_factor"],
            lambda kind: {"partial_rotary_factor": by_kind[kind]["partial_rotary_factor"] ** 2},
        ),
        (
            "the scaling is that of the longest text",
            ["dynamic"],
            lambda kind: {"rope_type": "default", "rope_theta": grown},
        ),
    ]
    found: dict[str, dict[str, Any]] = {}
    for name, where, change in in_ropes:
        acts = {
            kind: rope and not {kind, *rope, rope.get("rope_type")}.isdisjoint(where) for kind, rope in by_kind.items()
        }
        changed = {kind: {**rope, **(change(kind) if acts[kind] else {})} for kind, rope in by_kind.items()}
        wrong = {"rope_parameters": changed.get("", changed)}
        if changed != by_kind and wrong not in found.values():
            found[name] = wrong
    in_keys = [
        (WINDOW, "sliding_window", FAR),
        ("the window is one token too long", "sliding_window", window + 1),
        ("the window is one token too short", "sliding_window", window - 1),
        (ORDER, "layer_types", None),
        ("the chunks are ignored", "attention_chunk_size", FAR),
        (CAPS[0], "attn_logit_softcapping", None),
        (CAPS[1], "final_logit_softcapping", None),
        (TEMPERATURE, "floor_scale", FAR),
        *((name, "no_rope_layers", wrong) for name, wrong in other_lists(config.get("no_rope_layers", [])).items()),
    ]
    return found | {name: {key: value} for name, key, value in in_keys if config.get(key)}


def other_lists(rotates: Sequence[int]) -> dict[str, list[int]]:
    """Wrong lists of the layers that rotate; none for an empty list."""
    wrong = {
        "all layers rotate": [1] * len(rotates),
        "no layer rotates": [0] * len(rotates),
        "the list of layers that rotate is inverted": [1 - one for one in rotates],
        "the list of layers that rotate is shifted": [*rotates[1:], *rotates[:1]],
    }
    return wrong if rotates else {}


# -- mistakes in code


def code_of(model: PreTrainedModel) -> Any:
    """The module of transformers in which the model's class is defined."""
    return sys.modules[type(model).__module__]


def attentions(model: PreTrainedModel) -> list[Any]:
    return [m for m in model.modules() if hasattr(m, "layer_idx") and type(m).__name__.endswith("Attention")]


def norms_of(layer: nn.Module) -> dict[str, nn.Module]:
    """The norms of queries and keys, by their names in the layer, in the order of their use."""
    return {name: getattr(layer, name) for name in NORMS if hasattr(layer, name)}


def of_the_code(model: PreTrainedModel) -> dict[str, Mistake]:
    """Mistakes that no config expresses."""
    code, config, layers = code_of(model), model.config, attentions(model)
    scale = getattr(layers[0], "scaling", 0.0) or 1 / float(layers[0].scale_attn)  # GPT-J divides
    family, kinds = config.model_type, [*(getattr(config, "layer_types", None) or [])]
    full, window, chunk = (getattr(code, f"create_{x}causal_mask", None) for x in ("", "sliding_window_", "chunked_"))
    width, norms = head_dim(model), [*norms_of(layers[0]).values()]
    gains = [getattr(norm, "weight", None) for norm in norms]
    rotates = [int(kind == SLIDING) for kind in kinds] if family in ("cohere2", "exaone4") else []
    rows: list[tuple[str, Any, Edit]] = [  # name, whether the family can suffer it, edit
        (WAYS[family not in NEIGHBOURS], True, other_pairing),
        ("queries and keys rotate twice", True, partial(around_rotation, times=(2, 2))),
        ("keys rotate twice", True, partial(around_rotation, times=(1, 2))),
        ("no layer rotates", True, partial(around_rotation, times=(0, 0))),
        ("the attention factor is applied twice", any(getattr(*one) != 1 for one in attention_factors(model)), squared),
        ("tokens see later tokens", full, lambda model: {"create_causal_mask": lambda *args, **options: None}),
        ("the other end of each head rotates", rotated(model) < width, other_end),
        ("p-RoPE is read as a partial rotation", family == "gemma4_text", partial(partial_rotation, ladder=True)),
        ("p-RoPE pairs channels within its share", family == "gemma4_text", partial(partial_rotation, ladder=False)),
        ("all layers have the window", SLIDING in kinds, lambda model: {"create_causal_mask": window}),
        (
            "the wrong layers have the window",
            SLIDING in kinds,
            lambda model: {"create_causal_mask": window, "create_sliding_window_causal_mask": full},
        ),
        ("chunks are windows", CHUNKED in kinds, lambda model: {"create_chunked_causal_mask": window_of_a_chunk}),
        ("all layers have chunks", CHUNKED in kinds, lambda model: {"create_causal_mask": chunk}),
        (
            "key heads are repeated in the wrong order",
            getattr(layers[0], "num_key_value_groups", 1) > 1 and hasattr(code, "repeat_kv"),
            lambda model: {"repeat_kv": lambda x_BGTC, n: x_BGTC.repeat(1, n, 1, 1)},
        ),
        ("the sinks are dropped", any(name.endswith("sinks") for name, _ in model.named_parameters()), without_sinks),
        ("queries and keys are not normalised", norms, without_norms),
        (
            "queries and keys are normalised after the rotation",
            any(isinstance(gain, Tensor) for gain in gains) and not rotates,
            norms_after_rotation,
        ),
        (
            "queries and keys are normalised over all heads",
            any(isinstance(gain, Tensor) and gain.numel() == width for gain in gains) or family == "llama4_text",
            norms_over_heads,
        ),
        (
            "the scale of the logits is the default",
            abs(scale - default_scale(layers[0], width)) > 1e-6,
            unscaled,
        ),
        *((name, True, partial(rotating, wanted=wrong)) for name, wrong in other_lists(rotates).items()),
        *(
            (f"{' and '.join(parts)} are bfloat16", family != "gptj", partial(rounded, parts=parts))
            for parts in (*itertools.combinations(IN_TABLES, 1), IN_TABLES)  # GPT-J's table is made once
        ),
        ("positions start at one, or count padding", True, later),
    ]
    return {name: Mistake(edit=edit) for name, can, edit in rows if can}


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
    model: PreTrainedModel,
    before: Callable[[Tensor], Tensor] = lambda x: x,
    after: Callable[[Tensor], Tensor] = lambda x: x,
    times: tuple[int, int] = (1, 1),
) -> Mapping[str, Any]:
    """Rotations with `before` applied to queries and keys in front of them, and `after` behind them; both [..., C].

    times: how often queries and keys are rotated.
    """

    def wrapped(rotate: Callable[..., Any]) -> Callable[..., Any]:
        names = [*inspect.signature(rotate).parameters][:2]
        n_vectors = 2 if names[1] in ("k", "xk") else 1

        def call(*args: Any, **options: Any) -> Any:
            args = (*args, *(options.pop(name) for name in names[len(args) : n_vectors]))
            turned = [[before(x) for x in args[:n_vectors]]]
            for _ in range(max(times)):
                made = rotate(*turned[-1], *args[n_vectors:], **options)
                turned.append([*made] if n_vectors == 2 else [made])
            vectors = [after(turned[n][i]) for i, n in enumerate(times[:n_vectors])]
            return tuple(vectors) if n_vectors == 2 else vectors[0]

        return call

    code = code_of(model)
    return {name: wrapped(getattr(code, name)) for name in ROTATIONS if hasattr(code, name)}


def attention_factors(model: PreTrainedModel) -> list[tuple[nn.Module, str]]:
    """The attributes of rotary modules that multiply cosines and sines."""
    return [(module, name) for module in model.modules() for name in vars(module) if name.endswith("attention_scaling")]


def squared(model: PreTrainedModel) -> Mapping[str, Any]:
    for module, name in attention_factors(model):
        setattr(module, name, getattr(module, name) ** 2)
    return {}


def other_pairing(model: PreTrainedModel) -> Mapping[str, Any]:
    """Channels m and m + n / 2 rotate where 2m and 2m + 1 should, or the reverse."""
    n = rotated(model)
    halves = torch.arange(n).view(-1, 2).T.reshape(-1)  # brings channels 2m, 2m + 1 to m, m + n / 2
    order = torch.argsort(halves) if model.config.model_type in NEIGHBOURS else halves

    def moved(x: Tensor, index: Tensor) -> Tensor:
        return torch.cat([x[..., :n][..., index], x[..., n:]], -1)

    return around_rotation(model, partial(moved, index=order), partial(moved, index=torch.argsort(order)))


def other_end(model: PreTrainedModel) -> Mapping[str, Any]:
    """The last channels of a head rotate where the first should."""
    n, width = rotated(model), head_dim(model)
    sliced = {"gptj": ("q_proj", "k_proj"), "stablelm": ("q_layernorm", "k_layernorm")}.get(model.config.model_type, ())
    for layer in attentions(model):  # these two cut heads before they rotate: move the channels earlier, for good
        for name in sliced:
            move = lambda module, args, x: x.unflatten(-1, (-1, width)).roll(n, -1).flatten(-2)  # noqa: E731
            getattr(layer, name).register_forward_hook(move)
    moved = {True: lambda x, by: x, False: lambda x, by: x.roll(by, -1)}[bool(sliced)]
    return around_rotation(model, partial(moved, by=n), partial(moved, by=-n))


def partial_rotation(model: PreTrainedModel, ladder: bool) -> Mapping[str, Any]:
    """The first channels rotate where p-RoPE rotates the fastest pairs. ladder: with a whole ladder of frequencies."""
    rotate, rotary = code_of(model).apply_rotary_pos_emb, cast(Any, model.model).rotary_emb
    frequencies_P, base = rotary.full_attention_inv_freq, model.config.rope_parameters[FULL]["rope_theta"]
    n, n_pairs = int((frequencies_P > 0).sum()), len(frequencies_P)
    if ladder:
        frequencies_P[:n] = base ** -(torch.arange(n) / n)

    def call(x: Tensor, cos: Tensor, sin: Tensor, **options: Any) -> Tensor:
        if sin[..., n:n_pairs].any():
            return cast(Tensor, rotate(x, cos, sin, **options))
        cos, sin = (table[..., :n].repeat(1, 1, 2) for table in (cos, sin))
        return torch.cat([rotate(x[..., : 2 * n], cos, sin, **options), x[..., 2 * n :]], -1)

    return {"apply_rotary_pos_emb": call}


def window_of_a_chunk(config: Any, **options: Any) -> Any:
    """The mask of a window that is as long as the config's chunks."""
    changed = copy(config)
    changed.sliding_window = config.attention_chunk_size
    return create_sliding_window_causal_mask(config=changed, **options)


def without_sinks(model: PreTrainedModel) -> Mapping[str, Any]:
    for name, parameter in model.named_parameters():
        if name.endswith("sinks"):
            parameter.data.fill_(-1e4)
    return {}


def without_norms(model: PreTrainedModel) -> Mapping[str, Any]:
    for layer in attentions(model):
        for name in norms_of(layer):
            setattr(layer, name, nn.Identity())
    return {}


def norms_after_rotation(model: PreTrainedModel) -> Mapping[str, Any]:
    """Queries and keys are rotated first, then normalised."""
    norms = iter([norm for layer in attentions(model) for norm in norms_of(layer).values()])
    without_norms(model)

    def normalised(x_BHTC: Tensor) -> Tensor:
        norm = cast(Any, next(norms))
        if norm.weight.numel() <= x_BHTC.shape[-1]:
            return cast(Tensor, norm(x_BHTC))
        x_BTHC = norm(x_BHTC.transpose(1, 2).flatten(2)).unflatten(2, (x_BHTC.shape[1], -1))  # a norm over all heads
        return cast(Tensor, x_BTHC.transpose(1, 2))

    return around_rotation(model, after=normalised)


def norms_over_heads(model: PreTrainedModel) -> Mapping[str, Any]:
    """The mean square is taken over all heads where it should be taken over each."""

    def over_heads(norm: nn.Module, args: tuple[Tensor, ...], made: Tensor) -> Tensor:
        square = args[0].pow(2).mean(-1, keepdim=True)
        heads = min((1, 2), key=lambda axis: square.shape[axis])  # the prompt has more tokens than heads
        return made * (square / square.mean(heads, keepdim=True)).sqrt()

    for layer in attentions(model):
        for norm in norms_of(layer).values():
            norm.register_forward_hook(over_heads)
    return {}


def default_scale(layer: Any, width: int) -> float:
    return float(getattr(layer, "qk_head_dim", width) ** -0.5)


def unscaled(model: PreTrainedModel) -> Mapping[str, Any]:
    for layer in attentions(model):
        layer.scaling = default_scale(layer, head_dim(model))
    return {}


def rotating(model: PreTrainedModel, wanted: Sequence[int]) -> Mapping[str, Any]:
    """Other layers rotate; masks stay. SmolLM 3 reads `use_rope`, EXAONE 4 `is_sliding`, Cohere 2 `sliding_window`."""
    for layer, rotates in zip(attentions(model), wanted, strict=True):
        layer.use_rope = layer.is_sliding = bool(rotates)
        layer.sliding_window = FAR if rotates or model.config.model_type == "exaone4" else None
    return {}


def later(model: PreTrainedModel) -> Mapping[str, Any]:
    """The first token has position 1."""

    def shifted(model: nn.Module, args: tuple[Tensor, ...], options: dict[str, Any]) -> Any:
        return args, {**options, "position_ids": torch.arange(1, args[0].shape[1] + 1)[None]}

    model.register_forward_pre_hook(shifted, with_kwargs=True)
    return {}


def rounded(model: PreTrainedModel, parts: Sequence[str]) -> Mapping[str, Any]:
    """Frequencies, positions or angles are rounded to bfloat16 where the tables of cosines are computed."""

    def call(*args: Any, forward: Callable[..., Any], **options: Any) -> Any:
        with InBfloat16(parts):
            return forward(*args, **options)

    for module in model.modules():
        if type(module).__name__.endswith("RotaryEmbedding"):
            module.forward = partial(call, forward=module.forward)
            for buffer in module.buffers() if "frequencies" in parts else ():
                buffer.copy_(in_bfloat16(buffer))
    return {}


def in_bfloat16(x: Tensor) -> Tensor:
    return x.to(torch.bfloat16).to(x.dtype)


class InBfloat16(TorchFunctionMode):
    """Round the angles of cosines and sines, and positions when they become floating-point numbers."""

    def __init__(self, parts: Sequence[str]) -> None:
        self.parts = parts

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        whole = func is Tensor.float and not args[0].is_floating_point()
        if (whole and "positions" in self.parts) or (func in COSINES and "angles" in self.parts):
            args = [in_bfloat16(x) for x in args]
        return func(*args, **(kwargs or {}))
