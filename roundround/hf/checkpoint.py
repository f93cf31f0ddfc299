"""A Hugging Face checkpoint in a folder, from which a training run can start: its weights and its configuration.

The configuration becomes nodes of a run's config, which describe a decoder that computes the same as the checkpoint's
model. The models are Llama, Gemma (the first), Qwen 3, SmolLM3, OLMo 3, and the text models of Gemma 3 and Gemma 4.
Gemma is Llama with GeGLU, embeddings times sqrt(D), and norms that store their weights minus 1; the models listed after
Gemma can have layers of several kinds. Only safetensors are read, and no code from the folder is run. `stock.py` is the
other direction: it writes a decoder as a model of transformers.

Tested by tests/trained/test_initial.py, tests/trained/test_pattern_models.py and tests/hf/test_hf_load.py.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import EllipsisType
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import (
    Gemma3TextConfig,
    Gemma4TextConfig,
    GemmaConfig,
    LlamaConfig,
    Olmo3Config,
    PreTrainedConfig,
    Qwen3Config,
    SmolLM3Config,
)
from transformers.utils import logging

from roundround.model.decoder import Decoder, belongs_to_a_variant, fill
from roundround.model.qk_norm import RMSQueryKeyNorm
from roundround.pe.linear import LinearRoPE
from roundround.pe.llama3 import Llama3RoPE
from roundround.pe.longrope import LongRoPE
from roundround.pe.nope import NoPE
from roundround.pe.ntk_dynamic import DynamicNTK
from roundround.pe.p_rope import PRoPE, kept_pairs
from roundround.pe.partial_rope import PartialRoPE
from roundround.pe.rope import RoPE
from roundround.pe.yarn import YaRN
from roundround.support.errors import UserError, one_line
from roundround.support.files import home_expanded, parse_json, read_text, sha256
from roundround.support.packaged import PREFIX as PACKAGED
from roundround.support.packaged import packaged_models

PREFIX = "hf:"
FLOATS = ("F64", "F32", "BF16", "F16")  # as safetensors calls them
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
MASKS = ("attn.bias", "attention.bias", "masked_bias")


@dataclass(frozen=True)
class StoredWeight:
    """A weight in a file. `weight[rows]` reads only these rows, as float32.

    plus_one: whether to add 1 to the stored values, because Gemma's norms store their weights minus 1.
    """

    file: Path
    name: str
    shape: tuple[int, ...]
    plus_one: bool

    def __getitem__(self, rows: slice | EllipsisType) -> Tensor:
        with safe_open(self.file, "pt") as opened:
            tensor: Tensor = opened.get_slice(self.name)[rows]
        return tensor.float() + self.plus_one


@dataclass(frozen=True, kw_only=True)
class LlamaCheckpoint:
    """A checkpoint in `folder`.

    reference: the value of `init` that a run records. tokenizer: the tokenizer's `name` that a run records. For a
    packaged model, both are valid on every machine and in later versions of the package. nodes: the configuration, as
    nodes of a run's config. weights: the stored weights, with the decoder's names as keys. sha256: the hash of the
    weight files, one after the other.
    """

    folder: Path
    reference: str
    tokenizer: str
    nodes: DecoderNodes
    weights: dict[str, StoredWeight]
    sha256: str

    def load_into(self, decoder: Decoder) -> None:
        """Copy the weights, or this process's rows of them, into the decoder, except for encodings and normalisers."""
        self.check(decoder)
        own = decoder.state_dict()
        for name, weight in self.weights.items():
            fill(own[name], weight)

    def check(self, decoder: Decoder) -> None:
        """Raises UserError if the names or shapes of the weights are not the decoder's."""
        own = {
            name: list(value.shape) for name, value in decoder.state_dict().items() if not belongs_to_a_variant(name)
        }
        given = {name: list(weight.shape) for name, weight in self.weights.items()}
        wrong = sorted(name for name in own.keys() | given.keys() if own.get(name) != given.get(name))
        if wrong:
            shapes = f"{given.get(wrong[0])} in the files, {own.get(wrong[0])} by config.json"
            raise UserError(f"{self.folder}: weights are not the decoder's: {some_of(wrong)} ({wrong[0]}: {shapes})")


def checkpoint_folder(reference: object) -> Path:
    """The absolute folder of a checkpoint, from `hf:DIR`, or from NAME or `package:NAME` of a packaged model.

    Raises UserError for any other reference. Does not check that the folder exists.
    """
    packaged, given = packaged_models(), str(reference)  # the type is not checked before: init=5 is a number
    name = given.removeprefix(PACKAGED)
    if name in packaged:
        return packaged[name]
    if not given.startswith(PREFIX) or given == PREFIX:
        raise UserError(
            f"init={given} must be one of run:DIR, run:last, {PREFIX}DIR with a Llama-type checkpoint in it, or "
            f"{' or '.join(packaged)}"
        )
    return home_expanded(given.removeprefix(PREFIX), "the model").absolute()


