"""How a run starts, is resumed, and ends. Only one process at a time writes a run; a refused run leaves no files.

Tested by tests/records/test_run.py.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from omegaconf import DictConfig

from roundround.config.build import build, target_class
from roundround.config.recorded import as_dict, flat
from roundround.distributed.device import PeakMemory, larger
from roundround.distributed.launcher import job, rank
from roundround.records.directories import (
    FIGURES,
    FILES,
    LOCK,
    MANIFEST,
    METRICS,
    RESULTS,
    has_words,
    read_manifest,
)
from roundround.records.loggers.base import Logger, Several
from roundround.records.provenance import (
    VARIANTS,
    config_hash,
    git_state,
    keep_sources,
    refuse_changed,
    versions,
)
from roundround.records.run import Invocation, Run
from roundround.support import __version__
from roundround.support.console import print_result
from roundround.support.errors import Interrupted, NoVerdict, PeerLost, UserError, check_no_credentials, one_line
from roundround.support.files import is_full, leftovers, parse_json, write_atomically, write_json

log = logging.getLogger(__name__)

SECONDS_TO_LOCK = 1.0  # another process may hold the lock for a moment, only to test whether it is free
SECONDS_TO_DIE = 5.0  # a killed process keeps its lock until the last of its threads has ended


@contextmanager
def opened(
    invocation: Invocation,
    *,
    config: dict[str, Any],
    logger: Logger,
    known: Mapping[str, Any] | None = None,
    tell: Callable[[str], None] = print_result,
) -> Iterator[Run]:
    """Start a run in its directory, or resume the run that is there, and record how it ends.

    The manifest, to which `known` is added, is written before the logger starts. If a run is refused before its first
    step (UserError), the files of a new run are removed, and a resumed run is restored as it was. At the end, `tell`
    is called with the directory; the default prints it as the last line on standard output. Raises UserError if the
    directory cannot be written, if another process writes there, or if the code of a user's class has changed.
    """
    directory, writes, memory = invocation.directory, rank() == 0, PeakMemory()
    for key, value in flat(config).items():  # values of yamls; the command line has been checked already
        check_no_credentials(str(value), key)
    before = set(os.listdir(directory)) if writes else set()
    with locked(directory, seconds=SECONDS_TO_LOCK) if writes else nullcontext():
        earlier, patch = None, None
        if (directory / MANIFEST).exists():
            manifest = read_manifest(directory)
            starts_over = "resume" not in config and has_words(manifest, invocation.verb, invocation.overrides)
            if writes and not starts_over and config.get("resume") is None:  # other ranks find the run of rank 0 here
                raise UserError(f"{directory} holds a run of {manifest['verb']} already; choose another folder")
            earlier = (directory / MANIFEST).read_text(encoding="utf-8")
            refuse_changed(directory, manifest)
            manifest |= {"resumed": now(), "ended": None, "status": "running"}
        else:
            if taken := before & {METRICS, RESULTS, "tokenizer.json"}:
                raise UserError(f"{directory} has a {min(taken)} that a run would overwrite; choose another folder")
            git, patch = git_state() if writes else (None, None)
            manifest = {
                "roundround": __version__,
                "verb": invocation.verb,
                "status": "running",
                "started": now(),
                "ended": None,
                "command": invocation.command,
                "cwd": os.getcwd(),
                "overrides": invocation.overrides,
                "config": config,
                "config_hash": config_hash(config),
                "git": git,
                "variants": {},
                "versions": versions(),
                "device": None,
                "peak_memory": None,
                "seed": config.get("seed"),
                "data": None,
                "facts": {},
                "headline": {},
                "wandb": None,
                "sweep": str(invocation.sweep) if invocation.sweep else None,
                "job": job(),
            }
        run = Run(directory, manifest | dict(known or {}), writes=writes)
        if writes:
            record_start(run, patch, before if earlier is None else None)
        with its_end(run, invocation, before, earlier, memory):
            if writes:
                for one in logger.loggers if isinstance(logger, Several) else [logger]:
                    kept = one.start(directory, run.manifest)
                    run.loggers.append(one)
                    if kept is not None:  # if a run is resumed without a logger, its earlier id stays
                        run.note(wandb=kept)
            invocation.peers.record = lambda status: record_loss(run, invocation, status)
            with invocation.peers.naming_who_left():
                yield run
    if writes:
        tell(str(directory))


def opened_run(
    invocation: Invocation,
    cfg: DictConfig,
    *,
    known: Mapping[str, Any] | None = None,
    tell: Callable[[str], None] = print_result,
) -> AbstractContextManager[Run]:
    """Calls `opened` with the composed config of a verb and with the logger that the config names."""
    return opened(invocation, config=as_dict(cfg), logger=build_logger(cfg.logger), known=known, tell=tell)


def build_logger(node: DictConfig) -> Logger:
    """The logger that a node describes; for `logger=[wandb,csv]`, the node contains a node for each logger, by name.

    Raises UserError if a node is wrong, or if a logger cannot work on this machine.
    """
    if target_class(node, Logger) is not Several:
        return build(node, Logger)
    nodes = {str(name): node[name] for name in node if name != "_target_"}
    if not nodes:
        raise UserError("logger=several stands for a list; give the list itself, such as logger=[wandb,tensorboard]")
    return Several([build(inner, Logger) for inner in nodes.values()])


@contextmanager
def its_end(
    run: Run, invocation: Invocation, before: set[str], earlier: str | None, memory: PeakMemory
) -> Iterator[None]:
    """Records how the run ends, or removes a run that was refused.

    before: the names of the files in the directory before the run started. earlier: the manifest of a resumed run as
    text; None for a new run.
    """
    try:
        yield
        end(run, "done", 0, memory)
    except UserError as error:
        if run.has_logged:
            end(run, f"failed: {one_line(error)}", 2, memory)
        else:
            take_back(run, before, earlier)
        raise
    except (Interrupted, KeyboardInterrupt) as stop:
        end(run, "interrupted", 128 + (stop.signum if isinstance(stop, Interrupted) else signal.SIGINT), memory)
        raise
    except PeerLost as error:
        status = f"failed: {one_line(error)}"
        record_loss(run, invocation, status)
        end(run, status, 1, memory)
        raise
    except BaseException as error:
        code = 3 if isinstance(error, NoVerdict) else 1
        end(run, f"failed: {type(error).__name__}: {one_line(error)}", code, memory)
        raise


def record_loss(run: Run, invocation: Invocation, status: str) -> None:
    """Record in the manifest that a process was lost; if it was the first process, another one writes the manifest."""
    if run.writes:
        run.note(status=status, ended=now())
    elif invocation.peers.speaks:
        directory = Path(invocation.peers.answer["directory"])
        with suppress(OSError, UserError), locked(directory, seconds=SECONDS_TO_DIE):
            write_json(directory / MANIFEST, read_manifest(directory) | {"status": status, "ended": now()})


def record_start(run: Run, patch: bytes | None, before: set[str] | None) -> None:
    """Write the files that a run has from its start. The manifest is last, because it makes the directory a run.

    before: the names of the files in the directory before a new run; None for a resumed run, whose directory is cleaned
    up first. If writing fails, a new run leaves nothing.
    """
    try:
        if before is not None:
            run.manifest["variants"] = keep_sources(run.manifest["config"], run.directory)
        else:
            clean_up(run.directory)
        if "resume" not in run.manifest["config"]:  # a verb that cannot resume starts over in its own directory
            run.forget_after(0)
        if patch is not None:
            write_atomically(run.directory / "code.patch", patch)
        run.note()
    except BaseException as error:
        if before is not None:
            take_back(run, before, None)
        if isinstance(error, OSError) and not is_full(error):
            raise UserError(f"cannot write to {error.filename or run.directory}: {error.strerror}") from error
        raise


def end(run: Run, status: str, exit_code: int, memory: PeakMemory) -> None:
    """Write how the run ended, and give its results to the loggers."""
    if not run.writes:
        return
    with as_well_as_possible("the end of the run could not be recorded"):
        run.note(status=status, ended=now(), peak_memory=larger(run.manifest.get("peak_memory"), memory.so_far()))
    for logger in run.loggers:
        with as_well_as_possible("the results could not be given to the logger"):
            if (run.directory / RESULTS).exists():
                logger.results(parse_json((run.directory / RESULTS).read_text(encoding="utf-8")))
            if pictures := {path.stem: path for path in sorted((run.directory / "figures").glob("*.png"))}:
                logger.figures(pictures)
            if logger.log_checkpoint is not None:
                from roundround.records import checkpoints  # torch takes seconds to import, and some verbs need none

                also = [path for name in (MANIFEST, "tokenizer.json") if (path := run.directory / name).exists()]
                logger.checkpoint(checkpoints.find(run.directory, logger.log_checkpoint), also)
        with as_well_as_possible("the logger could not be finished"):
            logger.finish(run.manifest, exit_code)


def clean_up(directory: Path) -> None:
    """Remove what a killed process left: temporary files, half-deleted checkpoints, wrong links.

    The caller holds the lock of the run.
    """
    for folder, names in {".": FILES, "conf/softmax": FILES, "figures": FIGURES}.items():
        for path in leftovers(directory / folder, names):
            path.unlink()
    if (directory / "checkpoints").is_dir():
        from roundround.records import checkpoints  # torch takes seconds to import

        checkpoints.clean_up(directory / "checkpoints")


@contextmanager
def as_well_as_possible(what: str) -> Iterator[None]:
    """Inside the block, an error is logged as a warning and not raised, so that it cannot hide the run's own error."""
    try:
        yield
    except Exception as error:
        log.warning("%s: %s", what, one_line(error))


