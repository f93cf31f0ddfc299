"""Checkpoints: weights and trainer state in separate safetensors files with hashes; nothing is ever unpickled.

checkpoints/step-00000200/  model.safetensors    the weights
                            trainer.safetensors  the optimizer's tensors, as "<parameter>.<name>"
                            state.json           step, losses, the optimizer's numbers, sha256 of the other files
checkpoints/last, best      links to such folders, for people and other programs

If the parameters are sharded over processes, each process writes two files of its own in place of the first two
(sharded_checkpoints.py). The names of the tensors and the file state.json stay the same. `load` and `load_weights` read
both layouts.

A checkpoint's folder is written under a hidden name, flushed to the disk and then renamed to the name of its step.
Before a checkpoint is deleted, its folder is renamed to the hidden name. So a folder with a step's name is always
complete. The last and the best checkpoint are determined from the folders and never from the links, because a writer
may be killed before it makes the links. The newest state.json names the best step.
"""

from __future__ import annotations

import os
import re
import shutil
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from roundround.support.errors import UserError
from roundround.support.files import (
    flush_folder,
    folder_in_one_step,
    parse_json,
    read_text,
    sha256,
    usual_mode,
    write_json,
)

WEIGHTS, TRAINER, STATE = "model.safetensors", "trainer.safetensors", "state.json"
STEP, LINKS = "step-", ("last", "best")
NAME = re.compile(rf"{STEP}\d{{8,18}}")  # the name of a checkpoint's folder
OF_OPTIMIZER = re.compile(r"\d+\..+")  # the names of the optimizer's tensors; no weight has such a name
KEPT = 2  # the number of newest checkpoints that are kept, beside the best


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint to resume from. Weights and optimizer are empty if each process has yet to read its own share."""

    weights: dict[str, Tensor]
    optimizer: dict[str, Any]
    state: dict[str, Any]
    folder: Path


# -- writing


def save(
    checkpoints: Path, *, step: int, weights: Mapping[str, Tensor], optimizer: dict[str, Any], state: dict[str, Any]
) -> Path:
    """Write the checkpoint of a step atomically, then update the links and delete old ones; returns its folder.

    state: values that JSON can hold; the entry "best", if present, holds the lowest loss so far and its step.
    Raises OSError or SafetensorError if the disk is full (`is_full`); then no incomplete checkpoint remains.
    """
    final = checkpoints / folder_of(step)
    folder = hidden(final)
    with folder_in_one_step(final, folder):
        write_tensors(folder / WEIGHTS, weights)
        write_tensors(folder / TRAINER, split_optimizer(optimizer))
        hashes = {name: sha256(folder / name) for name in (WEIGHTS, TRAINER)}
        write_state(folder, step=step, optimizer=optimizer, state=state, hashes=hashes)
    update_links(checkpoints)
    return final


def amend(folder: Path, **state: Any) -> None:
    """Set these values in a checkpoint's state.json, atomically, and update the links."""
    write_json(folder / STATE, read_state(folder) | state)
    update_links(folder.parent)


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write one safetensors file and flush it to the disk. Raises SafetensorError if the disk is full (`is_full`)."""
    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path)
    usual_mode(path)
    with open(path, "rb+") as file:
        os.fsync(file.fileno())


def write_state(
    folder: Path, *, step: int, optimizer: dict[str, Any], state: dict[str, Any], hashes: dict[str, str]
) -> None:
    """Write state.json. It is the last file of a checkpoint to be written."""
    numbers = {"param_groups": optimizer["param_groups"], "n_tensors": len(split_optimizer(optimizer))}
    write_json(folder / STATE, {"step": step, **state, "optimiser": numbers, "sha256": hashes})


def split_optimizer(optimizer: dict[str, Any]) -> dict[str, Tensor]:
    """The tensors of an optimizer's `state_dict`; their keys are "<parameter>.<name>"."""
    return {f"{n}.{name}": value for n, values in optimizer["state"].items() for name, value in values.items()}


def update_links(checkpoints: Path) -> None:
    """Make the links lead to the newest and the best checkpoint, and delete old ones.

    Raises UserError if the newest state.json is damaged; then nothing has been changed yet.
    """
    kept = {"last": newest(checkpoints), "best": best(checkpoints)}
    for name, folder in kept.items():
        set_link(checkpoints, name, folder)
    for folder in steps(checkpoints)[:-KEPT]:
        if folder != kept["best"]:
            os.rename(folder, hidden(folder))  # so that a kill leaves no partly deleted folder under a step's name
            shutil.rmtree(hidden(folder))


def clean_up(checkpoints: Path) -> None:
    """Remove what a killed writer left under hidden names, and update the links. The caller holds the run's lock."""
    for folder in checkpoints.glob(f".{STEP}*"):
        shutil.rmtree(folder)
    for name in LINKS:
        (checkpoints / f".{name}").unlink(missing_ok=True)
    update_links(checkpoints)


def set_link(checkpoints: Path, name: str, folder: Path | None) -> None:
    """Make `checkpoints/<name>` a link to the folder, in one step; if `folder` is None, remove the link."""
    link, temporary = checkpoints / name, checkpoints / f".{name}"
    if folder is None:
        link.unlink(missing_ok=True)
    elif not link.is_symlink() or os.readlink(link) != folder.name:
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(folder.name)
        os.replace(temporary, link)
        flush_folder(checkpoints)


def hidden(folder: Path) -> Path:
    """The name of a checkpoint's folder while it is written or deleted."""
    return folder.with_name(f".{folder.name}")


# -- finding


def folder_of(step: int) -> str:
    return f"{STEP}{step:08d}"


def step_of(folder: Path) -> int:
    return int(folder.name.removeprefix(STEP))