def read_checkpoint(reference: str) -> LlamaCheckpoint:
    """The checkpoint in the folder that a reference names (see `checkpoint_folder`).

    Raises UserError if the folder has no checkpoint, or one that the decoder cannot represent.
    """
    folder, travels = checkpoint_folder(reference), not reference.startswith(PREFIX)
    raw = read_json(folder / "config.json")
    family = FAMILIES.get(raw.get("model_type"))
    if family is None:
        kind, known = raw.get("model_type"), ", ".join(FAMILIES)
        raise UserError(f"{folder}: model_type is {kind}, and the decoder can start only from {known}")
    files = weight_files(folder)
    try:
        with quiet():
            nodes = decoder_nodes(family.config(**raw))
        weights = stored_weights(files, one_less=family.one_less)
    except Exception as error:  # transformers and safetensors raise many classes of errors
        raise UserError(f"{folder}: {one_line(error)}") from error
    head, embedding = weights.get("lm_head.weight"), weights.get("embed_tokens.weight")
    # transformers uses a stored head that differs from the embeddings even if the config ties them
    if nodes.model["tied_embeddings"] and head is not None:
        nodes.model["tied_embeddings"] = embedding is not None and torch.equal(head[...], embedding[...])
        if nodes.model["tied_embeddings"]:
            del weights["lm_head.weight"]
    return LlamaCheckpoint(
        folder=folder,
        reference=reference if travels else f"{PREFIX}{folder}",
        tokenizer=f"{PACKAGED}{folder.name}" if travels else str(folder),
        nodes=nodes,
        weights=weights,
        sha256=sha256(*files),
    )


def stored_weights(files: Sequence[Path], *, one_less: bool) -> dict[str, StoredWeight]:
    """The weights in the files, with the decoder's names as keys. one_less: as in `Family`.

    Two kinds are left out: tables of RoPE's frequencies, and layer scalars that are 1 (Gemma 4). Raises UserError if a
    weight is not stored as a floating-point number of 16 bits or more.
    """
    found: dict[str, StoredWeight] = {}
    for file in files:
        with safe_open(file, "pt") as opened:
            for name in opened.keys():  # noqa: SIM118 (it is no dict)
                is_one = name.endswith(".layer_scalar") and bool((opened.get_tensor(name) == 1).all())  # of Gemma 4
                if not is_one and not name.endswith("rotary_emb.inv_freq"):
                    header = opened.get_slice(name)
                    shape, dtype = tuple(header.get_shape()), header.get_dtype()
                    if dtype not in FLOATS:
                        raise UserError(f"{name} is stored as {dtype}; dequantise it to one of {', '.join(FLOATS)}")
                    own_name = re.sub(
                        r"\.self_attn\.([qk]_norm)\.", r".self_attn.qk_norm.\1.", name.removeprefix("model.")
                    )
                    found[own_name] = StoredWeight(file, name, shape, one_less and name.endswith("norm.weight"))
    return found


def read_json(path: Path) -> Any:
    """The content of a JSON file of a checkpoint. Raises UserError if it cannot be read."""
    try:
        return parse_json(read_text(path))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} of a Hugging Face checkpoint cannot be read: {one_line(error)}") from error


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a checkpoint. Raises UserError if there are none."""
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if (folder / INDEX).is_file():
        return [folder / Path(name).name for name in sorted(set(read_json(folder / INDEX)["weight_map"].values()))]
    raise UserError(f"{folder} has no {WEIGHTS}; pickled weights are never read, save them as safetensors")


def causal_masks(files: Sequence[Path]) -> set[str]:
    """The names of the files' tensors that are not weights: causal masks, and the value of masked logits.

    transformers once saved both. A causal mask is a square table, and the value is a scalar. A true bias of an
    attention layer, which could have the same name, is a vector.
    """
    found = set()
    for file in files:
        with safe_open(file, "pt") as opened:
            shapes = {name: opened.get_slice(name).get_shape() for name in opened.keys() if name.endswith(MASKS)}  # noqa: SIM118
            found |= {name for name, shape in shapes.items() if len(shape) == 0 or shape[-1:] == shape[-2:-1]}
    return found


@contextmanager
def quiet() -> Iterator[None]:
    """Within the block, transformers prints nothing; this project reports what matters in its own messages."""
    before = logging.get_verbosity()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(before)


def some_of(names: Sequence[str]) -> str:
    """The first three names and how many more there are."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


