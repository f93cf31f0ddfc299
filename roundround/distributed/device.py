"""The device that a run computes on: its choice, its description, its memory, and the peak memory of a process.

torch takes seconds to import, so it is imported inside functions: a verb without torch needs only the peak memory.

Tested by tests/training/test_train.py, tests/training/test_meter.py and tests/test_memory.py.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roundround.distributed.launcher import together
from roundround.support.errors import UserError

if TYPE_CHECKING:
    import torch

CGROUPS = Path("/sys/fs/cgroup")
STATUS, CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")  # Linux only


def pick_device(name: str) -> torch.device:
    """The device of this name. `auto` is a GPU if there is one; the processes of a machine are spread over its GPUs.

    Raises UserError if torch cannot use the device.
    """
    import torch

    if name == "auto":
        if not torch.cuda.is_available():
            return torch.device("cpu")
        launched = together()
        name = "cuda" if launched is None else f"cuda:{launched.local_rank % torch.cuda.device_count()}"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
        if device.type == "cuda" and device.index is not None:
            torch.cuda.set_device(device)  # for kernels that are launched on the current device
    except (RuntimeError, AssertionError) as error:  # torch adds a page about backends
        raise UserError(f"device={name} cannot be used: {str(error).splitlines()[0].partition('. ')[0]}") from error
    return device


def describe_device(device: torch.device) -> str:
    """The name of the device, for the manifest."""
    import torch

    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    cpuinfo = Path("/proc/cpuinfo")
    names = (
        [line.split(":")[1].strip() for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        if cpuinfo.exists()
        else []
    )
    return f"{device.type}: {names[0] if names else 'unknown'}, {torch.get_num_threads()} threads"


# -- memory of the device


def memory(device: torch.device) -> int:
    """The memory of the device in bytes; on a CPU the least that the machine, control groups and `ulimit -v` allow."""
    if device.type == "cuda":
        import torch

        return int(torch.cuda.mem_get_info(device)[1])
    import resource

    there, (limit, _) = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), resource.getrlimit(resource.RLIMIT_AS)
    own = [] if limit == resource.RLIM_INFINITY else [limit]
    return min([there, *own, *limits_of_control_groups()])


def limits_of_control_groups() -> list[int]:
    """The limits in bytes that Slurm, Docker or systemd set on the process's control group and its parents."""
    try:
        own = Path("/proc/self/cgroup").read_text(encoding="ascii").partition("0::/")[2].strip()
    except (OSError, ValueError):
        own = ""
    folder = CGROUPS / own
    groups = [group for group in (folder, *folder.parents) if group.is_relative_to(CGROUPS)]
    files = [*(group / "memory.max" for group in groups), CGROUPS / "memory" / "memory.limit_in_bytes"]
    found = [file.read_text(encoding="ascii").strip() for file in files if file.is_file()]
    return [int(limit) for limit in found if limit.isdigit()]


def check_fits(n_bytes: int, device: torch.device, what: str, instead: str) -> None:
    """Raises UserError if the device has less memory than `n_bytes`, which is a lower bound of what is needed.

    what: the words of the message for the thing that needs the memory. instead: the words for what the user can do.
    """
    there = memory(device)
    if n_bytes > there:
        needed, held = (f"{n / 2**30:,.1f}" if n < 10 * 2**30 else f"{n / 2**30:,.0f}" for n in (n_bytes, there))
        raise UserError(f"{what} needs at least {needed} GiB and {device.type} has {held}; {instead}")


# -- peak memory of a process


class PeakMemory:
    """The most bytes that this process uses from now on.

    An earlier run in the same process, such as another job of a sweep, can have used more. On Linux this earlier peak
    is reset; on other systems the peak from now on is not known.
    """

    def __init__(self) -> None:
        self.forgotten = False
        with suppress(OSError):
            CLEAR_REFS.write_text("5", encoding="ascii")  # see proc_pid_clear_refs(5)
            self.forgotten = True
        for cuda, n in gpus():
            cuda.reset_peak_memory_stats(n)

    def so_far(self) -> dict[str, int | None]:
        """The peaks: `resident_bytes` (None if unknown) and `device_bytes` of CUDA tensors (None if no GPU is used)."""
        of_gpus = max((cuda.max_memory_allocated(n) for cuda, n in gpus()), default=0)
        return {"resident_bytes": resident_peak() if self.forgotten else None, "device_bytes": of_gpus or None}


def resident_peak() -> int | None:
    """The peak of this process's resident memory in bytes; None if the system is not Linux."""
    with suppress(OSError):
        found = re.search(r"^VmHWM:\s+(\d+) kB$", STATUS.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
        if found is not None:  # getrusage would include the peak of the process from which this one was forked
            return int(found[1]) * 1024
    return None


def gpus() -> list[tuple[Any, int]]:
    """For each GPU the module torch.cuda and the GPU's number; empty if this process has used no GPU."""
    cuda = sys.modules.get("torch.cuda")
    return [(cuda, n) for n in range(cuda.device_count())] if cuda is not None and cuda.is_initialized() else []


def larger(first: Mapping[str, int | None] | None, second: Mapping[str, int | None]) -> dict[str, int | None]:
    """For each kind of memory, the larger of two peaks: before a run was stopped, and after it was resumed."""
    earlier = first or {}
    return {
        name: max((n for n in (earlier.get(name), now) if n is not None), default=None) for name, now in second.items()
    }
