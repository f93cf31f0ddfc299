"""Processes that compute together over gloo, forked from the one that tests: they cost no imports."""

from __future__ import annotations

import faulthandler
import gc
import io
import multiprocessing
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh


def on_ranks(n: int, folder: Path, task: Callable[..., Any], *args: Any) -> list[Any]:
    """What `task(mesh, *args)` returns in each of n processes. AssertionError with the traceback where one fails."""
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe(duplex=False) for _ in range(n)]
    store = folder / f"store-{os.urandom(4).hex()}"
    children = [context.Process(target=one_rank, args=(k, n, store, pipes[k][1], task, args)) for k in range(n)]
    for child in children:
        child.start()
    for _, sending in pipes:
        sending.close()
    answers = []
    for receiving, _ in pipes:
        try:
            answers.append(receiving.recv() if receiving.poll(120) else (False, f"no answer yet:\n{stacks(store)}"))
        except EOFError:
            answers.append((False, "the process died"))
    for child in children:
        child.kill() if not all(good for good, _ in answers) else child.join()
        child.join()
    wrong = [found for good, found in answers if not good]
    assert not wrong, "\n".join(wrong)
    return [torch.load(io.BytesIO(found)) for _, found in answers]


def stacks(store: Path) -> str:
    """Where the processes stand that have not answered for a hundred seconds."""
    return "\n".join(file.read_text() for file in store.parent.glob(f"{store.name}-rank-*"))


def one_rank(rank: int, n: int, store: Path, pipe: Any, task: Callable[..., Any], args: tuple[Any, ...]) -> None:
    gc.freeze()  # a process group that the parent has left to its collector waits for threads that are not here
    faulthandler.dump_traceback_later(100, file=store.with_name(f"{store.name}-rank-{rank}").open("w"))
    try:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=n)
        mesh: DeviceMesh = init_device_mesh("cpu", (n,))
        answer = io.BytesIO()
        torch.save(task(mesh, *args), answer)  # by itself a pipe would share the memory of this process, which ends
        pipe.send((True, answer.getvalue()))
        dist.destroy_process_group()
    except BaseException:
        pipe.send((False, f"rank {rank}: {traceback.format_exc()}"))
    finally:
        pipe.close()
        os._exit(0)