# -- the configuration of a checkpoint as nodes of a run's config


@dataclass(frozen=True, kw_only=True)
class Family:
    """Models of one config class of transformers, and what their layers have.

    config: the config class. export: the class of transformers to which a decoder can be exported; None if there is
    none. norms: whether norms are `before` attention and MLP, `after` them, or `both`. normalised: whether queries and
    keys are normalised in each head (`heads`), over all heads together (`across heads`), or not at all (`none`).
    one_less: whether norms store their weights minus 1. windows: whether some layers can have a window. by_kind:
    whether RoPE frequencies can differ between layers with a window and layers without one. even_heads: whether the
    heads must divide d_model evenly, so that head_dim is d_model / n_heads.
    """

    config: type[PreTrainedConfig]
    export: str | None = None
    norms: str = "before"
    normalised: str = "none"
    one_less: bool = False
    windows: bool = False
    by_kind: bool = False
    even_heads: bool = False


FAMILIES = {  # by the model_type of config.json
    "llama": Family(config=LlamaConfig, export="LlamaForCausalLM"),
    "gemma": Family(config=GemmaConfig, one_less=True),
    "qwen3": Family(config=Qwen3Config, export="Qwen3ForCausalLM", normalised="heads", windows=True),
    "smollm3": Family(config=SmolLM3Config, export="SmolLM3ForCausalLM", even_heads=True),
    "olmo3": Family(
        config=Olmo3Config,
        export="Olmo3ForCausalLM",
        norms="after",
        normalised="across heads",
        windows=True,
        by_kind=True,
        even_heads=True,
    ),
    "gemma3_text": Family(
        config=Gemma3TextConfig,
        export="Gemma3ForCausalLM",
        norms="both",
        normalised="heads",
        one_less=True,
        windows=True,
        by_kind=True,
    ),
    "gemma4_text": Family(config=Gemma4TextConfig, norms="both", normalised="heads", windows=True, by_kind=True),
}
SWIGLU, GEGLU = "silu", "gelu_pytorch_tanh"
KINDS = {"sliding_attention": "local", "full_attention": "global"}
# settings of parts that the decoder lacks, with the value that turns each part off
WITHOUT = {
    "mlp_bias": False,
    "use_bidirectional_attention": None,
    "final_logit_softcapping": None,
    "attn_logit_softcapping": None,
    "hidden_size_per_layer_input": 0,
    "attention_k_eq_v": False,
    "num_kv_shared_layers": 0,
    "enable_moe_block": False,
    "use_double_wide_mlp": False,
    "attention_dropout": 0.0,
}

Node = dict[str, Any]  # a class and its arguments, as they stand in a config


@dataclass(frozen=True, kw_only=True)
class DecoderNodes:
    """The nodes of a configuration.

    pe: the node of the encoding; None if `pattern` sets the encodings. n_vocab: the size of the vocabulary. others: the
    nodes `pattern` and `qk_norm`, if there are any.
    """

    model: Node
    pe: Node | None
    n_vocab: int
    others: dict[str, Node] = field(default_factory=dict)


def decoder_nodes(config: PreTrainedConfig) -> DecoderNodes:
    """The nodes of a decoder that computes the same as a model of this configuration.

    If the decoder cannot represent a setting, raises a UserError that names the setting.
    """
    kind, family = config.model_type, FAMILIES[config.model_type]
    for name, nothing in WITHOUT.items():
        if (value := getattr(config, name, nothing)) not in (nothing, None, False):
            raise UserError(f"the decoder does not support {name}={str(value).lower()}")
    activation = config.hidden_activation if kind.endswith("_text") else config.hidden_act
    if activation not in (SWIGLU, GEGLU):
        raise UserError(f"hidden_act is {activation}, and the decoder has {SWIGLU} and {GEGLU}")
    model = {
        "kind": "architecture",
        "_target_": target(Decoder),
        "d_model": config.hidden_size,
        "n_layers": config.num_hidden_layers,
        "n_heads": config.num_attention_heads,
        "n_key_heads": own_config(config, 0).num_key_value_heads,
        "head_dim": head_dim_of(config, 0),
        "d_mlp": config.intermediate_size,
        "train_length": config.max_position_embeddings,
        "tied_embeddings": config.tie_word_embeddings,
        "geglu": activation == GEGLU,
        "scaled_embeddings": kind.startswith("gemma"),
        "norm_eps": config.rms_norm_eps,
        "initializer_range": config.initializer_range,
        "norms": family.norms,
        "attention_bias": bool(config.attention_bias),
    }
    others: dict[str, Node] = {}
    if family.normalised != "none":
        others["qk_norm"] = {
            "_target_": target(RMSQueryKeyNorm),
            "gain": True,
            "after_rotation": False,
            "across_heads": family.normalised == "across heads",
            "values": kind == "gemma4_text",
            "eps": config.rms_norm_eps,
        }
    layers = [layer_kind(config, layer) for layer in range(config.num_hidden_layers)]
    kinds = dict(layers)
    if len(kinds) == 1:
        [only] = kinds.values()
        if set(only) == {"pe"}:
            return DecoderNodes(model=model, pe=only["pe"], n_vocab=config.vocab_size, others=others)
    pattern = {"order": [name for name, _ in layers], "last": None, "whole": False, **kinds}
    return DecoderNodes(model=model, pe=None, n_vocab=config.vocab_size, others={**others, "pattern": pattern})


