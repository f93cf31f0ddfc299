"""Checkpoints: weights as safetensors, trainer state apart, each guarded by its hash; nothing is ever unpickled.

checkpoints/step-00000200/  model.safetensors    the weights
                            trainer.safetensors  the optimizer's tensors, as "<parameter>.<name>"
                            state.json           step, losses, the optimizer's numbers, sha256 of the other files
checkpoints/last, best      links to such folders, for people and other programs

If processes share the parameters out, each writes two files of its own in place of the first two
(sharded_checkpoints.py), with the same names of tensors inside and the same state.json. `load` and `load_weights` read
both layouts.

A folder is written under a hidden name, flushed to the disk and renamed, and renamed back before it is deleted: with a
step's name it is whole. The folders, never the links, say which checkpoint is the last and which the best: a writer
may be killed after it has written a folder and before it has made the links. The newest state.json has the best step.
"""

from __future__ import annotations

import os
import re
import shutil
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from roundround.records.directories import fault_in
from roundround.support.errors import UserError, one_line
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
NAME = re.compile(rf"{STEP}\d{{8,18}}")  # of a checkpoint
OF_OPTIMIZER = re.compile(r"\d+\..+")  # the names of its tensors, which no weight has
KEPT = 2  # beside the best
# of state.json, beside the step; a training also has "best" and "validated", a step each with its loss
FIELDS = {"optimiser": dict, "optimiser.n_tensors": int, "optimiser.param_groups": list, "sha256": dict}


@dataclass(frozen=True)
class Checkpoint:
    """What a run resumes from. Weights and optimizer are empty if each process reads its own share of the folder."""

    weights: dict[str, Tensor]
    optimizer: dict[str, Any]
    state: dict[str, Any]
    folder: Path


# -- writing


def save(
    checkpoints: Path, *, step: int, weights: Mapping[str, Tensor], optimizer: dict[str, Any], state: dict[str, Any]
) -> Path:
    """Write the checkpoint of a step atomically, then update the links and delete old ones; returns its folder.

    `state` is json; its "best", where there is one, says the step of the lowest loss so far and that loss.
    Raises OSError or SafetensorError if the disk is full (`is_full`); then nothing is half-written.
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
    """Change what a checkpoint's state says, atomically, and update the links."""
    write_json(folder / STATE, read_state(folder) | state)
    update_links(folder.parent)


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write one safetensors file and flush it to the disk. SafetensorError if the disk is full (`is_full`)."""
    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path)
    usual_mode(path)
    with open(path, "rb+") as file:
        os.fsync(file.fileno())


def write_state(
    folder: Path, *, step: int, optimizer: dict[str, Any], state: dict[str, Any], hashes: dict[str, str]
) -> None:
    """Write state.json, the last file of a checkpoint."""
    numbers = {"param_groups": optimizer["param_groups"], "n_tensors": len(split_optimizer(optimizer))}
    write_json(folder / STATE, {"step": step, **state, "optimiser": numbers, "sha256": hashes})


def split_optimizer(optimizer: dict[str, Any]) -> dict[str, Tensor]:
    """The tensors of an optimizer's `state_dict`, by "<parameter>.<name>"."""
    return {f"{n}.{name}": value for n, values in optimizer["state"].items() for name, value in values.items()}


def update_links(checkpoints: Path) -> None:
    """Make the links lead to the newest and the best checkpoint, and delete old ones.

    Raises UserError if state.json of the newest is damaged, before anything is changed.
    """
    kept = {"last": newest(checkpoints), "best": best(checkpoints)}
    for name, folder in kept.items():
        set_link(checkpoints, name, folder)
    for folder in steps(checkpoints)[:-KEPT]:
        if folder != kept["best"]:
            os.rename(folder, hidden(folder))  # a kill on the way leaves no half of one under its name
            shutil.rmtree(hidden(folder))


def clean_up(checkpoints: Path) -> None:
    """Remove what a killed writer left under hidden names, and update the links. The caller holds the run's lock."""
    for folder in checkpoints.glob(f".{STEP}*"):
        shutil.rmtree(folder)
    for name in LINKS:
        (checkpoints / f".{name}").unlink(missing_ok=True)
    update_links(checkpoints)