def take_back(run: Run, before: set[str], earlier: str | None) -> None:
    """Restore the directory of a refused run: the files that a new run wrote are removed, and no others.

    before: the names of the files in the directory before the run, such as files of the user. earlier: the manifest of
    a resumed run as text, which is restored byte for byte; None for a new run.
    """
    if not run.writes:
        return
    for logger in run.loggers:
        with as_well_as_possible("the logger could not be finished"):
            logger.finish(json.loads(earlier) if earlier is not None else {**run.manifest, "status": "refused"}, 2)
    if earlier is not None:
        write_atomically(run.directory / MANIFEST, earlier)
        return
    for folder in {"wandb", VARIANTS} - before:
        shutil.rmtree(run.directory / folder, ignore_errors=True)
    for name in {"tokenizer.json", "code.patch", MANIFEST, LOCK} - before:
        (run.directory / name).unlink(missing_ok=True)


def now() -> str:
    return datetime.now().astimezone().isoformat(timespec="microseconds")


@contextmanager
def locked(directory: Path, *, seconds: float = 0.0) -> Iterator[None]:
    """A context that holds the lock of a run directory, so that only one process writes there.

    The system frees the lock when the process ends. seconds: the longest time to wait for the lock.
    Raises UserError if another process holds the lock, or if the directory cannot be written.
    """
    try:
        lock = FileLock(directory / LOCK).acquire(timeout=seconds)
    except Timeout as error:
        raise UserError(f"{directory} is being written by another process; wait for it or stop it") from error
    except OSError as error:
        raise UserError(f"cannot write to {error.filename or directory}: {error.strerror}") from error
    with lock:
        yield
