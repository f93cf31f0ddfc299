"""What the decoder and Hugging Face's stock Llama have in common: configuration and weights, in both directions.

An export writes a decoder as a Llama. A training run may start from a checkpoint in a folder, of a model that
`nodes.py` knows: only safetensors are read, a pickled file is refused, and nothing runs code from the folder.

Frequencies of the two are equal to the last bit; tests compare them.

Tested by tests/loading/test_initial.py and tests/loading/test_export_folder.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import EllipsisType
from typing import Any

from safetensors import safe_open
from torch import Tensor
from transformers import LlamaConfig, PreTrainedConfig

from roundround.loading.foreign import (
    check_config,
    count_tensors,
    folder_named,
    quiet,
    read_json,
    some_of,
    weight_files,
)
from roundround.loading.nodes import CONFIGS, GEGLU, ONE_LESS, SWIGLU, DecoderNodes, decoder_nodes
from roundround.model.decoder import Decoder, belongs_to_a_variant
from roundround.model.kinds import LayerKind
from roundround.model.shards import fill
from roundround.pe.base import PositionalEncoding
from roundround.pe.nope import NoPE
from roundround.pe.p_rope import PRoPE
from roundround.pe.p_rope_reversed import PRoPEReversed
from roundround.pe.partial_rope import PartialRoPE
from roundround.pe.rope import RoPE
from roundround.pe.rope_random import RoPERandom
from roundround.softmax.base import AttentionSoftmax
from roundround.softmax.softmax import Softmax
from roundround.softmax.temperature import Temperature
from roundround.support.errors import UserError, one_line
from roundround.support.files import sha256
from roundround.support.packaged import PREFIX as PACKAGED
from roundround.support.packaged import packaged_models

PREFIX = "hf:"
ANY_THETA = 10_000.0  # no pair rotates, so any will do


# -- from the decoder to Llama


def stock_config(decoder: Decoder, sizes: Mapping[str, Any]) -> LlamaConfig | None:
    """The configuration under which stock Llama computes exactly this decoder; None where there is none.

    `sizes` are the decoder's arguments. Scaled embeddings are untied: see `stock_weights`.
    """
    shape = decoder.encoding.shape
    rope = rope_parameters(decoder.encoding)
    plain = all(is_plain(layer.self_attn.softmax) for layer in decoder.layers)  # type: ignore[arg-type]
    plain = plain and sizes.get("norms", "before") == "before" and has_one_plain_kind(decoder.kinds)
    fits = sizes["d_mlp"] > 0 and shape.d_model % shape.n_heads == 0  # Llama has MLPs, and insists on the other
    if rope is None or not plain or not fits:
        return None
    return LlamaConfig(
        vocab_size=decoder.embed_tokens.num_embeddings,
        hidden_size=shape.d_model,
        intermediate_size=sizes["d_mlp"],
        num_hidden_layers=len(decoder.layers),
        num_attention_heads=shape.n_heads,
        num_key_value_heads=shape.n_key_heads,
        head_dim=shape.head_dim,
        hidden_act=GEGLU if sizes["geglu"] else SWIGLU,
        max_position_embeddings=shape.train_length,
        initializer_range=min(sizes["initializer_range"], 1.0),  # Llama allows no more; only fresh weights need it
        rms_norm_eps=sizes["norm_eps"],
        tie_word_embeddings=decoder.lm_head is None and decoder.embedding_scale is None,
        rope_parameters=rope,
        attention_bias=sizes.get("attention_bias", False),
        architectures=["LlamaForCausalLM"],
        dtype="float32",
    )


def rope_parameters(encoding: PositionalEncoding) -> dict[str, Any] | None:
    """Llama's `rope_parameters` of an encoding that is the same at inference, None where there are none."""
    match encoding:
        case NoPE() if encoding.shape.head_dim % 2 == 0:
            return {"rope_type": "proportional", "partial_rotary_factor": 0.0, "rope_theta": ANY_THETA}
        case RoPE() if encoding.log_factor_P is not None:
            return None
        case RoPE() | RoPERandom():  # tokens stand at consecutive positions there; the export says so
            return {"rope_type": "default", "rope_theta": encoding.theta}
        case PRoPE():
            return {"rope_type": "proportional", "partial_rotary_factor": encoding.p, "rope_theta": encoding.theta}
        case PRoPEReversed() | PartialRoPE() if encoding.n_kept == encoding.shape.head_dim // 2:  # p = 1
            return {"rope_type": "default", "rope_theta": encoding.theta}
        case _:
            return None


def has_one_plain_kind(kinds: Sequence[LayerKind]) -> bool:
    """Whether all layers are alike, and have no part or size that Llama has not."""
    plain = LayerKind(make_encoding=kinds[0].make_encoding, make_softmax=kinds[0].make_softmax, name=kinds[0].name)
    return all(kind == plain for kind in kinds)


def is_plain(softmax: AttentionSoftmax) -> bool:
    """Whether the normaliser is the plain softmax, also by another name."""
    return isinstance(softmax, Softmax) or (isinstance(softmax, Temperature) and softmax.temperature == 1)


def stock_weights(decoder: Decoder) -> dict[str, Tensor]:
    """The weights by Llama's names. Gemma's factor on the embeddings is multiplied into an input matrix of its own."""
    weights = weights_by_llama_name(decoder)
    if decoder.embedding_scale is not None:
        embeddings = weights["model.embed_tokens.weight"]
        weights.setdefault("lm_head.weight", embeddings)
        weights["model.embed_tokens.weight"] = embeddings * decoder.embedding_scale
    return weights