def set_link(checkpoints: Path, name: str, folder: Path | None) -> None:
    """Make `checkpoints/<name>` a link to the folder, in one step; None: no link."""
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
    """The folders of whole checkpoints, oldest first; without links, and without copies that a person has named."""
    found = [folder for folder in checkpoints.glob(f"{STEP}*") if NAME.fullmatch(folder.name)]
    return sorted((folder for folder in found if folder.is_dir() and not folder.is_symlink()), key=step_of)


def newest(checkpoints: Path) -> Path | None:
    """The folder to resume from; None if the run was stopped before its first checkpoint."""
    found = steps(checkpoints)
    return found[-1] if found else None


def best(checkpoints: Path) -> Path | None:
    """The folder of the lowest held-out loss so far, which the newest one records; None if there is none."""
    folder = newest(checkpoints)
    measured = read_state(folder).get("best") if folder is not None else None
    if measured is None or measured["step"] is None:
        return None
    path = checkpoints / folder_of(measured["step"])
    return path if path in steps(checkpoints) else None


def find(run: Path, name: str) -> Path:
    """The folder of a run's checkpoint by name: best, last, or step-00000200.

    Raises UserError if the run has none of that name.
    """
    checkpoints = run / "checkpoints"
    folder: Path | None = checkpoints / name
    if name in LINKS:  # what the links lead to does not count
        folder = best(checkpoints) if name == "best" else newest(checkpoints)
    there = steps(checkpoints)  # read after the newest: another process may have just written it
    if folder not in there:
        names = ", ".join(path.name for path in there)
        raise UserError(f"{run} has no checkpoint '{name}'" + (f" (there are: {names})" if there else ""))
    return folder.resolve()


# -- reading


def load_weights(folder: Path) -> dict[str, Tensor]:
    """The weights, whole, after their hashes were checked."""
    return read(folder, read_state(folder), (WEIGHTS,))


def load(folder: Path) -> Checkpoint:
    """Everything, whole, after the hashes were checked."""
    state = read_state(folder)
    tensors = read(folder, state, (TRAINER, WEIGHTS))
    of_optimizer = {name: tensors.pop(name) for name in list(tensors) if OF_OPTIMIZER.fullmatch(name)}
    with refused(folder, TRAINER):
        optimizer = join_optimizer(of_optimizer, state["optimiser"])
    return Checkpoint(tensors, optimizer, state, folder)


def read(folder: Path, state: dict[str, Any], files: Sequence[str]) -> dict[str, Tensor]:
    """The tensors of these files, or of the shards in their place. UserError if one is damaged."""
    if WEIGHTS in state["sha256"]:
        check_files(folder, state, files)
        tensors: dict[str, Tensor] = {}
        for name in files:
            with refused(folder, name):
                tensors |= load_file(folder / name)
        return tensors
    refuse_strangers(folder, state)
    check_files(folder, state, state["sha256"])
    with refused(folder, STATE):
        tensors = {
            name: torch.empty(of.size, dtype=of.properties.dtype)
            for name, of in described(folder).items()
            if TRAINER in files or not OF_OPTIMIZER.fullmatch(name)
        }
        fill(tensors, folder, alone=True)
    return tensors


def described(folder: Path) -> dict[str, Any]:
    """The size and type of each whole tensor of a checkpoint of either layout, by name."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader  # it takes a second to import

    return HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata


def fill(tensors: dict[str, Tensor], folder: Path, *, alone: bool = False) -> None:
    """Fill tensors from a checkpoint of either layout; sharded ones get their rows. Called by all processes, or one."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load as read_into

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # one process reads on purpose
        read_into(tensors, storage_reader=HuggingFaceStorageReader(str(folder)), no_dist=alone)


def check_files(folder: Path, state: dict[str, Any], names: Iterable[str]) -> None:
    """Raises UserError if one of these files was changed or is gone."""
    for name in names:
        with refused(folder, name):
            if sha256(folder / name) != state["sha256"][name]:
                raise ValueError("it does not match its hash")