def steps(checkpoints: Path) -> list[Path]:
    """The folders of complete checkpoints, oldest first. Links and folders with other names are left out."""
    found = [folder for folder in checkpoints.glob(f"{STEP}*") if NAME.fullmatch(folder.name)]
    return sorted((folder for folder in found if folder.is_dir() and not folder.is_symlink()), key=step_of)


def newest(checkpoints: Path) -> Path | None:
    """The folder of the newest checkpoint; None if the run was stopped before its first checkpoint."""
    found = steps(checkpoints)
    return found[-1] if found else None


def best(checkpoints: Path) -> Path | None:
    """The folder of the checkpoint with the lowest held-out loss, from the newest state.json; None if there is none."""
    folder = newest(checkpoints)
    measured = read_state(folder).get("best") if folder is not None else None
    if measured is None or measured["step"] is None:
        return None
    path = checkpoints / folder_of(measured["step"])
    return path if path in steps(checkpoints) else None


def find(run: Path, name: str) -> Path:
    """The folder of a run's checkpoint by name: best, last, or step-00000200.

    Raises UserError if the run has no checkpoint of that name.
    """
    checkpoints = run / "checkpoints"
    folder: Path | None = checkpoints / name
    if name in LINKS:  # the links themselves may be out of date
        folder = best(checkpoints) if name == "best" else newest(checkpoints)
    there = steps(checkpoints)  # read last, because another process may have just written the newest
    if folder not in there:
        names = ", ".join(path.name for path in there)
        raise UserError(f"{run} has no checkpoint '{name}'" + (f" (there are: {names})" if there else ""))
    return folder.resolve()


# -- reading


def load_weights(folder: Path) -> dict[str, Tensor]:
    """The weights, unsharded. Their hashes are checked first."""
    return read(folder, read_state(folder), (WEIGHTS,))


def load(folder: Path) -> Checkpoint:
    """Weights, optimizer and state, unsharded. The hashes are checked first."""
    state = read_state(folder)
    tensors = read(folder, state, (TRAINER, WEIGHTS))
    of_optimizer = {name: tensors.pop(name) for name in list(tensors) if OF_OPTIMIZER.fullmatch(name)}
    return Checkpoint(tensors, join_optimizer(of_optimizer, state["optimiser"]), state, folder)


def read(folder: Path, state: dict[str, Any], files: Sequence[str]) -> dict[str, Tensor]:
    """The tensors of these files, or of the shards that replace them. Raises UserError if a file is damaged."""
    if WEIGHTS in state["sha256"]:
        check_files(folder, state, files)
        return {name: tensor for file in files for name, tensor in load_file(folder / file).items()}
    check_files(folder, state, state["sha256"])
    tensors = {
        name: torch.empty(of.size, dtype=of.properties.dtype)
        for name, of in described(folder).items()
        if TRAINER in files or not OF_OPTIMIZER.fullmatch(name)
    }
    fill(tensors, folder, alone=True)
    return tensors


def described(folder: Path) -> dict[str, Any]:
    """The unsharded size and the type of each tensor of a checkpoint, by the tensor's name."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader  # it takes a second to import

    return HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata


def fill(tensors: dict[str, Tensor], folder: Path, *, alone: bool = False) -> None:
    """Read values from a checkpoint, sharded or not, into the tensors; a sharded tensor gets only the rows it holds.

    alone: whether only one process calls the function; if False, all processes must call it together.
    """
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load as read_into

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # one process reads on purpose
        read_into(tensors, storage_reader=HuggingFaceStorageReader(str(folder)), no_dist=alone)


def check_files(folder: Path, state: dict[str, Any], names: Iterable[str]) -> None:
    """Raises UserError if one of these files was changed or is gone."""
    for name in names:
        if not (folder / name).exists() or sha256(folder / name) != state["sha256"][name]:
            raise damaged(folder, name)


def read_state(folder: Path) -> dict[str, Any]:
    """The content of state.json. Raises UserError if it is damaged."""
    try:
        state: dict[str, Any] = parse_json(read_text(folder / STATE))
    except (OSError, ValueError) as error:
        raise damaged(folder, STATE) from error
    return state


def join_optimizer(tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> dict[str, Any]:
    """The optimizer's `state_dict`, put together again from its tensors and its numbers."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        parameter, _, name = key.partition(".")
        state.setdefault(int(parameter), {})[name] = tensor
    return {"state": state, "param_groups": numbers["param_groups"]}


def damaged(folder: Path, name: str) -> UserError:
    """The error for a file that is truncated, changed or missing."""
    return UserError(
        f"{folder / name} is damaged or gone; delete {folder} to resume from the checkpoint before it, or choose "
        "another checkpoint to evaluate with checkpoint="
    )


# -- into a model


def check_weights(model: nn.Module, weights: Mapping[str, Tensor | torch.Size], folder: Path) -> None:
    """Raises UserError if names or sizes of the checkpoint's weights differ from those of the model.

    The model may be on the meta device. folder: the checkpoint, for the message.
    """
    own = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
    given = {name: list(of.shape if isinstance(of, Tensor) else of) for name, of in weights.items()}
    wrong = sorted(name for name in own.keys() | given.keys() if own.get(name) != given.get(name))
    if wrong:
        sizes = f"{given.get(wrong[0], 'missing')} in the file and {own.get(wrong[0], 'missing')} in the model"
        raise UserError(f"{folder / WEIGHTS} does not fit the model of the run: {wrong[0]} is {sizes}")


def load_into(model: nn.Module, weights: Mapping[str, Tensor], folder: Path) -> None:
    """Load the weights of the checkpoint in `folder` into a model. Raises UserError if they do not fit it."""
    check_weights(model, weights, folder)
    model.load_state_dict(dict(weights))
