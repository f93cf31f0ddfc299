"""A checkpoint in Hugging Face's form: its files, what their headers say, and what config.json says twice or too large.

Sizes that are not those of the weights are refused by whoever fills a model with them, before it takes memory.

Tested by tests/loading/test_hf_load.py and tests/loading/test_hf_commands.py.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from transformers.utils import logging

from roundround.model.kinds import MOST_LAYERS
from roundround.support.errors import UserError, one_line, printable
from roundround.support.files import home_expanded, parse_json, read_text

PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
SOON_BUILT = 100  # layers that cost a second: what is missing is named better then
LAYERS = (  # as families of models call them
    *("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    *("decoder_layers", "encoder_layers", "num_decoder_layers"),
)
MASKS = ("attn.bias", "attention.bias", "masked_bias")


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


def count_tensors(files: Sequence[Path]) -> tuple[int, int]:
    """How many tensors the files hold, and of how many numbers; no weights are read. UserError for a damaged file."""
    sizes: list[int] = []
    for file in files:
        try:
            with safe_open(file, "pt") as opened:
                sizes += [math.prod(opened.get_slice(name).get_shape()) for name in opened.keys()]  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise UserError(f"{file} is damaged or cut short: {one_line(error)}") from error
    return len(sizes), sum(sizes)


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


def check_config(config: Any, path: Path, n_tensors: int | None) -> None:
    """UserError where config.json has more layers than the weights have tensors, an empty context, or two thetas."""
    most = MOST_LAYERS if n_tensors is None else min(max(n_tensors, SOON_BUILT), MOST_LAYERS)
    parts = [config, *config.values()] if isinstance(config, Mapping) else []
    for part in parts:  # the decoder of a model that also sees or hears is in a part of its own
        if not isinstance(part, Mapping):
            continue
        for name in LAYERS:
            if isinstance(n_layers := part.get(name), int) and n_layers > most:
                raise UserError(f"{path}: {name} is {n_layers}, and the weights are of {most:,} layers at the most")
        context = part.get("max_position_embeddings")
        if isinstance(context, int) and context < 1:  # figures and tables mark it
            raise UserError(f"{path}: max_position_embeddings is {context}, and a context has a token or more")
        rope, theta = part.get("rope_parameters"), part.get("rope_theta")  # transformers takes the first
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
