"""A checkpoint of Hugging Face's in a folder, from which a training run may start: one that `config_nodes.py` knows.

Only safetensors are read, a pickled file is refused, and nothing runs code from the folder. `stock.py` is the other
direction: a decoder as a model of transformers. Below stand the files of a checkpoint, and what their headers say.

Tested by tests/trained/test_initial.py, tests/trained/test_export_folder.py, tests/hf/test_hf_load.py and
tests/asking/test_hf_commands.py.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import EllipsisType
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers.utils import logging

from roundround.hf.config_nodes import FAMILIES, DecoderNodes, decoder_nodes
from roundround.model.decoder import Decoder, belongs_to_a_variant
from roundround.model.shards import fill
from roundround.support.errors import UserError, one_line
from roundround.support.files import home_expanded, parse_json, read_text, sha256
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
        """Give the decoder these weights, or the rows that it holds; what a variant learns does not change."""
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
        kinds = f"run:DIR, run:last, {PREFIX}DIR with a Llama-type checkpoint in it"
        raise UserError(f"init={given} must be one of {kinds}, or {names}")
    return home_expanded(given.removeprefix(PREFIX), "the model").absolute()


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
    if kind not in FAMILIES:
        raise UserError(f"{path}: model_type is {kind}, and the decoder can start from {', '.join(FAMILIES)} alone")
    if "quantization_config" in raw:
        raise UserError(f"{path}: the weights are quantised, and the decoder's are not")
    if not (folder / "tokenizer.json").is_file():
        raise UserError(f"{folder} has no tokenizer.json, and the vocabulary is the checkpoint's")
    files = weight_files(folder)
    count_numbers(files)  # a damaged file is named here
    check_config(raw, path)
    try:
        with quiet():
            config = FAMILIES[kind].config(**raw)
        nodes = decoder_nodes(config)
    except Exception as error:  # transformers has many ways to refuse a value
        raise UserError(f"{path}: {one_line(error)}") from error
    weights = stored_weights(files, one_less=FAMILIES[kind].one_less)
    head, embedding = weights.get("lm_head.weight"), weights.get("embed_tokens.weight")
    if nodes.model["tied_embeddings"] and head is not None:  # transformers keeps one that differs, tied or not
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
    """What the files hold by the decoder's names. What does nothing is left out, as are tables of frequencies.

    UserError for numbers that are no floating-point ones of 16 bits or more.
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
                        raise UserError(
                            f"{file}: {name} is of {dtype}, and weights are of {', '.join(FLOATS)}; "
                            "dequantise them and save them again"
                        )
                    plus_one = one_less and name.endswith("norm.weight")
                    own_name = re.sub(
                        r"\.self_attn\.([qk]_norm)\.", r".self_attn.qk_norm.\1.", name.removeprefix("model.")
                    )
                    found[own_name] = StoredWeight(file, name, shape, plus_one)
    return found


# -- the files of a checkpoint


FLOATS = ("F64", "F32", "BF16", "F16")  # as safetensors calls them
PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
MASKS = ("attn.bias", "attention.bias", "masked_bias")


def read_json(path: Path) -> Any:
    """A json file of a checkpoint. UserError where it is none."""
    if not path.exists():
        raise UserError(f"{path.parent} has no {path.name}; it is no checkpoint of Hugging Face's")
    try:
        return parse_json(read_text(path))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {one_line(error)}") from error


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a checkpoint. UserError where there are none."""
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if (folder / INDEX).is_file():
        return [folder / Path(name).name for name in sorted(set(read_json(folder / INDEX)["weight_map"].values()))]
    pickled = sorted(path.name for pattern in PICKLED for path in folder.glob(pattern))
    if pickled:
        raise UserError(f"{folder} has pickled weights alone ({pickled[0]}), which are never read; save safetensors")
    raise UserError(f"{folder} has no {WEIGHTS}")


def count_numbers(files: Sequence[Path]) -> int:
    """How many numbers the files hold; no weights are read. UserError for a damaged file."""
    n = 0
    for file in files:
        try:
            with safe_open(file, "pt") as opened:
                n += sum(math.prod(opened.get_slice(name).get_shape()) for name in opened.keys())  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise UserError(f"{file} is damaged, cut short or not there: {one_line(error)}") from error
    return n


def causal_masks(files: Sequence[Path]) -> set[str]:
    """The masks that transformers once saved beside the weights: square tables, and the number for what is masked.

    A real bias of an attention, which could have the same name, is a row.
    """
    found = set()
    for file in files:
        with safe_open(file, "pt") as opened:
            for name in filter(lambda name: name.endswith(MASKS), opened.keys()):
                shape = opened.get_slice(name).get_shape()
                if len(shape) == 0 or shape[-1:] == shape[-2:-1]:
                    found.add(name)
    return found


def check_config(config: Any, path: Path) -> None:
    """UserError where config.json gives two bases of its RoPE: transformers takes the first."""
    parts = [config, *config.values()] if isinstance(config, dict) else []
    for part in parts:  # the decoder of a model that also sees or hears is in a part of its own
        rope, theta = (part.get("rope_parameters"), part.get("rope_theta")) if isinstance(part, dict) else (None, None)
        if theta is not None and isinstance(rope, dict) and rope.get("rope_theta", theta) != theta:
            raise UserError(
                f"{path}: rope_theta is {theta}, and {rope['rope_theta']} in rope_parameters; leave one of them"
            )


@contextmanager
def quiet() -> Iterator[None]:
    """Inside, transformers reports nothing to the terminal; what matters of it, we say in a line of our own."""
    before = logging.get_verbosity()
    logging.set_verbosity(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(before)


def some_of(names: Sequence[str]) -> str:
    """The first three names and how many more there are."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
