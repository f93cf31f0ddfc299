"""How much a device holds, and the refusal of what cannot fit, before anything of that size is allocated."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

from roundround.support.errors import UserError

CGROUPS = Path("/sys/fs/cgroup")


def memory(device: torch.device) -> int:
    """Bytes of the device; on a CPU what the machine, the control groups of the process and `ulimit -v` allow."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[1])
    if os.name != "posix":  # nobody says there: what does not fit fails when it is allocated
        return sys.maxsize
    import resource

    there, (limit, _) = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), resource.getrlimit(resource.RLIMIT_AS)
    own = [] if limit == resource.RLIM_INFINITY else [limit]
    return min([there, *own, *limits_of_control_groups()])


def limits_of_control_groups() -> list[int]:
    """The limits in bytes that Slurm, Docker or systemd set, of the process's own group and those around it."""
    try:
        own = Path("/proc/self/cgroup").read_text(encoding="ascii").partition("0::/")[2].strip()
    except (OSError, ValueError):
        own = ""
    folder = CGROUPS / own
    places = [place for place in (folder, *folder.parents) if place.is_relative_to(CGROUPS)]
    files = [*(place / "memory.max" for place in places), CGROUPS / "memory" / "memory.limit_in_bytes"]
    found = [file.read_text(encoding="ascii").strip() for file in files if file.is_file()]
    return [int(limit) for limit in found if limit.isdigit()]


def check_fits(n_bytes: int, device: torch.device, what: str, instead: str) -> None:
    """Raises UserError where `n_bytes`, a lower bound of what is needed, are more than the device holds."""
    there = memory(device)
    if n_bytes > there:
        raise UserError(
            f"{what} needs at least {gibibytes(n_bytes)} GiB and {device.type} has {gibibytes(there)}; {instead}"
        )


def gibibytes(n_bytes: int) -> str:
    """Bytes in GiB, as a message gives them."""
    return f"{n_bytes / 2**30:,.1f}" if n_bytes < 10 * 2**30 else f"{n_bytes / 2**30:,.0f}"
