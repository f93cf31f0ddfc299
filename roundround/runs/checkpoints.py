"""Checkpoints: weights as safetensors, trainer state apart, each guarded by its hash; nothing is ever unpickled.

checkpoints/step-00000200/  model.safetensors, trainer.safetensors, state.json: see checkpoint_files.py; or a pair
                            of files from each process, and state.json: see sharded_checkpoints.py
checkpoints/last, best      links to the folders that deserve the names, for people and other programs

A folder is written under a hidden name, flushed to the disk and renamed, and renamed back before it is deleted: one
with a step's name is whole. Which is the last and which the best is read off the folders, never off the links: a writer
may be killed between a folder and its links. The newest folder's state.json knows the best step so far.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from roundround.runs.checkpoint_files import (
    OF_OPTIMIZER,
    STATE,
    TRAINER,
    WEIGHTS,
    check_hash,
    is_sharded,
    join_optimizer,
    read_numbers,
    read_tensors,
    write,
)
from roundround.support.errors import UserError, one_line
from roundround.support.files import flush_folder, folder_in_one_step

STEP, LINKS = "step-", ("last", "best")
NAME = re.compile(rf"{STEP}\d{{8,18}}")  # of a checkpoint
KEPT = 2  # beside the best


@dataclass(frozen=True)
class Checkpoint:
    """What is needed to go on: the weights, the optimizer's state, and the numbers of `state.json`; and its folder.

    Weights and optimizer are empty where each process is to read its own share from the folder.
    """

    weights: dict[str, Tensor]
    optimizer: dict[str, Any]
    state: dict[str, Any]
    folder: Path


# -- writing


def save(
    checkpoints: Path, *, step: int, weights: Mapping[str, Tensor], optimizer: dict[str, Any], state: dict[str, Any]
) -> Path:
    """Write the checkpoint of a step in one step, then put the links right and prune; returns its folder.

    `state` is json; its "best", where there is one, says the step of the lowest loss so far and that loss.
    Raises OSError where the disk is full; then nothing is half-written.
    """
    final = checkpoints / folder_of(step)
    with folder_in_one_step(final, hidden(final)):
        write(hidden(final), step=step, weights=weights, optimizer=optimizer, state=state)
    settle(checkpoints)
    return final


def put_in_place(final: Path) -> None:
    """Give a folder that was written under its hidden name the checkpoint's, then put the links right and prune."""
    flush_folder(hidden(final))
    os.rename(hidden(final), final)
    settle(final.parent)


def settle(checkpoints: Path) -> None:
    """Make the links and the folders that are kept what the newest checkpoint says, after it is written or a kill.

    Raises UserError where its state.json is damaged, before anything is changed.
    """
    kept = {"last": newest(checkpoints), "best": best(checkpoints)}
    for name, folder in kept.items():
        point(checkpoints, name, folder)
    for folder in steps(checkpoints)[:-KEPT]:
        if folder != kept["best"]:
            discard(folder)


def recover(checkpoints: Path) -> None:
    """Remove what a killed writer left under hidden names, and `settle`; for who holds the run's lock."""
    for folder in checkpoints.glob(f".{STEP}*"):
        shutil.rmtree(folder)
    for name in LINKS:
        (checkpoints / f".{name}").unlink(missing_ok=True)
    settle(checkpoints)


def point(checkpoints: Path, name: str, folder: Path | None) -> None:
    """Make `checkpoints/<name>` a link to the folder, in one step; without one there is no link.

    Raises UserError where a folder has that name: what copies a run may have followed the link.
    """
    link, temporary = checkpoints / name, checkpoints / f".{name}"
    if link.is_dir() and not link.is_symlink():
        raise UserError(f"{link} is a folder where a link was, as copying leaves it; delete it: the checkpoint stays")
    if folder is None:
        link.unlink(missing_ok=True)
        return
    if link.is_symlink() and os.readlink(link) == folder.name:
        return
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(folder.name)
    os.replace(temporary, link)
    flush_folder(checkpoints)


def discard(folder: Path) -> None:
    """Delete a checkpoint; a kill on the way leaves no half of one under its name."""
    os.rename(folder, hidden(folder))
    shutil.rmtree(hidden(folder))


def hidden(folder: Path) -> Path:
    """What the folder of a checkpoint is called while it is written or deleted."""
    return folder.with_name(f".{folder.name}")


# -- finding


def folder_of(step: int) -> str:
    return f"{STEP}{step:08d}"


def step_of(folder: Path) -> int:
    return int(folder.name.removeprefix(STEP))


def steps(checkpoints: Path) -> list[Path]:
    """The folders of whole checkpoints, oldest first; not what a link leads to, nor copies of a person's own naming."""
    found = [folder for folder in checkpoints.glob(f"{STEP}*") if NAME.fullmatch(folder.name)]
    return sorted((folder for folder in found if folder.is_dir() and not folder.is_symlink()), key=step_of)


