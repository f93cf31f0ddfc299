"""How a run begins, is resumed, and ends: one process at a time, and nothing left of one that was refused.

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
from roundround.config.private import where
from roundround.config.recorded import as_dict, flat
from roundround.distributed.device import PeakMemory, larger
from roundround.distributed.launcher import job, rank
from roundround.records.directories import (
    EXPORTED,
    FIGURES,
    FILES,
    FOLDERS,
    LOCK,
    MANIFEST,
    METRICS,
    RESULTS,
    has_words,
    read_manifest,
)
from roundround.records.loggers.base import Logger
from roundround.records.loggers.several import Several
from roundround.records.provenance import (
    VARIANTS,
    config_hash,
    git_state,
    keep_sources,
    refuse_changed,
    remove_sources,
    versions,
)
from roundround.records.run import Invocation, Run
from roundround.support import __version__
from roundround.support.console import print_result, print_status
from roundround.support.errors import Interrupted, PeerLost, UserError, check_no_credentials, one_line
from roundround.support.files import is_full, leftovers, parse_json, write_atomically, write_json

log = logging.getLogger(__name__)

SECONDS_TO_LOOK = 1.0  # of another process at whether a run's lock is held, for which it takes the lock
SECONDS_TO_DIE = 5.0  # of a killed process, whose threads end one by one and keep its lock until the last


@contextmanager
def opened(
    invocation: Invocation,
    *,
    config: dict[str, Any],
    logger: Logger,
    known: Mapping[str, Any] | None = None,
    tell: Callable[[str], None] = print_result,
) -> Iterator[Run]:
    """Begin a run in its directory, or resume the one that lies there, and record how it ends.

    `known` goes into the manifest beside the config, and all of it is written before the logger starts. A run refused
    before its first step (UserError) leaves nothing behind, and one that was to be resumed is as it was. The last line
    on standard output is the directory, unless `tell` says it elsewhere. Raises UserError where the directory cannot be
    written, where another process is writing there, or where a class from outside is another now.
    """
    directory, writes, memory = invocation.directory, rank() == 0, PeakMemory()
    for key, value in flat(config).items():  # a yaml may hold them; typed words are checked before
        check_no_credentials(str(value), key)
    before = set(os.listdir(directory)) if writes else set()
    with locked(directory, seconds=SECONDS_TO_LOOK) if writes else nullcontext():
        earlier, patch = None, None
        if (directory / MANIFEST).exists():
            manifest = read_manifest(directory)
            if writes and not is_its_own(manifest, invocation, config):  # another rank finds what the first one wrote
                raise UserError(f"{directory} holds a run of {manifest['verb']} already; choose another folder")
            earlier = (directory / MANIFEST).read_text(encoding="utf-8")
            for line in refuse_changed(directory, manifest):
                if writes:
                    print_status(line)
            manifest |= {"resumed": now(), "ended": None, "status": "running"}
        else:
            if taken := before & {METRICS, RESULTS, "tokenizer.json"}:
                raise UserError(f"{directory} has a {min(taken)} that a run would overwrite; choose another folder")
            git, patch = git_state() if writes else (None, None)
            manifest = new_manifest(invocation, config, git)
        run = Run(directory, manifest | dict(known or {}), writes=writes)
        if writes:
            record_start(run, patch, before if earlier is None else None)
        with its_end(run, invocation, before, earlier, memory):
            if writes:
                kept = logger.start(directory, run.manifest)
                run.logger = logger
                if kept is not None:  # a run that is resumed without a logger keeps its id
                    run.note(wandb=kept)
            invocation.peers.record = lambda status: record_loss(run, invocation, status)
            with invocation.peers.naming_who_left():
                yield run
    if writes:
        tell(str(directory))


def is_its_own(manifest: Mapping[str, Any], invocation: Invocation, config: Mapping[str, Any]) -> bool:
    """Whether what starts here is the run that lies there: resumed, or the same command of a verb that starts over."""
    if "resume" in config:
        return config["resume"] is not None
    return has_words(manifest, invocation.verb, invocation.overrides)


def opened_run(
    invocation: Invocation,
    cfg: DictConfig,
    *,
    known: Mapping[str, Any] | None = None,
    tell: Callable[[str], None] = print_result,
) -> AbstractContextManager[Run]:
    """`opened` with the composed config of a verb, and the logger that this config names."""
    return opened(invocation, config=as_dict(cfg), logger=build_logger(cfg.logger), known=known, tell=tell)


def build_logger(node: DictConfig) -> Logger:
    """The logger that a node describes, or those that `logger=[wandb,csv]` names, whose nodes lie in it by name.

    Raises UserError where a node is wrong, and where a logger cannot work on this machine.
    """
    if target_class(node, Logger) is not Several:
        return build(node, Logger)
    nodes = {str(name): node[name] for name in node if name != "_target_"}
    if not nodes:
        raise UserError("logger=several stands for a list; give the list itself, such as logger=[wandb,tensorboard]")
    for name, inner in nodes.items():
        if not isinstance(inner, DictConfig):
            raise UserError(f"{where(node)} has no logger '{name}' (it has {', '.join(nodes)})")
    try:
        return Several([build(inner, Logger) for inner in nodes.values()])
    except ValueError as error:
        raise UserError(f"{where(node)}: {error}") from error


@contextmanager
def its_end(
    run: Run, invocation: Invocation, before: set[str], earlier: str | None, memory: PeakMemory
) -> Iterator[None]:
    """Records how the run ends, or takes back that it began.

    before: what lay in its directory; earlier: the manifest of a resumed run, as text.
    """
    try:
        yield
        end(run, "done", 0, memory)
    except UserError as error:
        if run.has_logged:
            end(run, f"failed: {one_line(error)}", 2, memory)
        elif earlier is None:
            withdraw(run, before)
        else:
            restore(run, earlier)
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
        end(run, f"failed: {type(error).__name__}: {one_line(error)}", 1, memory)
        raise


def record_loss(run: Run, invocation: Invocation, status: str) -> None:
    """Record that another process was lost; where it was the first, the one that speaks for it writes its manifest."""
    if run.writes:
        run.note(status=status, ended=now())
    elif invocation.peers.speaks:
        directory = Path(invocation.peers.answer["directory"])
        with suppress(OSError, UserError), locked(directory, seconds=SECONDS_TO_DIE):
            write_json(directory / MANIFEST, read_manifest(directory) | {"status": status, "ended": now()})


def record_start(run: Run, patch: bytes | None, before: set[str] | None) -> None:
    """Write what is known before anything starts: the manifest last, since with it the run is there.

    before: what lay in the directory of a new run; None where a run is resumed, and what a killed process left is put
    right first. Where writing fails, a new run leaves nothing.
    """
    try:
        with refusal_as_user_error(run.directory):
            if before is not None:
                run.manifest["variants"] = keep_sources(run.manifest["config"], run.directory)
            else:
                recover(run.directory)
            if "resume" not in run.manifest["config"]:  # a verb that cannot resume starts over in its own directory
                run.forget_after(0)
            if patch is not None:
                write_atomically(run.directory / "code.patch", patch)
            run.note()
    except BaseException:
        if before is not None:
            withdraw(run, before)
        raise


def end(run: Run, status: str, exit_code: int, memory: PeakMemory) -> None:
    """Write how the run ended, and give the logger what it leaves."""
    if not run.writes:
        return
    known = status != "done"  # where the disk is full, that is what ends the run too
    with as_well_as_possible(run, known=known):
        peak = larger(run.manifest.get("peak_memory"), memory.so_far())
        run.note(status=status, ended=now(), peak_memory=peak)
    with as_well_as_possible(run, known=known, what="the results could not be given to the logger"):
        if (run.directory / RESULTS).exists():
            run.logger.results(parse_json((run.directory / RESULTS).read_text(encoding="utf-8")))
    with as_well_as_possible(run, known=known, what="the figures could not be given to the logger"):
        if pictures := {path.stem: path for path in sorted((run.directory / "figures").glob("*.png"))}:
            run.logger.figures(pictures)
    with as_well_as_possible(run, known=known, what="the checkpoint could not be given to the logger"):
        if (wanted := run.logger.log_checkpoint) is not None:
            from roundround.records import checkpoints  # torch takes seconds to import, and some verbs need none

            if checkpoints.newest(run.directory / "checkpoints") is not None:  # it did not end before its first
                also = [path for name in (MANIFEST, "tokenizer.json") if (path := run.directory / name).exists()]
                run.logger.checkpoint(checkpoints.find(run.directory, wanted), also)
    with as_well_as_possible(run, known=known):
        run.logger.finish(run.manifest, exit_code)


def recover(directory: Path) -> None:
    """Put a run directory right after a kill: temporary files, half-deleted checkpoints, links. The lock is held.

    Raises UserError where something else lies in the place of one of its files.
    """
    for path, kind in [(directory / n, "file") for n in FILES] + [(directory / n, "folder") for n in FOLDERS]:
        if path.exists() and not (path.is_file() if kind == "file" else path.is_dir()):
            raise UserError(f"{path} is not a {kind}; move it away to resume the run")
    for folder, names in {".": FILES, "conf/softmax": FILES, "figures": FIGURES}.items():
        for path in leftovers(directory / folder, names):
            path.unlink()
    shutil.rmtree(directory / f".{EXPORTED}", ignore_errors=True)
    if (directory / "checkpoints").is_dir():
        from roundround.records import checkpoints  # torch takes seconds to import

        checkpoints.recover(directory / "checkpoints")


@contextmanager
def as_well_as_possible(
    run: Run, *, known: bool, what: str = "the end of the run could not be recorded"
) -> Iterator[None]:
    """Where even recording the end fails, say so and keep the error that matters; a full disk may be known."""
    try:
        yield
    except Exception as error:
        level = logging.DEBUG if known and is_full(error) else logging.WARNING
        log.log(level, "%s: %s", what, one_line(error))


def withdraw(run: Run, before: set[str]) -> None:
    """Remove a run that never began, and only what it wrote: the folder may be the user's own, with `before` in it."""
    if not run.writes:
        return
    with as_well_as_possible(run, known=True):
        run.logger.finish({**run.manifest, "status": "refused"}, 2)
    if "wandb" not in before:
        shutil.rmtree(run.directory / "wandb", ignore_errors=True)
    if VARIANTS not in before:
        remove_sources(run.manifest, run.directory)
    for name in ("tokenizer.json", "code.patch", MANIFEST, LOCK):
        if name not in before:
            (run.directory / name).unlink(missing_ok=True)


