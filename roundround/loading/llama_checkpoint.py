"""A checkpoint of a Llama or a Gemma in a folder, from which training may start: its configuration and its weights.

Only safetensors are read; a pickled file is refused. Nothing here runs code from the folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import EllipsisType
from typing import Any

from safetensors import safe_open
from torch import Tensor
from transformers import GemmaConfig, LlamaConfig

from roundround.loading.foreign import check_config, folder_named, quiet, read_header, read_json, some_of, weight_files
from roundround.loading.llama import DecoderNodes, decoder_nodes
from roundround.model.decoder import Decoder, belongs_to_a_variant
from roundround.model.shards import fill
from roundround.support.errors import UserError, one_line
from roundround.support.files import sha256
from roundround.support.packaged import PREFIX as PACKAGED
from roundround.support.packaged import packaged_models

PREFIX = "hf:"
CONFIGS = {"llama": LlamaConfig, "gemma": GemmaConfig}  # by the model_type of config.json


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
    header = read_header(files)
    check_config(raw, path, header)
    config, nodes = described(raw, path)
    is_gemma, tied = isinstance(config, GemmaConfig), bool(config.tie_word_embeddings)
    return LlamaCheckpoint(
        folder=folder,
        reference=reference if travels else f"{PREFIX}{folder}",
        tokenizer=f"{PACKAGED}{folder.name}" if travels else str(folder),
        nodes=nodes,
        weights=stored_weights(files, tied=tied, is_gemma=is_gemma),
        sha256=sha256(*files),
    )


def stored_weights(files: Sequence[Path], *, tied: bool, is_gemma: bool) -> dict[str, StoredWeight]:
    """What the files hold by the decoder's names. Tables of frequencies that old files hold are left out."""
    found = {}
    for file in files:
        with safe_open(file, "pt") as opened:
            for name in opened.keys():  # noqa: SIM118 (it is no dict)
                if not name.endswith("rotary_emb.inv_freq") and not (tied and name == "lm_head.weight"):
                    shape = tuple(opened.get_slice(name).get_shape())
                    plus_one = is_gemma and name.endswith("norm.weight")
                    found[name.removeprefix("model.")] = StoredWeight(file, name, shape, plus_one)
    return found


def read_config(path: Path) -> dict[str, Any]:
    """The values of config.json. UserError where they are of another type of model, or of one in other numbers."""
    raw = read_json(path)
    kind = raw.get("model_type") if isinstance(raw, dict) else None
    if kind not in CONFIGS:
        raise UserError(f"{path}: model_type is {kind}, and the decoder can start from {' and '.join(CONFIGS)} alone")
    if "quantization_config" in raw:
        raise UserError(f"{path}: the weights are quantised, and the decoder's are not")
    assert isinstance(raw, dict)
    return raw


def described(raw: dict[str, Any], path: Path) -> tuple[LlamaConfig | GemmaConfig, DecoderNodes]:
    """The configuration, whatever version of transformers wrote it, and the decoder's nodes. UserError."""
    try:
        with quiet():
            config = CONFIGS[raw["model_type"]](**raw)
        return config, decoder_nodes(config)
    except Exception as error:  # transformers has many ways to refuse a value
        raise UserError(f"{path}: {one_line(error)}") from error