def newest(checkpoints: Path) -> Path | None:
    """The folder to resume from, None where the run was stopped before its first checkpoint."""
    found = steps(checkpoints)
    return found[-1] if found else None


def best(checkpoints: Path) -> Path | None:
    """The folder of the lowest held-out loss so far, as the newest one has recorded it; None where there is none."""
    folder = newest(checkpoints)
    measured = read_state(folder).get("best") if folder is not None else None
    if measured is None or measured["step"] is None:
        return None
    path = checkpoints / folder_of(measured["step"])
    return path if path in steps(checkpoints) else None


def find(run: Path, name: str) -> Path:
    """The folder of a run's checkpoint by name: best, last, or step-00000200.

    Raises UserError where there is none of that name inside the run.
    """
    checkpoints = run / "checkpoints"
    if name in LINKS:
        refuse_foreign_link(checkpoints / name)
        folder = best(checkpoints) if name == "best" else newest(checkpoints)
    else:
        folder = checkpoints / name
    there = steps(checkpoints)  # after the newest: a run beside us may have written it just now
    if folder not in there:
        names = ", ".join(path.name for path in there)
        raise UserError(f"{run} has no checkpoint '{name}'" + (f" (there are: {names})" if there else ""))
    return folder.resolve()


def refuse_foreign_link(link: Path) -> None:
    """Raises UserError for a link that somebody else made: this program's lead to a step beside them."""
    if link.is_symlink() and not os.readlink(link).startswith(STEP):
        raise UserError(f"{link} leads to {os.readlink(link)}, which is no checkpoint of this run; delete that link")


# -- reading


def load_weights(folder: Path) -> dict[str, Tensor]:
    """The weights, whole, once their hashes are seen to be right."""
    state = read_state(folder)
    if is_sharded(state):
        return whole_of_shards(folder, state, lambda name: not OF_OPTIMIZER.fullmatch(name))
    return tensors_of(folder, WEIGHTS, state)


def load(folder: Path) -> Checkpoint:
    """Everything, whole, once the hashes are seen to be right."""
    state = read_state(folder)
    if is_sharded(state):
        everything = whole_of_shards(folder, state, lambda name: True)
        tensors = {name: everything.pop(name) for name in list(everything) if OF_OPTIMIZER.fullmatch(name)}
        weights = everything
    else:
        tensors, weights = tensors_of(folder, TRAINER, state), tensors_of(folder, WEIGHTS, state)
    with refused(folder, TRAINER):
        optimizer = join_optimizer(tensors, state["optimiser"])
    return Checkpoint(weights, optimizer, state, folder)


def whole_of_shards(folder: Path, state: dict[str, Any], wanted: Callable[[str], bool]) -> dict[str, Tensor]:
    """Tensors of a sharded checkpoint put together, once the hashes of all its files are seen to be right."""
    from roundround.runs.sharded_checkpoints import read_whole  # torch.distributed takes a second to import

    refuse_other_files(folder, state)
    for name, of_writer in state["sha256"].items():
        with refused(folder, name):
            check_hash(folder / name, of_writer)
    with refused(folder, STATE):
        return read_whole(folder, wanted)


def refuse_other_files(folder: Path, state: dict[str, Any]) -> None:
    """Raises UserError for tensors that the writer of a checkpoint did not put there: a reader of shards takes all."""
    for path in sorted(folder.glob("*.safetensors")):
        if path.name not in state["sha256"]:
            raise damaged(folder, path.name, "it is not of this checkpoint")


def read_state(folder: Path) -> dict[str, Any]:
    """The numbers of state.json. UserError where they are damaged, or those of another folder."""
    with refused(folder, STATE):
        return read_numbers(folder / STATE, step_of(folder))


def tensors_of(folder: Path, name: str, state: dict[str, Any]) -> dict[str, Tensor]:
    with refused(folder, name):
        return read_tensors(folder / name, state["sha256"][name])


@contextmanager
def refused(folder: Path, name: str) -> Iterator[None]:
    """Make what is wrong with a file of a checkpoint a UserError, with the checkpoint to take instead."""
    try:
        yield
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else one_line(error)
        raise damaged(folder, name, str(reason)) from error


def damaged(folder: Path, name: str, reason: str) -> UserError:
    """The error for a file that is truncated, changed or not there, with the checkpoint to take instead."""
    if not folder.exists():
        return UserError(f"{folder} has just been deleted by the run that is training there; start again")
    others = [path.name for path in steps(folder.parent) if step_of(path) < step_of(folder)]
    if not others:
        return UserError(f"{folder / name} is damaged ({reason}) and there is no checkpoint before it")
    return UserError(
        f"{folder / name} is damaged ({reason}); the one before is {others[-1]}: "
        f"evaluate it with checkpoint={others[-1]}, or delete {folder} to resume from it"
    )