def restore(run: Run, earlier: str) -> None:
    """Leave a run that was to be resumed, and was refused, with the manifest that it had, to the last byte.

    A logger's run that has begun since is kept, because it would begin another one next time.
    """
    if not run.writes:
        return
    manifest = json.loads(earlier)
    with as_well_as_possible(run, known=True):
        if manifest["wandb"] == run.manifest["wandb"]:
            write_atomically(run.directory / MANIFEST, earlier)
        else:
            run.manifest = {**manifest, "wandb": run.manifest["wandb"]}
            run.note()
        run.logger.finish(manifest, 2)


def new_manifest(invocation: Invocation, config: dict[str, Any], git: dict[str, Any] | None) -> dict[str, Any]:
    """The manifest as it stands when a run begins; `git` is the state of the checkout."""
    return {
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


def now() -> str:
    return datetime.now().astimezone().isoformat(timespec="microseconds")


@contextmanager
def locked(directory: Path, *, seconds: float = 0.0) -> Iterator[None]:
    """Keep two processes out of one run directory; the lock falls with its process, however that ends.

    seconds: to wait for it.
    """
    lock, was_there = FileLock(directory / LOCK), (directory / LOCK).exists()
    try:
        with refusal_as_user_error(directory):
            lock.acquire(timeout=seconds)
    except Timeout as error:
        raise UserError(f"{directory} is being written by another process; wait for it or stop it") from error
    try:
        yield
    except UserError:
        if not was_there:
            (directory / LOCK).unlink(missing_ok=True)
        raise
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
        if is_full(error):
            raise
        reason = error.strerror or one_line(error)
        raise UserError(f"cannot write to {error.filename or directory}: {reason}") from error
