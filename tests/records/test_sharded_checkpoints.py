"""A sharded checkpoint that is killed, damaged or has no room: at most that one is lost, and all processes say so."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import torch.distributed as dist
from helpers_kills import is_change
from ranks import on_ranks
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor

from roundround.records import checkpoints, sharded_checkpoints
from roundround.records.sharded_checkpoints import ShardedSaver
from roundround.support.errors import UserError
from roundround.support.files import is_full

PARAM_GROUPS = [{"params": [0]}]


def save(mesh: DeviceMesh, folder: Path, steps: list[int]) -> None:
    """Checkpoints of a model of one parameter, each waited for by the next."""
    saver = ShardedSaver(folder)
    for step in steps:
        rows = distribute_tensor(torch.arange(12.0).view(6, 2) + step, mesh, [Shard(0)], src_data_rank=None)
        optimizer = {"state": {0: {"exp_avg": rows}}, "param_groups": PARAM_GROUPS}
        state = {name: {"step": step, "nats_per_token": 1.0 / step} for name in ("best", "validated")}
        saver.save(step, weights={"weight": rows}, optimizer=optimizer, state=state)
    saver.wait()


def save_until(mesh: DeviceMesh, folder: Path, steps: list[int], last: int, victim: int) -> int:
    """`save`, in which process `victim` is killed before its change of this number to the folder; how many it made."""
    seen = 0

    def watch(event: str, args: tuple[Any, ...]) -> None:
        nonlocal seen
        if is_change(event, args) and str(folder) in f"{args[0]} {args[1]}":
            seen += 1
            if seen == last:
                os.kill(os.getpid(), signal.SIGKILL)

    if mesh.get_local_rank() == victim:
        sys.addaudithook(watch)
    save(mesh, folder, steps)
    return seen


def found_after(folder: Path) -> tuple[list[int], list[int]]:
    """The steps whose checkpoints are there, before and after what a resume does first; each is seen to be whole."""
    found = []
    for put_right in (False, True):
        if put_right:
            checkpoints.clean_up(folder)
        for path in checkpoints.steps(folder):
            step = checkpoints.step_of(path)
            assert torch.equal(checkpoints.load(path).weights["weight"], torch.arange(12.0).view(6, 2) + step)
        found.append([checkpoints.step_of(path) for path in checkpoints.steps(folder)])
    assert list(folder.glob(".*")) == []
    assert os.readlink(folder / "last") == os.readlink(folder / "best") == f"step-{found[1][-1]:08d}"
    return found[0], found[1]


@pytest.mark.parametrize(
    ("n", "victim", "every"),
    [(1, 0, 11), pytest.param(1, 0, 1, marks=pytest.mark.faults), pytest.param(2, 0, 1, marks=pytest.mark.faults),
     pytest.param(2, 1, 1, marks=pytest.mark.faults)],
)  # fmt: skip
def test_a_kill_inside_a_sharded_checkpoint_loses_at_most_that_one(
    n: int, victim: int, every: int, tmp_path: Path
) -> None:
    first = tmp_path / "first"
    on_ranks(n, tmp_path, save, first, [1, 2])
    shutil.copytree(first, tmp_path / "counted", symlinks=True)
    n_changes = on_ranks(n, tmp_path, save_until, tmp_path / "counted", [3], sys.maxsize, victim)[victim]
    assert n_changes >= (5 if victim else 10)
    left = set()
    for kill in range(1, n_changes + 1, every):
        folder = tmp_path / str(kill)
        shutil.copytree(first, folder, symlinks=True)
        with pytest.raises(AssertionError, match="the process died"):
            on_ranks(n, tmp_path, save_until, folder, [3], kill, victim)
        before, after = found_after(folder)
        assert set(before) >= {2}
        left.add(after[-1])
        shutil.rmtree(folder)
    assert left <= {2, 3}
    assert 2 in left


# -- damage

DAMAGES: dict[str, Callable[[Path], object]] = {
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-8]),
    "flipped by one bit": lambda path: path.write_bytes(path.read_bytes()[:-1] + bytes([path.read_bytes()[-1] ^ 1])),
    "gone": lambda path: path.unlink(),
}


def test_a_damaged_shard_is_named(tmp_path: Path) -> None:
    on_ranks(2, tmp_path, save, tmp_path / "sound", [1, 2])
    names = sorted(path.name for path in (tmp_path / "sound" / "step-00000002").glob("*.safetensors"))
    assert len(names) == 4
    for number, (name, damage) in enumerate(zip(names, [*DAMAGES.values(), *DAMAGES.values()], strict=False)):
        checkpoint = tmp_path / str(number) / "step-00000002"
        shutil.copytree(tmp_path / "sound", checkpoint.parent, symlinks=True)
        damage(checkpoint / name)
        with pytest.raises(UserError, match=f"{name} is damaged"):
            checkpoints.load_weights(checkpoint)


# -- a full disk


def save_on_a_full_disk(mesh: DeviceMesh, folder: Path) -> list[str]:
    """What each process is told where the second one has no room, and where there is room again."""

    told, write = [], sharded_checkpoints.Writer.write_data
    if dist.get_rank() == 1:
        sharded_checkpoints.Writer.write_data = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))  # type: ignore[method-assign, assignment]
    try:
        save(mesh, folder, [2])
    except OSError as error:
        told.append("full" if is_full(error) else repr(error))
    dist.barrier()
    told.append(" ".join(sorted(path.name for path in folder.glob("step*"))))
    sharded_checkpoints.Writer.write_data = write  # type: ignore[method-assign]
    dist.barrier()
    save(mesh, folder, [2])
    return told


@pytest.mark.faults
def test_a_disk_that_is_full_for_one_process_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    on_ranks(2, tmp_path, save, folder, [1])
    assert on_ranks(2, tmp_path, save_on_a_full_disk, folder) == [["full", "step-00000001"]] * 2
    assert found_after(folder) == ([1, 2], [1, 2])
