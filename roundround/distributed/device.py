"""The device that a run computes on: chosen and described.

Tested by tests/training/test_train.py and tests/training/test_meter.py.
"""

from __future__ import annotations

from pathlib import Path

import torch

from roundround.distributed.launcher import together
from roundround.support.errors import UserError


def pick_device(name: str) -> torch.device:
    """`auto` is a GPU where there is one, another for each process. UserError for a device that torch does not have."""
    if name == "auto":
        launched = together()
        if launched is not None and torch.cuda.is_available():
            return torch.device("cuda", launched.local_rank % torch.cuda.device_count())
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # torch goes on for a page about backends
        why = str(error).splitlines()[0].partition(". ")[0]
        raise UserError(f"device={name} cannot be used: {why}") from error
    if device.type == "meta":
        raise UserError("device=meta cannot be used: it computes nothing; give cpu, cuda or auto")
    return device


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
