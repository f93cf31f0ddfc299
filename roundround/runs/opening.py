"""How a run begins, ends and is gone on with: one process at a time, and nothing left of one that never began."""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from datetime import datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from roundround import __version__
from roundround.console import print_result, print_status
from roundround.errors import Interrupted, UserError, one_line
from roundround.files import write_atomically
from roundround.runs import variants
from roundround.runs.directories import read_manifest
from roundround.runs.launcher import rank
from roundround.runs.leftovers import LOCK, MANIFEST, METRICS, recover
from roundround.runs.loggers.base import Logger
from roundround.runs.provenance import command_line, config_hash, git_state, versions
from roundround.runs.run import Invocation, Run

log = logging.getLogger(__name__)


@contextmanager
def opened(
    invocation: Invocation, *, config: dict[str, Any], logger: Logger, known: Mapping[str, Any] | None = None
) -> Iterator[Run]:
    """Begin a run in its directory, or go on with the one that lies there, and record how it ends.

    `known` goes into the manifest beside the config, and all of it is written before the logger starts. A run refused
    before its first step (UserError) leaves nothing behind, and one that was to be resumed is as it was. The last line
    on standard output is the directory. Raises UserError where the directory cannot be written, where another process
    is writing there, or where a class from outside is another now.
    """
    directory, writes = invocation.directory, rank() == 0
    with locked(directory) if writes else nullcontext():
        fresh = not (directory / MANIFEST).exists()
        git, patch = git_state() if fresh and writes else (None, None)
        manifest = new_manifest(invocation, config, git) if fresh else read_manifest(directory)
        run, before = Run(directory, manifest, writes=writes), dict(manifest)
        if not fresh:
            for line in variants.refuse_changed(directory, manifest):
                if writes:
                    print_status(line)
            manifest |= {"resumed": now(), "ended": None, "status": "running"}
        manifest |= known or {}
        if writes:
            record_start(run, patch, fresh=fresh)
        try:
            if writes:
                start_logger(run, logger)
            yield run
            end(run, "done")
        except UserError as error:
            if fresh and not (directory / METRICS).exists():
                withdraw(run)
            elif not fresh and not run.has_logged:
                put_back(run, before)
            else:
                end(run, f"failed: {one_line(error)}")
            raise
        except (Interrupted, KeyboardInterrupt):
            end(run, "interrupted")
            raise
        except BaseException as error:
            end(run, f"failed: {type(error).__name__}: {one_line(error)}")
            raise
    if writes:
        print_result(str(directory))


def record_start(run: Run, patch: str | None, *, fresh: bool) -> None:
    """Write what is known before anything starts: the manifest last, since with it the run is there.

    A directory that a killed process left is put right first. Where writing fails, a new run leaves nothing.
    """
    try:
        with refusal_as_user_error(run.directory):
            if fresh:
                run.manifest["variants"] = variants.keep(run.manifest["config"], run.directory)
            else:
                recover(run.directory)
            if patch is not None:
                write_atomically(run.directory / "code.patch", patch)
            run.note()
    except BaseException:
        if fresh:
            withdraw(run)
        raise


def start_logger(run: Run, logger: Logger) -> None:
    kept = logger.start(run.directory, run.manifest)
    run.logger = logger
    if kept is not None:  # a run that is resumed without a logger keeps its id
        run.note(wandb=kept)


def end(run: Run, status: str) -> None:
    """Write how the run ended; where even that fails, say so and keep the error that matters."""
    if not run.writes:
        return
    try:
        run.note(status=status, ended=now())
        run.logger.finish(run.manifest)
    except Exception as error:
        known = status != "done" and isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        log.log(  # where the disk is full, that is what ends the run too
            logging.DEBUG if known else logging.WARNING, "the end of the run could not be recorded: %s", one_line(error)
        )


def withdraw(run: Run) -> None:
    """Remove a run that never began, and only files that a run writes: the folder may be the user's own."""
    import shutil

    if not run.writes:
        return
    run.logger.finish({**run.manifest, "status": "refused"})
    for name in (MANIFEST, "code.patch", "tokenizer.json", LOCK):
        (run.directory / name).unlink(missing_ok=True)
    variants.remove(run.manifest, run.directory)
    shutil.rmtree(run.directory / "wandb", ignore_errors=True)


def put_back(run: Run, manifest: dict[str, Any]) -> None:
    """Leave a run that was to be resumed, and was refused, with the manifest that it had."""
    run.manifest = {**manifest, **{name: run.manifest[name] for name in ("wandb",) if name in run.manifest}}
    run.note()
    if run.writes:
        run.logger.finish(run.manifest)


def new_manifest(invocation: Invocation, config: dict[str, Any], git: dict[str, Any] | None) -> dict[str, Any]:
    """The manifest as it stands when a run begins; `git` is the state of the checkout."""
    return {
        "roundround": __version__,
        "verb": invocation.verb,
        "status": "running",
        "started": now(),
        "ended": None,
        "command": command_line(),
        "overrides": invocation.overrides,
        "config": config,
        "config_hash": config_hash(config),
        "git": git,
        "variants": {},
        "versions": versions(),
        "device": None,
        "seed": config.get("seed"),
        "data": None,
        "facts": {},
        "headline": {},
        "wandb": None,
        "sweep": str(invocation.sweep) if invocation.sweep else None,
    }


def now() -> str:
    return datetime.now().astimezone().isoformat(timespec="microseconds")


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Keep two processes out of one run directory; the lock falls with its process, however that ends."""
    lock = FileLock(directory / LOCK)
    try:
        with refusal_as_user_error(directory):
            lock.acquire(timeout=0)
    except Timeout as error:
        raise UserError(f"{directory} is being written by another process; wait for it or stop it") from error
    try:
        yield
    finally:
        lock.release()


@contextmanager
def refusal_as_user_error(directory: Path) -> Iterator[None]:
    """Make it a UserError where the system lets nobody write there; a full disk is left to the caller."""
    try:
        yield
    except Timeout:  # an OSError too
        raise
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        reason = error.strerror or one_line(error)
        raise UserError(f"cannot write to {error.filename or directory}: {reason}") from error
