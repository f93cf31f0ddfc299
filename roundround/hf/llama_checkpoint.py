"""A Llama-type checkpoint in a folder, from which training may start: its configuration and its weights.

Only safetensors are read; a pickled file is refused. Nothing here runs code from the folder.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from transformers import LlamaConfig

from roundround.errors import UserError, one_line
from roundround.files import sha256
from roundround.hf.foreign import check_config, folder_named, quiet, read_header, read_json, some_of, weight_files
from roundround.hf.llama import DecoderNodes, decoder_nodes, decoder_weights
from roundround.memory import check_fits
from roundround.model.decoder import Decoder, belongs_to_a_variant
from roundround.packaged import packaged_models

PREFIX = "hf:"


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
            raise UserError(f"{self.folder} {what} {some_of(names)}")


def read_checkpoint(reference: str) -> LlamaCheckpoint:
    """The checkpoint that `hf:DIR`, or the name of a packaged model, means.

    Raises UserError where there is none, or one that the decoder cannot represent.
    """
    packaged, given = packaged_models(), str(reference)  # not checked yet: init=5 is a number
    if given not in packaged and (not given.startswith(PREFIX) or given == PREFIX):
        names = " or ".join(packaged)
        raise UserError(f"init={given} must be {PREFIX}DIR, the folder of a Llama-type checkpoint, or {names}")
    folder = packaged[given] if given in packaged else folder_named(given.removeprefix(PREFIX)).absolute()
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
    header = read_header(files)
    check_config(read_json(folder / "config.json"), folder / "config.json", header)
    check_fits(4 * header.n_elements, torch.device("cpu"), f"{folder} in float32", "start from a smaller checkpoint")
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
    raw = read_json(path)
    kind = raw.get("model_type") if isinstance(raw, dict) else None
    if kind != "llama":
        raise UserError(f"{path}: model_type is {kind}, and the decoder can start from llama alone")
    if "quantization_config" in raw:
        raise UserError(f"{path}: the weights are quantised, and the decoder's are not")
    try:
        with quiet():
            return LlamaConfig(**raw)
    except Exception as error:  # transformers has many ways to refuse a value
        raise UserError(f"{path}: {one_line(error)}") from error
