"""The one door between the command line and Hydra: everything after the verb is Hydra's grammar.

`dispatch` runs in the process that the user started; `Job` runs once a job, possibly in a worker of a launcher. Both
turn whatever goes wrong into one red line and an exit code: 1 failed, 2 wrong input, 130 and 143 interrupted.
"""

from __future__ import annotations

import errno
import importlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, read_write

from roundround.command_line.arguments import read_command_line
from roundround.command_line.messages import EXPLAINED, explain
from roundround.config.options import conf_dir, config_name
from roundround.errors import Interrupted, NotFinite, UserError, one_line
from roundround.runs import directories
from roundround.runs.launcher import speaks
from roundround.runs.run import Invocation

log = logging.getLogger(__name__)
claimed: list[str] = []  # sweep directories made by this process, for the last line on standard output


def sweep_directory(outputs: str, verb: str) -> str:
    claimed.append(directories.sweep_directory(outputs, verb))
    return claimed[-1]


# At import, because a launcher's worker resolves the config before it calls the job. The cache makes Hydra, which asks
# for the directory several times, get the same one.
OmegaConf.register_new_resolver("run_directory", directories.run_directory, use_cache=True, replace=True)
OmegaConf.register_new_resolver("sweep_directory", sweep_directory, use_cache=True, replace=True)


class JobFailed(Exception):
    """A job of a sweep failed and has said why; carries its exit code past Hydra, so that the other jobs run."""


@dataclass(frozen=True)
class Job:
    """What Hydra runs, once a job; importable by name so that every launcher can pickle it."""

    verb: str
    target: str  # "package.module:function"
    config_dir: str | None

    def __call__(self, cfg: DictConfig) -> Any:
        with own_process_state(self):
            code = self.run(cfg)
        if code != 1:  # a failed one keeps its log
            directories.remove_scratch(Path(HydraConfig.get().runtime.output_dir))
        if code == 0:
            return None
        if HydraConfig.get().mode == RunMode.MULTIRUN and code < 128:
            raise JobFailed(code)
        raise SystemExit(code)

    def run(self, cfg: DictConfig) -> int:
        """Run the task; the exit code. What went wrong is printed as one line, with the traceback in the log."""
        try:
            module, _, name = self.target.partition(":")
            getattr(importlib.import_module(module), name)(cfg, self.invocation())
        except UserError as error:
            leave_nothing(Path(HydraConfig.get().runtime.output_dir), f"{HydraConfig.get().job.name}.log")
            return complain(self.verb, one_line(error), 2)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                place = error.filename or HydraConfig.get().runtime.output_dir
                return complain(self.verb, f"no space left on the disk of {place}; free some, or give outputs=DIR", 2)
            return self.failed(error)
        except (Interrupted, KeyboardInterrupt) as stop:
            signum = stop.signum if isinstance(stop, Interrupted) else signal.SIGINT
            return complain(self.verb, f"interrupted by {signal.Signals(signum).name}", 128 + signum)
        except Exception as error:
            return self.failed(error)
        return 0

    def invocation(self) -> Invocation:
        """What Hydra decided about this job."""
        hydra_config = HydraConfig.get()
        directory = Path(hydra_config.runtime.output_dir)
        return Invocation(
            verb=self.verb,
            directory=directory,
            overrides=list(hydra_config.overrides.task),
            choices=dict(hydra_config.runtime.choices),
            sweep=directory.parent if hydra_config.mode == RunMode.MULTIRUN else None,
        )

    def failed(self, error: Exception) -> int:
        job = HydraConfig.get()
        path = Path(job.runtime.output_dir) / f"{job.job.name}.log"
        log.debug("the task failed", exc_info=error)
        if isinstance(error, NotFinite) and not speaks():  # all ranks see it
            return 1
        return complain(self.verb, f"failed: {type(error).__name__}: {one_line(error)} (traceback in {path})", 1)


def leave_nothing(directory: Path, log_name: str) -> None:
    """Remove the directory of a job that was refused before it wrote anything but its log."""
    if {path.name for path in directory.iterdir()} <= {log_name}:
        (directory / log_name).unlink(missing_ok=True)
        directory.rmdir()


@contextmanager
def own_process_state(job: Job) -> Iterator[None]:
    """Give a job the process as it needs it, and the next job of the sweep the process as it was.

    Lightning re-runs `sys.argv` for its other ranks and tells them `hydra.run.dir`, so both must mean this one job; it
    also leaves LOCAL_RANK, WORLD_SIZE and a process group behind.
    """
    config = HydraConfig.get()
    with read_write(config):  # type: ignore[arg-type]  # it is a DictConfig underneath
        config.run.dir = config.runtime.output_dir
    environ, argv, path = dict(os.environ), sys.argv, list(sys.path)
    again = ["--config-name", str(config.job.config_name)]
    again += ["--config-dir", job.config_dir] if job.config_dir else []
    sys.argv = [argv[0], job.verb, *config.overrides.task, "hydra.mode=RUN", *again]
    if job.config_dir:
        sys.path.insert(0, job.config_dir)
    handlers = interrupt_on_signals()
    logging.captureWarnings(True)
    try:
        yield
    finally:
        for signum, handler in handlers.items():
            signal.signal(signum, handler)
        sys.argv, sys.path[:] = argv, path
        os.environ.clear()
        os.environ.update(environ)
        distributed = sys.modules.get("torch.distributed")
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            distributed.destroy_process_group()


def interrupt_on_signals() -> dict[int, Any]:
    """Let SIGINT and SIGTERM raise `Interrupted`: Lightning would turn them into exit codes 1 and 0."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {signum: signal.signal(signum, interrupt) for signum in (signal.SIGINT, signal.SIGTERM)}


def interrupt(signum: int, frame: FrameType | None) -> None:
    raise Interrupted(signum)


def complain(verb: str, message: str, code: int) -> int:
    """Print one red line on standard error; return the exit code.

    Of several processes on a machine one says what all meet: wrong input and an interruption.
    """
    if code != 1 and not speaks():
        return code
    red, plain = ("\033[31m", "\033[0m") if sys.stderr.isatty() and "NO_COLOR" not in os.environ else ("", "")
    print(f"{red}roundround {verb}: {message}{plain}", file=sys.stderr, flush=True)
    return code


def dispatch(verb: str, target: str, args: list[str]) -> int:
    """Run a verb through Hydra; the exit code."""
    argv, full = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    os.environ["HYDRA_FULL_ERROR"] = "1"  # raise, do not print and exit
    claimed.clear()
    config_dir = None
    try:
        line = read_command_line(args, verb)
        config_dir = line.config_dir
        sys.argv = [argv[0], *line.overrides, *line.flags]
        run = hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name=config_name(verb))
        run(Job(verb, target, config_dir))()
    except JobFailed as error:
        return int(error.args[0])
    except KeyboardInterrupt:
        return complain(verb, "interrupted by SIGINT", 130)
    except EXPLAINED as error:
        if full == "1":
            raise
        return complain(verb, explain(error, config_dir), 2)
    finally:
        sys.argv = argv
        if full is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = full
    for directory in claimed:
        print(directory, flush=True)
    return 0
