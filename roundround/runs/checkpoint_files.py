"""The files of one checkpoint, written and read back; what is wrong with one is a ValueError in a few words.

model.safetensors    the decoder's weights     trainer.safetensors  the optimizer's tensors
state.json           step, losses, the optimizer's numbers, sha256 of the other files

In the place of the two, a run whose parameters are shared out has two from each process: `sharded_checkpoints.py`.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from roundround.support.files import is_full, parse_json, read_text, sha256, usual_mode, write_json

WEIGHTS, TRAINER, STATE = "model.safetensors", "trainer.safetensors", "state.json"
SHARD = re.compile(r"shard-\d{5}-model-0000[12]-of-00002\.safetensors")  # as torch names them
OF_OPTIMIZER = re.compile(r"\d+\..+")  # the names of its tensors, which no weight has


def write(
    folder: Path, *, step: int, weights: Mapping[str, Tensor], optimizer: dict[str, Any], state: dict[str, Any]
) -> None:
    """Write the three files; `state` is json. Raises OSError where the disk is full."""
    tensors = split_optimizer(optimizer)
    write_tensors(folder / WEIGHTS, dict(weights))
    write_tensors(folder / TRAINER, tensors)
    hashes = {name: sha256(folder / name) for name in (WEIGHTS, TRAINER)}
    write_state(folder, step=step, optimizer=optimizer, n_tensors=len(tensors), state=state, hashes=hashes)


def write_state(
    folder: Path, *, step: int, optimizer: dict[str, Any], n_tensors: int, state: dict[str, Any], hashes: dict[str, str]
) -> None:
    """Write state.json, the last file of a checkpoint."""
    numbers = {"param_groups": optimizer["param_groups"], "n_tensors": n_tensors}
    write_json(folder / STATE, {"step": step, **state, "optimiser": numbers, "sha256": hashes})


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """One safetensors file, flushed to the disk. OSError (ENOSPC) where the disk is full."""
    try:
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path)
    except SafetensorError as error:
        if is_full(error):
            raise OSError(errno.ENOSPC, "No space left on device", str(path)) from error
        raise
    usual_mode(path)
    with open(path, "rb+") as file:
        os.fsync(file.fileno())


def read_tensors(path: Path, sha256_of_writer: str) -> dict[str, Tensor]:
    """The tensors of a file that is as it was written. Raises ValueError where it is not, OSError where it is gone."""
    check_hash(path, sha256_of_writer)
    try:
        return dict(load_file(path))
    except SafetensorError as error:
        raise ValueError("it is no safetensors file") from error


def check_hash(path: Path, sha256_of_writer: str) -> None:
    """Raises ValueError where the file is not as it was written, OSError where it is gone."""
    if sha256(path) != sha256_of_writer:
        raise ValueError("it does not match its hash")


def is_sharded(state: Mapping[str, Any]) -> bool:
    """Whether the checkpoint of this state.json consists of the files of several processes."""
    return WEIGHTS not in state["sha256"]


def read_numbers(path: Path, step: int) -> dict[str, Any]:
    """A state.json with all that `write` puts there. Raises ValueError where it is not that of this step."""
    try:
        state = parse_json(read_text(path))
    except ValueError as error:
        raise ValueError("it is not valid json") from error
    if not isinstance(state, dict):
        raise ValueError("it is no json object")
    if type(state.get("step")) is not int or state["step"] != step:
        raise ValueError("its step is not the folder's")
    check_optimizer_numbers(state.get("optimiser"))
    hashes = state.get("sha256")
    if not isinstance(hashes, dict) or not hashes or not all(isinstance(value, str) for value in hashes.values()):
        raise ValueError("it lacks the hashes")
    if not {WEIGHTS, TRAINER} <= hashes.keys() and not all(map(SHARD.fullmatch, hashes)):
        raise ValueError("it lacks the hashes")
    if ("best" in state) != ("validated" in state):  # max retrieval validates nothing
        raise ValueError("it lacks best or validated")
    for name in ("best", "validated"):
        if name in state and not is_measurement(state[name]):
            raise ValueError(f"its '{name}' is no step with its loss")
    return state


def check_optimizer_numbers(numbers: Any) -> None:
    """Raises ValueError where these are not the groups of an optimizer."""
    groups = numbers.get("param_groups") if isinstance(numbers, dict) else None
    if not isinstance(groups, list) or not groups:
        raise ValueError("it lacks the optimizer's groups")
    if not all(isinstance(group, dict) and isinstance(group.get("params"), list) for group in groups):
        raise ValueError("it lacks the optimizer's parameters")


def is_measurement(value: Any) -> bool:
    """Whether this is a step, or none yet, with its held-out loss."""
    if not isinstance(value, dict) or "step" not in value:
        return False
    return type(value["step"]) in (int, type(None)) and isinstance(value.get("nats_per_token"), float)


def split_optimizer(optimizer: dict[str, Any]) -> dict[str, Tensor]:
    """The tensors of an optimizer's `state_dict`, by "<parameter>.<name>"."""
    tensors = {}
    for parameter, values in optimizer["state"].items():
        for name, value in values.items():
            assert isinstance(value, Tensor), f"optimizer state {name} is no tensor"
            tensors[f"{parameter}.{name}"] = value
    return tensors


def join_optimizer(tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> dict[str, Any]:
    """The optimizer's `state_dict` again. Raises ValueError where the tensors are not those that were written."""
    if len(tensors) != numbers.get("n_tensors", len(tensors)):  # earlier versions did not count them
        raise ValueError(f"it holds {len(tensors):,} tensors of {numbers['n_tensors']:,}")
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        parameter, _, name = key.partition(".")
        if not parameter.isdecimal() or not name:
            raise ValueError(f"it holds a tensor '{key[:40]}'")
        state.setdefault(int(parameter), {})[name] = tensor
    return {"state": state, "param_groups": numbers["param_groups"]}
