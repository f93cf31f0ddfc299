"""Turns a command line into a Hydra job. The words after the verb follow Hydra's grammar.

`dispatch` runs in the process that the user started; `Job` runs once for each job, possibly in a launcher's worker.
Both turn any error into one red line and an exit code: 1 failed, 2 wrong input, 130 and 143 interrupted.
A verb that returns a number has finished, and ends with it: 3 no verdict, 4 a variant is worse.

Tested by tests/command_line/test_command_line.py and tests/command_line/test_wrong_starts.py.
"""

from __future__ import annotations

import errno
import glob
import importlib
import logging
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, read_write

from roundround.command_line.arguments import parse, read_command_line
from roundround.command_line.complaint import complain, outcome
from roundround.command_line.messages import EXPLAINED, explain
from roundround.config.build import literal
from roundround.config.options import conf_dir, config_name, in_quotes
from roundround.config.private import collect_jobs, result_of
from roundround.config.recorded import as_dict, flat
from roundround.config.verb import Verb
from roundround.distributed.interruption import end_at_once, interrupt, on_signals, pass_on, put_back, signals_ignored
from roundround.distributed.launcher import check_alone, rank, started_again
from roundround.distributed.peers import Peers
from roundround.records import directories
from roundround.records.directories import MANIFEST
from roundround.records.provenance import is_done
from roundround.records.run import Invocation
from roundround.support.console import print_result, print_status, quiet
from roundround.support.errors import Interrupted, OutputError, UserError, one_line
from roundround.support.files import home_expanded, is_full
from roundround.verbs import VERBS

log = logging.getLogger(__name__)

LEVELS = 4  # folders from outputs down to a job of a sweep: verb, day, sweep, job; run=FOLDER searches no deeper
WRONG_PATH = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR)


class JobFailed(Exception):
    """A job of a sweep failed; the other jobs of the sweep still run.

    args: the exit code of the failed job, and the line that it printed.
    """


finished = collect_jobs(JobFailed)  # the jobs of this process's sweep, in the order in which they return


