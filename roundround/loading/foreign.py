"""A stranger's checkpoint: what its files hold, read off their headers, and whether config.json can belong to them.

The sizes that a config.json names are compared before anything of that size is built.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from transformers.utils import logging

from roundround.model.decoder import MOST_LAYERS
from roundround.support.errors import UserError, one_line, printable
from roundround.support.files import home_expanded, parse_json, read_text

PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
SOON_BUILT, SOON_FILLED = 100, 2**26  # layers and numbers that cost a second: what is missing is named better then
# as families of models call them
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
LAYERS_OF_TWO_PARTS = ("decoder_layers", "encoder_layers", "num_decoder_layers")
COLUMNS = ("hidden_size", "n_embd", "d_model")
ROWS = ("vocab_size", "intermediate_size")  # of matrices with so many columns
MASKS = ("attn.bias", "attention.bias", "masked_bias")


@dataclass(frozen=True, kw_only=True)
class Header:
    """How much the safetensors of a checkpoint hold."""

    n_tensors: int
    n_elements: int
    n_bytes: int


def folder_named(text: str) -> Path:
    """A path as typed, ~ included. UserError where the system cannot even look it up."""
    folder = home_expanded(text, "the model")
    try:
        folder.is_dir()
    except OSError as error:
        raise UserError(f"{printable(text, 80)} names no folder: {error.strerror}") from error
    return folder


def read_json(path: Path) -> Any:
    """A json file of a checkpoint. UserError where it is none."""
    if not path.is_file():  # a pipe would be waited for
        raise UserError(f"{path.parent} has no {path.name}; it is no checkpoint of Hugging Face's")
    try:
        return parse_json(read_text(path))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {one_line(error)}") from error


def weight_files(folder: Path) -> list[Path]:
    """The safetensors of a checkpoint. UserError where there are none, or not all."""
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if (folder / INDEX).is_file():
        index = read_json(folder / INDEX)
        try:
            files = [folder / Path(name).name for name in sorted(set(index["weight_map"].values()))]
        except (KeyError, AttributeError, TypeError) as error:
            raise UserError(f"{folder / INDEX} cannot be read: {one_line(error)}") from error
        for file in files:
            if not file.is_file():
                raise UserError(f"{file} is named in {INDEX} and is not there")
        return files
    pickled = sorted(path.name for pattern in PICKLED for path in folder.glob(pattern))
    if pickled:
        raise UserError(f"{folder} has pickled weights alone ({pickled[0]}), which are never read; save safetensors")
    raise UserError(f"{folder} has no {WEIGHTS}")


def read_header(files: Sequence[Path]) -> Header:
    """What the files hold; no weights are read. UserError for a file that is no safetensors."""
    n_tensors = n_elements = 0
    for file in files:
        try:
            with safe_open(file, "pt") as opened:
                for name in opened.keys():  # noqa: SIM118 (it is no dict)
                    n_tensors, n = n_tensors + 1, 1
                    for size in opened.get_slice(name).get_shape():
                        n *= size
                    n_elements += n
        except (OSError, SafetensorError) as error:
            raise UserError(f"{file} is damaged or cut short: {one_line(error)}") from error
    return Header(n_tensors=n_tensors, n_elements=n_elements, n_bytes=sum(file.stat().st_size for file in files))


def causal_masks(files: Sequence[Path]) -> set[str]:
    """The masks that transformers once saved beside the weights: square tables, and the number for what is masked.

    A real bias of an attention, of which the name could be the same, is a row.
    """
    found = set()
    for file in files:
        with safe_open(file, "pt") as opened:
            for name in filter(lambda name: name.endswith(MASKS), opened.keys()):
                shape = opened.get_slice(name).get_shape()
                if len(shape) == 0 or shape[-1:] == shape[-2:-1]:
                    found.add(name)
    return found


def check_config(config: Any, path: Path, header: Header | None) -> None:
    """UserError where config.json names sizes that no weights of this header have, or two values for one setting.

    Nor may the context be empty, which figures and tables mark.
    """
    parts = [config, *config.values()] if isinstance(config, Mapping) else []
    for part in parts:  # the decoder of a model that also sees or hears is in a part of its own
        if isinstance(part, Mapping):
            check_sizes(part, path, header)
            check_theta(part, path)
            context = part.get("max_position_embeddings")
            if isinstance(context, int) and context < 1:
                raise UserError(f"{path}: max_position_embeddings is {context}, and a context has a token or more")


def check_sizes(part: Mapping[str, Any], path: Path, header: Header | None) -> None:
    """A layer has at least a tensor, and an element, packed by a quantisation, at least half a byte."""
    most = MOST_LAYERS if header is None else min(max(header.n_tensors, SOON_BUILT), MOST_LAYERS)
    for name, n_layers in whole(part, LAYERS + LAYERS_OF_TWO_PARTS).items():
        if n_layers > most:
            raise UserError(f"{path}: {name} is {n_layers}, and the weights are of {most:,} layers at the most")
    if header is None:
        return
    columns, n_columns = next(iter(whole(part, COLUMNS).items()), (COLUMNS[0], 1))
    for name, n_rows in whole(part, ROWS).items():
        if n_rows * n_columns > max(2 * header.n_bytes, SOON_FILLED):
            matrix = f"{name} is {n_rows}, with {columns} {n_columns} a matrix larger than all weights together"
            raise UserError(f"{path}: {matrix}, which have {header.n_elements:,} numbers")


def whole(part: Mapping[str, Any], names: Sequence[str]) -> dict[str, int]:
    """Those of the names that stand for a whole number."""
    return {name: part[name] for name in names if isinstance(part.get(name), int)}


def check_theta(part: Mapping[str, Any], path: Path) -> None:
    """UserError for an old field beside the new one which says something else; transformers takes the new one."""
    rope, theta = part.get("rope_parameters"), part.get("rope_theta")
    if theta is not None and isinstance(rope, Mapping) and rope.get("rope_theta", theta) != theta:
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
