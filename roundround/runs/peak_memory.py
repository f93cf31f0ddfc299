"""The most memory that a run has used, for its manifest: of its process, and of the GPU that it used most."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

STATUS, CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")  # of Linux
FORGET_PEAK = "5"  # see proc_pid_clear_refs(5)


class PeakMemory:
    """What this process uses at the most from now on, in bytes; of several that train together, each knows its own.

    An earlier run in the same process may have used more, as the jobs of a sweep do. Linux can forget that. Elsewhere
    a peak is known where it is higher than any before this run.
    """

    def __init__(self) -> None:
        self.forgotten = forget_resident_peak()
        self.before = resident_peak()
        for cuda, n in gpus():
            cuda.reset_peak_memory_stats(n)

    def so_far(self) -> dict[str, int | None]:
        """`resident_bytes` and `device_bytes` (of CUDA's tensors); None where it is not known, or no GPU is used."""
        peak = resident_peak()
        known = peak is not None and (self.forgotten or self.before is None or peak > self.before)
        of_gpus = max((cuda.max_memory_allocated(n) for cuda, n in gpus()), default=0)
        return {"resident_bytes": peak if known else None, "device_bytes": of_gpus or None}


def forget_resident_peak() -> bool:
    """Let the peak begin at what is used now; whether the system can do that."""
    try:
        CLEAR_REFS.write_text(FORGET_PEAK, encoding="ascii")
    except OSError:
        return False
    return True


def resident_peak() -> int | None:
    """Bytes; None where the system does not say, as Windows."""
    with suppress(OSError):
        found = re.search(r"^VmHWM:\s+(\d+) kB$", STATUS.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
        if found is not None:  # not getrusage, which remembers the process that this one was forked from
            return int(found[1]) * 1024
    with suppress(ImportError):
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return None


def gpus() -> list[tuple[Any, int]]:
    """torch.cuda with the number of each GPU, where this process has used any; a verb without torch has none."""
    cuda = sys.modules.get("torch.cuda")
    return [(cuda, n) for n in range(cuda.device_count())] if cuda is not None and cuda.is_initialized() else []


def larger(first: Mapping[str, int | None] | None, second: Mapping[str, int | None]) -> dict[str, int | None]:
    """The peaks of a run that was stopped and gone on with."""
    earlier = first or {}
    return {
        name: max((n for n in (earlier.get(name), now) if n is not None), default=None) for name, now in second.items()
    }