@dataclass(frozen=True)
class Job:
    """The function that Hydra calls once for each job; importable by name so that every launcher can pickle it."""

    verb: Verb
    config_dir: str | None
    words: tuple[str, ...]  # what was typed after `roundround`

    def __call__(self, cfg: DictConfig) -> Any:
        directory = Path(HydraConfig.get().runtime.output_dir)
        with own_process_state(self) as handlers:
            code, line = self.run(cfg, directory)
        if code >= 128:
            pass_on(code - 128, handlers)
        if code != 1:  # a failed job keeps its log
            directories.remove_scratch(directory)
        if code == 0:
            return None
        if HydraConfig.get().mode == RunMode.MULTIRUN and code < 128:
            raise JobFailed(code, line)
        raise SystemExit(code)

    def run(self, cfg: DictConfig, directory: Path) -> tuple[int, str]:
        """Run the verb; returns the exit code and the line about an error, which is empty if there was none.

        The other processes of the run learn the exit code. The traceback is in the log.
        """
        log_name, peers, code, line = f"{HydraConfig.get().job.name}.log", None, 0, ""
        try:
            peers = Peers(give_up=partial(give_up, self.verb.name))
            check_alone(self.verb.name, [verb.name for verb in VERBS if verb.parallel])
            module, _, name = self.verb.run.partition(":")
            function: Callable[[DictConfig, Invocation], int | None] = getattr(importlib.import_module(module), name)
            on_signals(interrupt)
            again = self.verb.measures and self.has_begun(directory)
            if again and is_done(directory, self.verb.name, typed_overrides()):
                if rank() == 0:
                    print_status("finished before, and kept")
                    print_result(str(directory))
            else:
                own = self.join(peers, directory, as_dict(cfg))
                if own is not None:
                    OmegaConf.update(cfg, "resume", own)
                    sys.argv.append(f"resume={in_quotes(own)}")  # for the processes that Lightning starts
                code = function(cfg, self.invocation(peers)) or 0
                self.leave_page(directory)
                leave_nothing(directory, log_name)  # if the verb opened no run
        except (Exception, Interrupted, KeyboardInterrupt, SystemExit) as error:  # a user's module may call sys.exit
            known = explain(error, self.config_dir) if isinstance(error, EXPLAINED) else about_path(error, directory)
            log_file = f"traceback in {directory / log_name}"
            code, line = outcome(error, known, see=f"; see {directory}", traceback=log_file)
            if code in (1, 2):
                log.debug("the job ended with this error", exc_info=error)
            if code == 2:
                leave_nothing(directory, log_name)
        return leave(self.verb.name, peers, code, line), line

    def has_begun(self, directory: Path) -> bool:
        """Whether the directory contains this job's run because Slurm or a repeated sweep starts the job again."""
        again = started_again() or HydraConfig.get().mode == RunMode.MULTIRUN
        return again and (directory / MANIFEST).exists()

    def join(self, peers: Peers, directory: Path, config: dict[str, Any]) -> str | None:
        """Connect to the other processes of the run, whose configs must be equal; returns the run to resume, or None.

        If a job of Slurm or of a sweep was stopped and is restarted, it resumes the run in its directory.
        """
        own = str(directory) if self.has_begun(directory) and "resume" in config else None
        if self.verb.parallel:
            peers.request = {"the verb": self.verb.name, **flat(config)}
        peers.join({"resume": own, "directory": str(directory)})
        if peers.rank != 0:
            quiet.add("the first process prints it")
        own = peers.answer.get("resume", own)
        return own if config.get("resume") is None else None

    def leave_page(self, directory: Path) -> None:
        """Write the page of the run into its directory. The run is complete, so an error here is only a warning."""
        if not self.verb.page or rank() != 0:
            return
        from roundround.report.page.view import write_page

        try:
            write_page(directory)
        except Exception as error:
            log.warning("the page of the run could not be written: %s", one_line(error))

    def invocation(self, peers: Peers) -> Invocation:
        """The `Invocation` of this job, from Hydra's config: directory, overrides, the options of the groups.

        Raises UserError if a yaml lists several loggers, because Hydra would merge them into one.
        """
        hydra_config = HydraConfig.get()
        typed = {override.partition("=")[0].lstrip("+~") for override in typed_overrides()}
        choices = {  # a pattern's own choices are in its yaml; typed ones are kept
            group: option
            for group, option in hydra_config.runtime.choices.items()
            if "@" not in group or ("@pattern." in group and group in typed)
        }
        if "logger" not in choices:
            raise UserError(
                "logger must be one option in a yaml; to give several, write logger=[wandb,csv] on the command line"
            )
        directory, words = Path(hydra_config.runtime.output_dir), list(self.words)
        is_sweep = hydra_config.mode == RunMode.MULTIRUN
        if is_sweep:  # the command that runs this job alone
            name = str(hydra_config.job.config_name)
            words = [
                self.verb.name,
                *typed_overrides(),
                *(["--config-dir", self.config_dir] if self.config_dir else []),
                *(["--config-name", name] if name != config_name(self.verb.name) else []),
            ]
        return Invocation(
            verb=self.verb.name,
            directory=directory,
            overrides=typed_overrides(),
            choices=choices,
            sweep=directory.parent if is_sweep else None,
            config_dir=self.config_dir,
            command=shlex.join(["roundround", *words]),
            peers=peers,
        )


def typed_overrides() -> list[str]:
    """The overrides as text; an interpolation stays as it was typed."""
    overrides: list[str] = OmegaConf.to_container(HydraConfig.get().overrides.task, resolve=False)  # type: ignore
    return [without_escapes(override) for override in overrides]


def without_escapes(override: str) -> str:
    """The override as a user can type it. Hydra escapes characters such as spaces and colons in a job's overrides."""
    key, _, text = override.partition("=")
    value = parse(override).value() if "\\" in text else text
    return f"{key}={in_quotes(value)}" if isinstance(value, str) and value != text else override


def leave(verb: str, peers: Peers | None, code: int, line: str) -> int:
    """Report to the other processes of the run how this process ends; returns the exit code.

    line: the line about an error; only one process prints it.
    """
    is_first = peers is None or peers.speaks
    if peers is not None and not peers.may_report():
        line = ""  # another thread reports
    if line and is_first:
        complain(verb, line, code, speaks=True)
    with signals_ignored():
        received = peers is not None and peers.leave(code, line)
    if line and not is_first and not received:
        complain(verb, line, code)
    return code


def give_up(verb: str, line: str) -> None:
    """Print the line, if any, and end this process at once.

    A second thread calls this function while the main thread waits inside a library.
    """
    if line:
        complain(verb, line, 1, speaks=True)
    os._exit(1)