def layer_kind(config: PreTrainedConfig, layer: int) -> tuple[str, Node]:
    """The name of a layer's kind, and a node with the encoding, window and sizes of the layers of this kind."""
    layer_type = (getattr(config, "layer_types", None) or ["full_attention"] * (layer + 1))[layer]
    name = KINDS[layer_type]
    head_dim = head_dim_of(config, layer)
    rope = config.rope_parameters.get(layer_type, config.rope_parameters)
    node: Node = {"pe": encoding_node(rope, head_dim, config.max_position_embeddings)}
    if config.model_type == "smollm3" and not config.no_rope_layers[layer]:  # 1 where RoPE is used
        name, node["pe"] = f"{name}_nope" if name == "local" else "nope", {"_target_": target(NoPE)}
    if layer_type == "sliding_attention" and config.sliding_window:
        node["window"] = config.sliding_window
    if config.model_type == "gemma3_text" and config.query_pre_attn_scalar != head_dim:
        node["logit_scale"] = config.query_pre_attn_scalar**-0.5
    if config.model_type == "gemma4_text":
        node |= {"head_dim": head_dim, "n_key_heads": own_config(config, layer).num_key_value_heads, "logit_scale": 1.0}
    return name, node


def own_config(config: PreTrainedConfig, layer: int) -> Any:
    """The configuration of a layer: an entry of `per_layer_config` in Gemma 4, else the model's configuration."""
    return config.per_layer_config[layer] if config.model_type == "gemma4_text" else config


def head_dim_of(config: PreTrainedConfig, layer: int) -> int:
    own = getattr(own_config(config, layer), "head_dim", None)
    return int(config.hidden_size // config.num_attention_heads if own is None else own)


def encoding_node(rope: Mapping[str, Any], head_dim: int, longest: int) -> Node:
    """The node of the encoding that `rope_parameters` describe. longest: the model's max_position_embeddings.

    Raises UserError if the decoder has no such encoding.
    """
    kind, theta = rope.get("rope_type", "default"), float(rope["rope_theta"])
    p = float(rope.get("partial_rotary_factor", 1.0))
    if kind == "default" or (kind == "proportional" and rope.get("factor", 1.0) == 1.0):
        n_kept = kept_pairs(p, head_dim)
        if n_kept == 0 and kind == "proportional":
            return {"_target_": target(NoPE)}
        if n_kept == head_dim // 2:
            return {"_target_": target(RoPE), "theta": theta}
        return {"_target_": target(PartialRoPE if kind == "default" else PRoPE), "p": p, "theta": theta}
    if kind not in SCALED or p != 1:
        raise UserError(
            f"the decoder has no RoPE with rope_type={kind}, factor={rope.get('factor')}, partial_rotary_factor={p:g}"
        )
    of, names = SCALED[kind]
    original = rope.get("original_max_position_embeddings") or longest
    return {
        "_target_": target(of),
        "theta": theta,
        "original_length": original,
        "length": longest,
        "factor": rope.get("factor") or longest / original,
        **{name: rope.get(name, default) for name, default in names.items()},
    }


SCALED: dict[str, tuple[type, dict[str, Any]]] = {  # rope_type -> its class, and its numbers with their defaults
    "linear": (LinearRoPE, {}),
    "dynamic": (DynamicNTK, {}),
    "yarn": (
        YaRN,
        {
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": True,
            "attention_factor": None,
            "mscale": None,
            "mscale_all_dim": None,
        },
    ),
    "llama3": (Llama3RoPE, {"low_freq_factor": 1.0, "high_freq_factor": 4.0}),
    "longrope": (LongRoPE, {"short_factor": None, "long_factor": None, "attention_factor": None}),
}


def target(of: type) -> str:
    """The name of a class as a config writes it in `_target_`."""
    return f"{of.__module__}.{of.__qualname__}"