def weights_by_llama_name(decoder: Decoder) -> dict[str, Tensor]:
    """The decoder's weights as they are, by Llama's names; what Llama lacks is named as if it were there."""
    state = decoder.state_dict()
    return {name if name.startswith("lm_head.") else f"model.{name}": tensor for name, tensor in state.items()}


# -- a checkpoint in a folder


@dataclass(frozen=True)
class StoredWeight:
    """A weight in a file, of which only the rows that are asked for are read, and become float32.

    plus_one: Gemma's norms keep what is added to one.
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
    """A checkpoint in `folder`. nodes: its config. sha256: of its weight files, one after the other.

    reference, tokenizer: what names the folder, and its tokenizer, anywhere and in a later version of the package.
    """

    folder: Path
    reference: str
    tokenizer: str
    nodes: DecoderNodes
    weights: dict[str, StoredWeight]
    sha256: str

    def load_into(self, decoder: Decoder) -> None:
        """Give the decoder these weights, or the rows of which it holds; what a variant learns beside them stays."""
        self.check(decoder)
        own = decoder.state_dict()
        for name, weight in self.weights.items():
            fill(own[name], weight)

    def check(self, decoder: Decoder) -> None:
        """Raises UserError where names or shapes are not the decoder's."""
        state = decoder.state_dict()
        own = {name for name in state if belongs_to_a_variant(name)}
        self.refuse("lacks", sorted(state.keys() - own - self.weights.keys()))
        self.refuse("has what the decoder has no place for:", sorted(self.weights.keys() - state.keys()))
        for name, weight in self.weights.items():
            if weight.shape != state[name].shape:
                shapes = f"{list(weight.shape)} where config.json asks for {list(state[name].shape)}"
                raise UserError(f"{self.folder}: {name} is {shapes}")

    def refuse(self, what: str, names: list[str]) -> None:
        if names:
            raise UserError(f"{self.folder} {what} {some_of(names)}")


def checkpoint_folder(reference: object) -> Path:
    """The absolute folder that `hf:DIR` means, or NAME or `package:NAME` of a packaged model.

    Raises UserError for anything else; whether there is such a folder is not asked.
    """
    packaged, given = packaged_models(), str(reference)  # not checked yet: init=5 is a number
    name = given.removeprefix(PACKAGED)
    if name in packaged:
        return packaged[name]
    if not given.startswith(PREFIX) or given == PREFIX:
        names = " or ".join(packaged)
        raise UserError(f"init={given} must be {PREFIX}DIR, the folder of a Llama-type checkpoint, or {names}")
    return folder_named(given.removeprefix(PREFIX)).absolute()


def read_checkpoint(reference: str) -> LlamaCheckpoint:
    """The checkpoint that a reference means (`checkpoint_folder`).

    Raises UserError where there is none, or one that the decoder cannot represent.
    """
    folder, travels = checkpoint_folder(reference), not reference.startswith(PREFIX)
    if not folder.is_dir():
        raise UserError(f"init={reference}: there is no such folder")
    path, raw = folder / "config.json", read_config(folder / "config.json")
    if not (folder / "tokenizer.json").is_file():
        raise UserError(f"{folder} has no tokenizer.json, and the vocabulary is the checkpoint's")
    files = weight_files(folder)
    check_config(raw, path, count_tensors(files)[0])
    config, nodes = described(raw, path)
    tied = bool(config.tie_word_embeddings)
    return LlamaCheckpoint(
        folder=folder,
        reference=reference if travels else f"{PREFIX}{folder}",
        tokenizer=f"{PACKAGED}{folder.name}" if travels else str(folder),
        nodes=nodes,
        weights=stored_weights(files, tied=tied, one_less=config.model_type in ONE_LESS),
        sha256=sha256(*files),
    )


def stored_weights(files: Sequence[Path], *, tied: bool, one_less: bool) -> dict[str, StoredWeight]:
    """What the files hold by the decoder's names. What does nothing is left out, as are tables of frequencies."""
    found = {}
    for file in files:
        with safe_open(file, "pt") as opened:
            for name in opened.keys():  # noqa: SIM118 (it is no dict)
                is_one = name.endswith(".layer_scalar") and bool((opened.get_tensor(name) == 1).all())  # of Gemma 4
                left_out = is_one or name.endswith("rotary_emb.inv_freq") or (tied and name == "lm_head.weight")
                if not left_out:
                    shape = tuple(opened.get_slice(name).get_shape())
                    plus_one = one_less and name.endswith("norm.weight")
                    found[own_name(name)] = StoredWeight(file, name, shape, plus_one)
    return found


def own_name(name: str) -> str:
    """The decoder's name of a stored weight."""
    name = name.removeprefix("model.")
    return re.sub(r"\.self_attn\.([qk]_norm)\.", r".self_attn.qk_norm.\1.", name)


def read_config(path: Path) -> dict[str, Any]:
    """The values of config.json. UserError where they are of another type of model, or of one in other numbers."""
    raw = read_json(path)
    kind = raw.get("model_type") if isinstance(raw, dict) else None
    if kind not in CONFIGS:
        raise UserError(f"{path}: model_type is {kind}, and the decoder can start from {', '.join(CONFIGS)} alone")
    if "quantization_config" in raw:
        raise UserError(f"{path}: the weights are quantised, and the decoder's are not")
    assert isinstance(raw, dict)
    return raw


def described(raw: dict[str, Any], path: Path) -> tuple[PreTrainedConfig, DecoderNodes]:
    """The configuration, whatever version of transformers wrote it, and the decoder's nodes. UserError."""
    try:
        with quiet():
            config = CONFIGS[raw["model_type"]](**raw)
        return config, decoder_nodes(config)
    except Exception as error:  # transformers has many ways to refuse a value
        raise UserError(f"{path}: {one_line(error)}") from error