def refused_before_joining(verb: str, line: str) -> int:
    """Refuse the command line before a job starts, and tell the run's other processes, in case they accepted it."""
    try:
        return leave(verb, Peers(), 2, line)
    except UserError:  # the launcher's environment variables contradict each other
        return complain(verb, line, 2)


@contextmanager
def own_process_state(job: Job) -> Iterator[dict[int, Any]]:
    """Set the state of the process for one job, and restore it for the sweep's next job; yields the signal handlers.

    Lightning starts its other ranks with the words of `sys.argv` and with `hydra.run.dir` from Hydra's config, so
    `sys.argv` and `hydra.run.dir` must both describe this job and no other job of the sweep. Lightning also leaves
    LOCAL_RANK, WORLD_SIZE and a process group behind.
    """
    config = HydraConfig.get()
    with read_write(config):  # type: ignore[arg-type]  # it is a DictConfig underneath
        config.run.dir = config.runtime.output_dir
    environ, argv, path = dict(os.environ), sys.argv, list(sys.path)
    again = ["--config-name", str(config.job.config_name)]
    again += ["--config-dir", job.config_dir] if job.config_dir else []
    sys.argv = [argv[0], job.verb.name, *typed_overrides(), "hydra.mode=RUN", *again]
    if job.config_dir:
        sys.path.insert(0, job.config_dir)
    handlers = on_signals(end_at_once)  # also while the verb is imported
    logging.captureWarnings(True)
    try:
        yield handlers
    finally:
        put_back(handlers)
        quiet.clear()
        sys.argv, sys.path[:] = argv, path
        os.environ.clear()
        os.environ.update(environ)
        distributed = sys.modules.get("torch.distributed")
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            distributed.destroy_process_group()


# -- the directories of runs and sweeps


class NotClaimed(BaseException):
    """The directory could not be made. Hydra only warns of an Exception in a callback, so this is a BaseException.

    error: the error that occurred when the directory was made.
    """

    def __init__(self, error: Exception) -> None:
        self.error = error


class ClaimDirectory(Callback):
    """Makes the directory of a run or a sweep when the run or sweep starts, but not if a command only prints a config.

    A directory that the user gives, as hydra.run.dir or hydra.sweep.dir, is used unchanged.
    """

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        self.claim(config.hydra, "run", config.outputs, config.get("resume"))

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        self.claim(config.hydra, "sweep", config.outputs, config.get("resume"))

    def claim(self, hydra: DictConfig, kind: str, outputs: object, resume: object) -> None:
        """Make the directory and put its path into Hydra's config in place of the path from conf/run.yaml."""
        new = "${outputs}/${hydra.job.name}/${now:%Y-%m-%d}/${now:%H-%M-%S}"
        as_named: Any = OmegaConf.to_container(hydra[kind], resolve=False)
        if as_named["dir"] != {"run": new, "sweep": "${hydra.run.dir}-sweep"}[kind]:
            return
        verb, past = str(hydra.job.name), None if resume is None else str(resume)
        try:
            if not str(outputs).strip() or past == "":
                raise UserError(f"{'resume' if past == '' else 'outputs'}= is empty; give a folder")
            if kind == "run":
                found = directories.run_directory(str(outputs), verb, past, list(hydra.overrides.task))
            elif past is None:
                found = directories.sweep_directory(str(outputs), verb)
            else:
                raise UserError(directories.ONE_RUN)
        except Exception as error:
            raise NotClaimed(error) from error
        hydra[kind].dir = literal(found)
        if kind == "sweep":
            hydra.overrides.hydra.append(f"hydra.sweep.dir={in_quotes(found)}")  # for the jobs


def leave_nothing(directory: Path, file: str) -> None:
    """Remove a directory if it contains nothing but this file, such as the log of a refused job.

    The current folder (hydra.run.dir=.) is never removed, because it is the user's own.
    """
    with suppress(OSError):  # a directory that cannot be removed stays: another error is being reported
        if directory != Path.cwd() and {path.name for path in directory.iterdir()} <= {file}:
            (directory / file).unlink(missing_ok=True)
            directory.rmdir()


# -- the command


