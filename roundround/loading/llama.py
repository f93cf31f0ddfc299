"""A checkpoint of Hugging Face's in a folder, from which a training run may start, of a model that `nodes.py` knows.

Only safetensors are read, a pickled file is refused, and nothing runs code from the folder. `stock.py` is the other
direction: a decoder as a model of transformers.

Tested by tests/loading/test_initial.py and tests/loading/test_export_folder.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import EllipsisType
from typing import Any

from safetensors import safe_open
from torch import Tensor
from transformers import PreTrainedConfig

from roundround.loading.foreign import (
    check_config,
    count_tensors,
    folder_named,
    quiet,
    read_json,
    some_of,
    weight_files,
)
from roundround.loading.nodes import CONFIGS, ONE_LESS, DecoderNodes, decoder_nodes
from roundround.model.decoder import Decoder, belongs_to_a_variant
from roundround.model.shards import fill
from roundround.support.errors import UserError, one_line
from roundround.support.files import sha256
from roundround.support.packaged import PREFIX as PACKAGED
from roundround.support.packaged import packaged_models

PREFIX = "hf:"


@dataclass(frozen=True)
class StoredWeight:
    """A weight in a file: only the rows that are asked for are read, as float32.

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
        """Give the decoder these weights, or those of their rows that it holds; what a variant learns stays."""
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
    path = folder / "config.json"
    raw = read_json(path)
    kind = raw.get("model_type") if isinstance(raw, dict) else None
    if kind not in CONFIGS:
        raise UserError(f"{path}: model_type is {kind}, and the decoder can start from {', '.join(CONFIGS)} alone")
    if "quantization_config" in raw:
        raise UserError(f"{path}: the weights are quantised, and the decoder's are not")
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
                    own_name = re.sub(
                        r"\.self_attn\.([qk]_norm)\.", r".self_attn.qk_norm.\1.", name.removeprefix("model.")
                    )
                    found[own_name] = StoredWeight(file, name, shape, plus_one)
    return found


def described(raw: dict[str, Any], path: Path) -> tuple[PreTrainedConfig, DecoderNodes]:
    """The configuration, whatever version of transformers wrote it, and the decoder's nodes. UserError."""
    try:
        with quiet():
            config = CONFIGS[raw["model_type"]](**raw)
        return config, decoder_nodes(config)
    except Exception as error:  # transformers has many ways to refuse a value
        raise UserError(f"{path}: {one_line(error)}") from error
