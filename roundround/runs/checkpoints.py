"""Checkpoints: weights as safetensors, trainer state apart, each guarded by its hash; nothing is ever unpickled.

checkpoints/step-00000200/  model.safetensors    the decoder's weights, by Hugging Face's names
                            trainer.safetensors  the optimizer's tensors
                            state.json           step, losses, the optimizer's numbers, sha256 of the two files
checkpoints/last, best      links to the folders that deserve the names

A folder is written under another name, flushed to the disk and renamed, so that one that exists is whole.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from roundround.errors import UserError
from roundround.files import flush_folder, folder_in_one_step, sha256, write_json

WEIGHTS, TRAINER, STATE = "model.safetensors", "trainer.safetensors", "state.json"


@dataclass(frozen=True)
class Checkpoint:
    """What is needed to go on: the weights, the optimizer's state, and the numbers of `state.json`."""

    weights: dict[str, Tensor]
    optimizer: dict[str, Any]
    state: dict[str, Any]


def folder_of(step: int) -> str:
    return f"step-{step:08d}"


def save(
    checkpoints: Path, *, step: int, weights: Mapping[str, Tensor], optimizer: dict[str, Any], state: dict[str, Any]
) -> Path:
    """Write the checkpoint of a step atomically and point `last` at it; returns its folder.

    `state` is json. Raises OSError where the disk is full; then nothing is half-written.
    """
    final = checkpoints / folder_of(step)
    temporary = checkpoints / f".{final.name}"
    if not (final / STATE).exists():
        with folder_in_one_step(final, temporary):
            tensors, numbers = split_optimizer(optimizer)
            write_tensors(temporary / WEIGHTS, dict(weights))
            write_tensors(temporary / TRAINER, tensors)
            hashes = {name: sha256(temporary / name) for name in (WEIGHTS, TRAINER)}
            write_json(temporary / STATE, {"step": step, **state, "optimiser": numbers, "sha256": hashes})
    point(checkpoints, "last", final)
    return final


def point(checkpoints: Path, name: str, folder: Path) -> None:
    """Make `checkpoints/<name>` a link to the folder, in one step."""
    link = checkpoints / f".{name}"
    link.unlink(missing_ok=True)
    link.symlink_to(folder.name)
    os.replace(link, checkpoints / name)
    flush_folder(checkpoints)


def prune(checkpoints: Path, keep: int) -> None:
    """Delete all but the newest `keep` checkpoints and the best."""
    best = (checkpoints / "best").resolve()
    for folder in steps(checkpoints)[:-keep]:
        if folder.resolve() != best:
            shutil.rmtree(folder)


def steps(checkpoints: Path) -> list[Path]:
    """The folders of whole checkpoints, oldest first."""
    return sorted(folder for folder in checkpoints.glob("step-*") if folder.is_dir())


def newest(checkpoints: Path) -> Path | None:
    """The folder to resume from, None where the run was stopped before its first checkpoint."""
    found = steps(checkpoints)
    return found[-1] if found else None


def find(run: Path, name: str) -> Path:
    """The folder of a run's checkpoint by name: best, last, or step-00000200. UserError where there is none."""
    checkpoints = run / "checkpoints"
    folder = newest(checkpoints) if name == "last" else checkpoints / name
    if folder is None or not folder.is_dir():
        there = [path.name for path in steps(checkpoints)]
        raise UserError(f"{run} has no checkpoint '{name}'" + (f" (there are: {', '.join(there)})" if there else ""))
    return folder.resolve()


def load_weights(folder: Path) -> dict[str, Tensor]:
    """The weights, once their hash is seen to be right."""
    return checked_tensors(folder, read_state(folder), WEIGHTS)


def load(folder: Path) -> Checkpoint:
    """Everything, once the hashes are seen to be right."""
    state = read_state(folder)
    tensors = checked_tensors(folder, state, TRAINER)
    weights = checked_tensors(folder, state, WEIGHTS)
    return Checkpoint(weights, join_optimizer(tensors, state["optimiser"]), state)


def read_state(folder: Path) -> dict[str, Any]:
    try:
        state = json.loads((folder / STATE).read_text(encoding="utf-8"))
        state["step"], state["optimiser"], state["sha256"][WEIGHTS]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise damaged(folder, STATE) from error
    assert isinstance(state, dict)
    return state


def checked_tensors(folder: Path, state: dict[str, Any], name: str) -> dict[str, Tensor]:
    try:
        if sha256(folder / name) != state["sha256"][name]:
            raise damaged(folder, name)
        return dict(load_file(folder / name))
    except (OSError, SafetensorError) as error:
        raise damaged(folder, name) from error


def damaged(folder: Path, name: str) -> UserError:
    """The error for a file that is truncated or changed, with the checkpoint to take instead."""
    others = [path.name for path in steps(folder.parent) if path.name != folder.name]
    if not others:
        return UserError(f"{folder / name} is damaged (it does not match its hash) and there is no other checkpoint")
    return UserError(
        f"{folder / name} is damaged (it does not match its hash); the one before is {others[-1]}: "
        f"evaluate it with checkpoint={others[-1]}, or delete {folder} to resume from it"
    )


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """One safetensors file, flushed to the disk. OSError (ENOSPC) where the disk is full."""
    try:
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path)
    except SafetensorError as error:
        if "No space left" in str(error) or "os error 28" in str(error):
            raise OSError(errno.ENOSPC, "No space left on device", str(path)) from error
        raise
    with open(path, "rb+") as file:
        os.fsync(file.fileno())


def split_optimizer(optimizer: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """An optimizer's `state_dict` as (tensors by "<parameter>.<name>", the json rest)."""
    tensors = {}
    for parameter, values in optimizer["state"].items():
        for name, value in values.items():
            assert isinstance(value, Tensor), f"optimiser state {name} is no tensor"
            tensors[f"{parameter}.{name}"] = value
    return tensors, {"param_groups": optimizer["param_groups"]}


def join_optimizer(tensors: Mapping[str, Tensor], numbers: dict[str, Any]) -> dict[str, Any]:
    """The reverse of `split_optimizer`."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        parameter, name = key.split(".", 1)
        state.setdefault(int(parameter), {})[name] = tensor
    return {"state": state, **numbers}