def refuse_strangers(folder: Path, state: dict[str, Any]) -> None:
    """Raises UserError for tensors that are not of the checkpoint: torch reads all files of a folder."""
    strangers = sorted(path.name for path in folder.glob("*.safetensors") if path.name not in state["sha256"])
    if strangers:
        raise damaged(folder, strangers[0], "it is not of this checkpoint")


def read_state(folder: Path) -> dict[str, Any]:
    """The numbers of state.json. UserError if they are damaged, or belong to another folder."""
    with refused(folder, STATE):
        state: dict[str, Any] = parse_json(read_text(folder / STATE))
        if not isinstance(state, dict) or type(state.get("step")) is not int or state["step"] != step_of(folder):
            raise ValueError("its step is not the folder's")
        wrong = fault_in(state, FIELDS)
        if wrong is not None:
            raise ValueError(wrong)
    return state


def join_optimizer(tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> dict[str, Any]:
    """The optimizer's `state_dict` again. Raises ValueError if tensors are missing."""
    if len(tensors) != numbers["n_tensors"]:
        raise ValueError(f"it holds {len(tensors):,} tensors of {numbers['n_tensors']:,}")
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        parameter, _, name = key.partition(".")
        state.setdefault(int(parameter), {})[name] = tensor
    return {"state": state, "param_groups": numbers["param_groups"]}


@contextmanager
def refused(folder: Path, name: str) -> Iterator[None]:
    """Inside, an error about a file of a checkpoint becomes a UserError, with the checkpoint to take instead."""
    try:
        yield
    except SafetensorError as error:
        raise damaged(folder, name, "it is no safetensors file") from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else one_line(error)
        raise damaged(folder, name, str(reason)) from error


def damaged(folder: Path, name: str, reason: str) -> UserError:
    """The error for a file that is truncated, changed or missing, with the checkpoint to take instead."""
    if not folder.exists():
        return UserError(f"{folder} has just been deleted by the run that is training there; start again")
    others = [path.name for path in steps(folder.parent) if step_of(path) < step_of(folder)]
    if not others:
        return UserError(f"{folder / name} is damaged ({reason}) and there is no checkpoint before it")
    return UserError(
        f"{folder / name} is damaged ({reason}); the one before is {others[-1]}: "
        f"evaluate it with checkpoint={others[-1]}, or delete {folder} to resume from it"
    )


# -- into a model


def check_weights(model: nn.Module, weights: Mapping[str, Tensor | torch.Size], folder: Path) -> None:
    """Raises UserError if the weights of the checkpoint in `folder`, or their sizes, are not the model's.

    The model may be on the meta device, on which any size costs nothing.
    """
    own = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
    given = {name: list(of.shape if isinstance(of, Tensor) else of) for name, of in weights.items()}
    wrong = sorted(name for name in own.keys() | given.keys() if own.get(name) != given.get(name))
    if wrong:
        there, here = (f"of shape {of[wrong[0]]}" if wrong[0] in of else "missing" for of in (given, own))
        raise UserError(
            f"{folder / WEIGHTS} does not fit the model of the run: {wrong[0]} is {there} there and {here} in the model"
            + (f", and {len(wrong) - 1:,} more differ" if len(wrong) > 1 else "")
        )


def load_into(model: nn.Module, weights: Mapping[str, Tensor], folder: Path) -> None:
    """Give a model the weights of the checkpoint in `folder`. UserError if they are not this model's."""
    check_weights(model, weights, folder)
    model.load_state_dict(dict(weights))


def check_optimizer(saved: Mapping[str, Any], optimizer: torch.optim.Optimizer, folder: Path) -> None:
    """Raises UserError if the optimizer's state in the checkpoint in `folder` belongs to other parameters."""
    own, theirs = optimizer.param_groups, saved["param_groups"]
    shapes = dict(enumerate(p.shape for group in own for p in group["params"]))
    fits = [len(group["params"]) for group in own] == [len(group["params"]) for group in theirs] and all(
        tensor.ndim == 0 or tensor.shape == shapes.get(n)
        for n, values in saved["state"].items()
        for tensor in values.values()
    )
    if not fits:
        raise damaged(folder, TRAINER, "it is that of another model")
