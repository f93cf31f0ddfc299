"""Commands that cost no imports: a process that has imported everything forks once a command. Linux only.

`python forkserver.py` reads a list of requests a line on standard input, runs them at once and answers with one line;
`Forkserver` is its client. A command's process is what `python -m roundround ARGS` would be after its imports: its own
session, working directory, environment, standard streams and exit code.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PR_SET_PDEATHSIG = 1  # of linux/prctl.h
MEMORY = 10 << 30  # bytes of address space a command may take; one that wants more is refused it, not the machine


@dataclass(frozen=True)
class Ended:
    """How a command ended. code: negative where a signal ended it. hung: it was killed at its time limit.

    changes: what it did to the file system, in order, where that was asked for.
    """

    code: int
    out: str
    err: str
    hung: bool
    changes: Sequence[str] = ()


@dataclass(frozen=True)
class Forkserver:
    """The client of a server that runs."""

    server: subprocess.Popen[str]

    def run(self, args: Sequence[str], folder: Path, streams: Path, **options: Any) -> Ended:
        """`run_together`, of one command."""
        return self.run_together(args, folder, streams, n=1, **{"timeout": 60, **options})[0]

    def run_together(
        self,
        args: Sequence[str],
        folder: Path,
        streams: Path,
        *,
        n: int,
        env: Mapping[str, str],
        own: Sequence[Mapping[str, str]] = (),
        timeout: float = 300,
        signals: Sequence[tuple[float, int]] = (),
        watch: bool = False,
        kill_before: int | str | None = None,
        umask: int = 0o022,
    ) -> list[Ended]:
        """Run `roundround ARGS` n times at once in a folder; their output goes to files in the folder `streams`.

        own: what each has in its environment beside what all have. signals: (seconds after its first line of Python,
        signal) in order. watch: list its changes to what lies below the folder. kill_before: kill -9 just before the
        change of this number, counted from 1, or the first that fits this pattern.
        """
        requests: list[dict[str, Any]] = [
            {
                "args": list(args), "folder": str(folder), "env": {**env, **dict(*own[k : k + 1])}, "timeout": timeout,
                "signals": list(signals), "out": str(streams / f"out-{k}"), "err": str(streams / f"err-{k}"),
                "kill_before": kill_before, "umask": umask,
                "changes": str(streams / "changes") if watch or kill_before is not None else None,
            }
            for k in range(n)
        ]  # fmt: skip
        self.server.stdin.write(json.dumps(requests) + "\n")
        self.server.stdin.flush()
        ends = []
        for request, answer in zip(requests, json.loads(self.server.stdout.readline()), strict=True):
            out, err = (Path(request[name]).read_text(encoding="utf-8", errors="replace") for name in ("out", "err"))
            seen = Path(request["changes"]).read_text(errors="replace").splitlines() if request["changes"] else []
            ends.append(Ended(answer["code"], out, err, answer["hung"], seen))
        return ends


COMMAND = (sys.executable, "-m", "roundround")


def in_a_process(
    command: Sequence[str],
    folder: Path,
    *,
    env: Mapping[str, str],
    timeout: float,
    interrupted: tuple[float, signal.Signals] | None = None,
) -> Ended:
    """Run a command in a folder as a whole process, imports included, killed with all it started at its time limit.

    interrupted: (seconds after its start, the signal that it gets then, unless it has ended).
    """
    process = subprocess.Popen(
        [os.fsencode(part) for part in command], cwd=folder, env=dict(env), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, preexec_fn=limit_memory,
    )  # fmt: skip
    hung = False
    try:
        if interrupted is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(interrupted[0])
            if process.poll() is None:
                process.send_signal(interrupted[1])
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        hung = True
    return Ended(process.returncode, *(text.decode(errors="replace") for text in (out, err)), hung)


def process_of(rank: str, variable: str, folder: Path) -> int | None:
    """The process that works in a folder and has this rank in this variable, by its number; rank 0 may lack it.

    A word that begins with the package's name is its module: a checkout and its Python may lie in such a folder.
    """
    for of_process in Path("/proc").glob("[0-9]*"):
        try:
            words, environment = (of_process / "cmdline").read_bytes(), (of_process / "environ").read_bytes()
            inside = (of_process / "cwd").readlink() == folder
        except OSError:
            continue
        own = dict(line.partition("=")[::2] for line in environment.decode(errors="replace").split("\0"))
        ours = b"\0roundround" in words and b"\0torch.distributed" not in words
        if inside and ours and own.get(variable, "0") == rank:
            return int(of_process.name)
    return None


def serve() -> None:
    """Answer requests until standard input ends."""
    import importlib

    sys.path.insert(0, str(ROOT))
    for path in sorted((ROOT / "roundround").rglob("*.py")):
        if path.stem not in ("__main__", "__init__") and "trained/export" not in path.as_posix():  # those: for exports
            importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    for name in ("lightning", "datasets", "transformers", "wandb"):
        importlib.import_module(name)
    replies = os.fdopen(os.dup(1), "w")  # a command must not write among the answers
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    for line in sys.stdin:
        requests = json.loads(line)
        begun = []
        for request in requests:
            ready, tell = os.pipe()  # which says when the child has become the command
            pid = os.fork()
            if pid == 0:
                os.close(ready)
                become(request, tell)
            os.close(tell)
            begun.append((pid, ready))
        ends = [
            waited(*child, request["signals"], request["timeout"])
            for child, request in zip(begun, requests, strict=True)
        ]
        replies.write(json.dumps([{"code": code, "hung": hung} for code, hung in ends]) + "\n")
        replies.flush()


def waited(pid: int, ready: int, signals: Sequence[tuple[float, int]], timeout: float) -> tuple[int, bool]:
    """(exit code, whether it was killed at the time limit) of a child that gets these signals."""
    os.read(ready, 1)
    os.close(ready)
    handle, passed, hung = os.pidfd_open(pid), 0.0, False
    for moment, signum in [*signals, (timeout, signal.SIGKILL)]:
        ended, _, _ = select.select([handle], [], [], max(0.0, moment - passed))
        if ended:
            break
        hung = moment == timeout
        os.killpg(pid, signum) if signum == signal.SIGKILL else os.kill(pid, signum)
        passed = moment
    _, status = os.waitpid(pid, 0)
    os.close(handle)
    return os.waitstatus_to_exitcode(status), hung


def limit_memory() -> None:
    """Refuse this process, and what it starts, more memory than `MEMORY`; and core dumps."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def become(request: dict[str, Any], tell: int) -> None:
    """Turn this child into the command, tell when that is done, and never return."""
    import atexit
    import ctypes
    import importlib.util
    import runpy
    import tempfile
    import traceback

    from wandb.sdk.data_types._private import MEDIA_TMP

    os.setsid()
    os.umask(request["umask"])
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # a hanging command does not outlive the tests
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["env"])
    MEDIA_TMP.name = tempfile.mkdtemp("wandb-media")  # each process makes its own as it imports wandb, and removes it
    limit_memory()
    for number, path in ((0, os.devnull), (1, request["out"]), (2, request["err"])):
        handle = os.open(path, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(handle, number)
        os.close(handle)
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
    sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr  # type: ignore[misc]
    sys.argv = ["roundround", *request["args"]]
    sys.modules["__main__"].__spec__ = importlib.util.find_spec("roundround.__main__")  # Lightning starts it by name
    sys.path[0:0] = [""]
    code: Any = 0
    try:
        if request["changes"] is not None:
            watch_files(Path(request["changes"]), request["folder"], request["kill_before"])
        os.write(tell, b"!")
        os.close(tell)
        runpy.run_module("roundround", run_name="__main__")
    except SystemExit as stop:
        code = stop.code
    except KeyboardInterrupt:
        traceback.print_exc()
        code = 130
    except BaseException:
        traceback.print_exc()
        code = 1
    if isinstance(code, str):  # what Python does with it
        print(code, file=sys.stderr)
        code = 1
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        code = code or 120
    os._exit(code or 0)


CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.symlink", "os.link", "os.truncate"}


def watch_files(log: Path, folder: str, kill_before: int | str | None) -> None:
    """Write every change that this process is about to make below a folder into a log; kill it before one.

    What code in other languages than Python writes is not seen.
    """
    handle, n_seen = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), 0

    def hook(event: str, args: tuple[Any, ...]) -> None:
        nonlocal n_seen
        path = args[1] if event == "os.symlink" else args[0] if args else None
        if event == "open":
            if not (isinstance(path, str | bytes) and args[2] & (os.O_WRONLY | os.O_RDWR)):
                return
            if str(path).startswith("/dev/"):
                return
        elif event not in CHANGES:
            return
        there = os.path.lexists(str(path))  # what is going to fail changes nothing
        in_vain = (event == "os.mkdir" and there) or (event in ("os.remove", "os.rmdir") and not there)
        if os.path.isabs(str(path)) and (not str(path).startswith(folder) or in_vain):
            return
        n_seen += 1
        change = f"{event} {' '.join(map(str, args[:2]))}"
        os.write(handle, f"{change}\n".encode(errors="replace"))
        if n_seen == kill_before or (isinstance(kill_before, str) and re.search(kill_before, change)):
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


if __name__ == "__main__":
    serve()