def each_run(args: list[str], verb: Verb) -> list[str]:
    """The words of a command; a sweep over the finished runs replaces `run=FOLDER` or `run=PATTERN`.

    FOLDER is a folder of runs, such as the folder of a sweep; PATTERN is a glob pattern. All other words stay as typed.
    Raises UserError if none of the runs is finished, or if `to=` names one folder for all runs.
    """
    typed = next((arg for arg in args if arg.startswith("run=")), None)
    if typed is None or "run" not in verb.keys:
        return args
    word = typed.removeprefix("run=").strip("'\"")
    path = home_expanded(word, "run")
    is_folder = path.is_dir() and not os.path.lexists(path / directories.MANIFEST)
    if not (is_folder or (glob.has_magic(word) and not path.exists())):
        return args
    from roundround.analysis.past_run import Filters, directories_of, runs_in

    damaged: list[tuple[str, str]] = []
    wanted = verb.name if verb.trains else "train"
    found = directories_of(word, "", levels=LEVELS)
    runs = [str(run.directory) for run in runs_in(found, Filters({"verb": wanted, "status": "done"}), damaged)]
    if not runs:
        first = f"; {damaged[0][1]}" if damaged else ""
        raise UserError(f"run={word} means {len(found):,} runs, and none is a finished run of {wanted}{first}")
    for _, why in damaged:
        print_status(f"passed over: {why}")
    if any(arg.startswith("to=") for arg in args):
        raise UserError(f"run={word} means {len(runs):,} runs, but to= names one folder; choose a run: run={runs[0]}")
    each = f"run=choice({','.join(map(in_quotes, runs))})"
    is_sweep = {"-m", "--multirun"} & {*args}
    return [*(each if arg is typed else arg for arg in args), *([] if is_sweep else ["-m"])]


def about_path(error: BaseException, directory: Path) -> str | None:
    """A line about a full disk or a path that cannot be used; None for another error."""
    if is_full(error):
        path = (error.filename if isinstance(error, OSError) else None) or directory
        return f"no space left on the disk of {path}; free some, or give outputs=DIR"
    if isinstance(error, OSError) and error.errno in WRONG_PATH and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return None


def dispatch(verb: Verb, args: list[str], typed: str) -> int:
    """Run a verb through Hydra; returns the exit code. typed: the verb's name or alias, as the user typed it."""
    argv, full = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises its errors instead of printing them and exiting
    finished.clear()
    config_dir, code = None, 0
    try:
        overrides, flags, config_dir = read_command_line(each_run(args, verb), verb)
        sys.argv = [argv[0], *overrides, *flags]
        run = hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name=config_name(verb.name))
        run(Job(verb, config_dir, (typed, *args)))()
        if "--multirun" in flags and not finished:
            raise UserError("this sweep has no job: one of its keys is swept over no values")
        failed = {n: result for n, job in enumerate(finished) if isinstance(result := result_of(job), JobFailed)}
        code = int(next(iter(failed.values())).args[0]) if failed else 0
        show_what_came(failed, code)
    except SystemExit as end:  # raised by a job, or by Hydra after a page of help
        return int(end.code or 0)
    except (Exception, NotClaimed, Interrupted, KeyboardInterrupt) as raised:
        cause = raised.error if isinstance(raised, NotClaimed) else raised
        if full == "1" and isinstance(cause, Exception) and not isinstance(cause, OutputError):
            raise cause from raised.__cause__
        code, message = outcome(cause, explain(cause, config_dir))
        return refused_before_joining(verb.name, message) if code == 2 else complain(verb.name, message, code)
    finally:
        sys.argv = argv
        del os.environ["HYDRA_FULL_ERROR"]
        os.environ.update({} if full is None else {"HYDRA_FULL_ERROR": full})
    return code


def show_what_came(failed: dict[int, JobFailed], code: int) -> None:
    """Show the results of a sweep: a table, a page, the next command, the sweep's directory.

    failed: the exception of each failed job, under the number of the job. code: the exit code of the command.
    """
    hydra_config = finished[0].hydra_cfg.hydra if finished and finished[0].hydra_cfg is not None else None
    if hydra_config is None or hydra_config.mode != RunMode.MULTIRUN:
        return
    from roundround.report.sweep import show_sweep

    directory = Path(hydra_config.sweep.dir)
    try:
        show_sweep(directory, {n: error.args[1] for n, error in failed.items()}, len(finished))
    except Exception as error:  # only a warning: the runs are complete
        log.warning("the results of the sweep could not be shown: %s", one_line(error))
    leave_nothing(directory, "multirun.yaml")  # Hydra writes this file even if all jobs are refused
    if code == 0:
        print_result(str(directory))
