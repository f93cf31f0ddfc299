"""whole_rows.cpp as a library of this process: compiled once on this machine, kept in the user's own cache.

The source needs a C++17 compiler and no header of PyTorch or Python. Its threads are those of PyTorch's OpenMP, which
is in the process already, so it is linked without one.

Tested by tests/attention/test_compiled.py.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
import warnings
from pathlib import Path

from roundround.attention.trial import FallsBack

SOURCES = [
    Path(__file__).with_name(name) for name in ("whole_rows.cpp", "row_blocks.h", "row_functions.h", "row_vectors.h")
]
FLAGS = ["-std=c++17", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fopenmp", "-fPIC", "-w"]
LONGEST = 300  # seconds for a compiler


class NotCompiled(FallsBack):
    """Said once where attention over whole rows runs by its definition for want of a compiler."""


@functools.cache
def library() -> ctypes.CDLL | None:
    """The functions of whole_rows.cpp; None, with a warning that says why, where they could not be compiled.

    None without one in a model that was exported, which brings no C++.
    `CXX` names the compiler, as it does for make: CXX=false is one way to do without.
    """
    if os.name != "posix":
        return None
    path = own_cache() / f"whole_rows-{fingerprint()}.so"
    with contextlib.suppress(OSError):  # there is none, or a disk that was full has left a part
        return ctypes.CDLL(str(path))
    try:
        compile_to(path)
        return ctypes.CDLL(str(path))
    except (OSError, subprocess.SubprocessError) as error:
        log = path.with_suffix(".log")
        with contextlib.suppress(OSError):
            log.write_text(f"{error}\n{getattr(error, 'stderr', None) or ''}", encoding="utf-8")
        warnings.warn(
            f"attention over whole rows could not be compiled and runs by its definition, several times slower: {log}",
            NotCompiled,
            stacklevel=2,
        )
        return None


def own_cache() -> Path:
    """A folder that belongs to this user and that nobody else writes to; one of this process where there is none."""
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "roundround"
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        state = home.stat()
        if state.st_uid == os.getuid() and not state.st_mode & 0o022 and os.access(home, os.W_OK):
            return home
    except (OSError, RuntimeError):  # no folder can be made, or nobody's home is known
        pass
    return Path(tempfile.mkdtemp(prefix="roundround-"))


def fingerprint() -> str:
    """What the machine code depends on: source, flags, and the CPU for which it is made."""
    information = Path("/proc/cpuinfo")
    lines = information.read_text(encoding="utf-8").splitlines() if information.exists() else []
    units = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    parts = [path.read_text(encoding="utf-8") for path in SOURCES]
    parts += [*FLAGS, platform.machine(), platform.processor(), units]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def compile_to(path: Path) -> None:
    """Compile aside and move into place, so that processes that do so at once, or are killed, leave whole files."""
    compiler = shlex.split(os.environ.get("CXX", "")) or [shutil.which("c++") or shutil.which("g++") or "clang++"]
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".compiling-") as folder:
        made, linked = f"{folder}/whole_rows.o", f"{folder}/whole_rows.so"
        for words in ([*FLAGS, "-c", str(SOURCES[0]), "-o", made], ["-shared", made, "-o", linked]):
            subprocess.run([*compiler, *words], check=True, capture_output=True, text=True, timeout=LONGEST)
        os.replace(linked, path)
