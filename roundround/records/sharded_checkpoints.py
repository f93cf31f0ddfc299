"""Checkpoints of a model with sharded parameters. Each process reads its own share, and writes it in a thread.

step-00000200/  shard-00001-model-00001-of-00002.safetensors   the first process's rows of the weights
                shard-00001-model-00002-of-00002.safetensors   the first process's rows of the optimizer's tensors
                ...                                            the same files of the other processes
                state.json                                     as in checkpoints.py, with the sha256 of each file

torch.distributed.checkpoint writes and reads these files in its format for Hugging Face: the header of each file says
which rows the file holds. So nothing is pickled, and the number of processes may differ between writing and reading.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.distributed.checkpoint.storage import WriteResult

from roundround.records import checkpoints
from roundround.records.checkpoints import Checkpoint, split_optimizer, write_state
from roundround.support.files import flush_folder, sha256, usual_mode

OF_WEIGHTS, OF_TRAINER = 1, 2  # the numbers of a process's two files


class Writer(HuggingFaceStorageWriter):
    """torch's writer, which also hashes each file in the process that wrote it; `commit` completes the checkpoint."""

    def __init__(self, folder: Path, files: dict[str, int], commit: Callable[[dict[str, str]], None]) -> None:
        """files: the number of the file for each tensor, by the tensor's name. commit: a function that is called with
        the hashes of all files, by file name.
        """
        super().__init__(str(folder), fqn_to_index_mapping=files, save_distributed=True)
        self.folder, self.commit = folder, commit

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if is_coordinator:
            shutil.rmtree(self.folder, ignore_errors=True)  # what a killed or failed writer left
        super().set_up_storage_writer(is_coordinator, *args, **kwargs)

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> torch.futures.Future[list[WriteResult]]:
        written = super().write_data(plan, planner).wait()
        names = sorted({result.storage_data.relative_path for result in written})
        hashes = {name: sha256(self.folder / name) for name in names}
        for name in names:
            usual_mode(self.folder / name)
        done: torch.futures.Future[list[WriteResult]] = torch.futures.Future()
        done.set_result([replace(result, storage_data=hashes) for result in written])
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Complete the checkpoint; torch calls this in the first process when all have written."""
        self.commit({name: found for written in results if written for name, found in written[0].storage_data.items()})


class ShardedSaver:
    """Writes checkpoints in a thread while training continues; a second checkpoint waits until the first is written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.group = dist.new_group(backend="gloo")  # its own group, because training communicates at the same time
        self.pending: Future[Any] | None = None

    def save(
        self, step: int, *, weights: Mapping[str, Tensor], optimizer: dict[str, Any], state: dict[str, Any]
    ) -> None:
        """Copy this process's share of the checkpoint of a step, and start to write it. All processes call this method.

        If the previous checkpoint could not be written, raises its error: OSError if the disk was full.
        """
        self.wait()
        tensors = split_optimizer(optimizer)
        files = dict.fromkeys(weights, OF_WEIGHTS) | dict.fromkeys(tensors, OF_TRAINER)
        final = self.folder / checkpoints.folder_of(step)

        def commit(hashes: dict[str, str]) -> None:
            write_state(checkpoints.hidden(final), step=step, optimizer=optimizer, state=state, hashes=hashes)
            flush_folder(checkpoints.hidden(final))
            os.rename(checkpoints.hidden(final), final)
            checkpoints.update_links(self.folder)

        writer = Writer(checkpoints.hidden(final), files, commit)
        pending = async_save({**weights, **tensors}, storage_writer=writer, process_group=self.group)
        assert isinstance(pending, Future)
        self.pending = pending

    def wait(self) -> None:
        """Wait until the checkpoint is written. Raises the error of a failed write, which leaves a hidden folder."""
        if self.pending is None:
            return
        pending, self.pending = self.pending, None
        try:
            pending.result()
        except CheckpointException as error:
            raise next(iter(error.failures.values()))[0] from error


def load_shards_into(model: nn.Module, checkpoint: Checkpoint) -> None:
    """Load this process's rows of a sharded model from the checkpoint; all processes call it together.

    Raises UserError, in every process, if a file is damaged or the weights do not fit.
    """
    folder = checkpoint.folder
    checkpoints.check_files(folder, checkpoint.state, checkpoint.state["sha256"])
    found = checkpoints.described(folder)
    weights = {name: of.size for name, of in found.items() if not checkpoints.OF_OPTIMIZER.fullmatch(name)}
    checkpoints.check_weights(model, weights, folder)
    checkpoints.fill(model.state_dict(), folder)


def load_shards_of_optimizer(optimizer: torch.optim.Optimizer, checkpoint: Checkpoint) -> None:
    """Load this process's rows of a sharded model's optimizer, after `load_shards_into`, which checks the files."""
    folder = checkpoint.folder
    parameters = dict(enumerate(p for group in optimizer.param_groups for p in group["params"]))
    tensors: dict[str, Tensor] = {}
    for name, found in checkpoints.described(folder).items():
        of = parameters.get(int(name.partition(".")[0])) if checkpoints.OF_OPTIMIZER.fullmatch(name) else None
        if of is not None:
            tensors[name] = torch.zeros_like(of) if found.size == of.shape else torch.zeros(found.size)
    checkpoints.fill(tensors, folder)
    optimizer.load_state_dict(checkpoints.join_optimizer(tensors, checkpoint.state["optimiser"]))
