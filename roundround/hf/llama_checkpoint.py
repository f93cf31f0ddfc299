"""A Llama-type checkpoint in a folder, from which training may start: its configuration and its weights.

Only safetensors are read; a pickled file is refused. Nothing here runs code from the folder.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from transformers import LlamaConfig

from roundround.errors import UserError, one_line
from roundround.files import sha256
from roundround.hf.llama import DecoderNodes, decoder_nodes, decoder_weights
from roundround.hf.load import PICKLED
from roundround.model.decoder import Decoder, belongs_to_a_variant
from roundround.packaged import packaged_models

PREFIX = "hf:"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


@dataclass(frozen=True, kw_only=True)
class LlamaCheckpoint:
    """A checkpoint in `folder`. nodes: its config. sha256: of its weight files, one after the other."""

    folder: Path
    nodes: DecoderNodes
    weights: dict[str, Tensor]
    sha256: str

    def load_into(self, decoder: Decoder) -> None:
        """Give the decoder these weights; what an encoding or a normaliser learns beside them stays as it is."""
        self.check(decoder)
        decoder.load_state_dict(self.weights, strict=False)

    def check(self, decoder: Decoder) -> None:
        """Raises UserError where names or shapes are not the decoder's."""
        state = decoder.state_dict()
        own = {name for name in state if belongs_to_a_variant(name)}
        self.refuse("lacks", sorted(state.keys() - own - self.weights.keys()))
        self.refuse("has what the decoder has no place for:", sorted(self.weights.keys() - state.keys()))
        for name, tensor in self.weights.items():
            if tensor.shape != state[name].shape:
                shapes = f"{list(tensor.shape)} where config.json asks for {list(state[name].shape)}"
                raise UserError(f"{self.folder}: {name} is {shapes}")

    def refuse(self, what: str, names: list[str]) -> None:
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise UserError(f"{self.folder} {what} {', '.join(names[:3])}{more}")


def read_checkpoint(reference: str) -> LlamaCheckpoint:
    """The checkpoint that `hf:DIR`, or the name of a packaged model, means.

    Raises UserError where there is none, or one that the decoder cannot represent.
    """
    packaged = packaged_models()
    if reference not in packaged and (not reference.startswith(PREFIX) or reference == PREFIX):
        names = " or ".join(packaged)
        raise UserError(f"init={reference} must be {PREFIX}DIR, the folder of a Llama-type checkpoint, or {names}")
    folder = packaged.get(reference, Path(reference.removeprefix(PREFIX)).expanduser().absolute())
    if not folder.is_dir():
        raise UserError(f"init={reference}: there is no such folder")
    config = read_config(folder)
    if not (folder / "tokenizer.json").is_file():
        raise UserError(f"{folder} has no tokenizer.json, and the vocabulary is the checkpoint's")
    try:
        nodes = decoder_nodes(config)
    except (UserError, ValueError) as error:
        raise UserError(f"{folder}/config.json: {one_line(error)}") from error
    files = weight_files(folder)
    weights: dict[str, Tensor] = {}
    for file in files:
        try:
            weights |= load_file(file)
        except (OSError, SafetensorError) as error:
            raise UserError(f"{file} is damaged or cut short: {one_line(error)}") from error
    tied = bool(config.tie_word_embeddings)
    return LlamaCheckpoint(
        folder=folder, nodes=nodes, weights=decoder_weights(weights, tied=tied), sha256=sha256(*files)
    )


def read_config(folder: Path) -> LlamaConfig:
    """config.json as Llama's configuration, whatever version of transformers wrote it. UserError."""
    path = folder / "config.json"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{folder} has no config.json; it is no checkpoint of Hugging Face's") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {one_line(error)}") from error
    kind = raw.get("model_type") if isinstance(raw, dict) else None
    if kind != "llama":
        raise UserError(f"{path}: model_type is {kind}, and the decoder can start from llama alone")
    if "quantization_config" in raw:
        raise UserError(f"{path}: the weights are quantised, and the decoder's are not")
    try:
        return LlamaConfig(**raw)
    except Exception as error:  # transformers has many ways to refuse a value
        raise UserError(f"{path}: {one_line(error)}") from error


def weight_files(folder: Path) -> list[Path]:
    """The safetensors of a checkpoint. UserError where there are none, or not all."""
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if (folder / INDEX).is_file():
        try:
            listed: Mapping[str, str] = json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"]
            files = [folder / Path(name).name for name in sorted(set(listed.values()))]
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise UserError(f"{folder / INDEX} cannot be read: {one_line(error)}") from error
        for file in files:
            if not file.is_file():
                raise UserError(f"{file} is named in {INDEX} and is not there")
        return files
    pickled = sorted(path.name for pattern in PICKLED for path in folder.glob(pattern))
    if pickled:
        raise UserError(f"{folder} has pickled weights alone ({pickled[0]}), which are never read; save safetensors")
    raise UserError(f"{folder} has no {WEIGHTS}")
