"""The device that a run computes on: chosen, described, and how much it holds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from roundround.errors import UserError


def pick_device(name: str) -> torch.device:
    """`auto` is a GPU where there is one. UserError for a device that torch does not know or have."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"device={name} cannot be used: {str(error).splitlines()[0]}") from error
    return device


def memory(device: torch.device) -> int:
    """Bytes of the device; on a CPU what the machine and the control group allow."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[1])
    limit = Path("/sys/fs/cgroup/memory.max")
    allowed = limit.read_text().strip() if limit.exists() else "max"
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(there, int(allowed)) if allowed.isdigit() else there


def describe_device(device: torch.device) -> str:
    """The device in words, for the manifest."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    cpuinfo = Path("/proc/cpuinfo")
    names = (
        [line.split(":")[1].strip() for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        if cpuinfo.exists()
        else []
    )
    return f"{device.type}: {names[0] if names else 'unknown'}, {torch.get_num_threads()} threads"


@contextmanager
def without_denormals() -> Iterator[None]:
    """Takes numbers below 1.2e-38 for zero, on which a CPU spends up to a hundred times as long.

    Threads inherit it from the one that starts them, so it comes before the first parallel operation.
    """
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
