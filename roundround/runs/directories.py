"""Where runs live: claiming a directory, finding one, putting right or sweeping what killed processes left in it.

No torch here, so the command line starts fast. Tested by tests/runs/test_run.py and tests/runs/test_leftovers.py.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from roundround.distributed.launcher import job, launched_from_outside, rank, started_again
from roundround.runs.manifest import fault, time_of, too_old
from roundround.support import __version__
from roundround.support.errors import UserError, one_line, printable
from roundround.support.files import home_expanded, leftovers, parse_json, read_text

MANIFEST, LOCK, METRICS, RESULTS, PAGE = "run.json", ".lock", "metrics.jsonl", "results.json", "report.html"
# written atomically
FILES = (
    *(MANIFEST, METRICS, RESULTS, PAGE, "code.patch", "tokenizer.json", "table.md", "fitted.yaml"),
    *("metrics.csv", "results.csv"),
)
FIGURES = ("*.svg", "*.pdf", "*.png")  # the same, in its folder
EXPORTED = "exported"  # what a run whose parameters were shared out leaves for from_pretrained
FOLDERS = ("checkpoints", "figures", "variants", "conf", "tensorboard", EXPORTED)
BEFORE_MANIFEST = {LOCK, "code.patch", "multirun.yaml"}
DAY, TIME = re.compile(r"\d{4}-\d\d-\d\d"), re.compile(r"\d\d-\d\d-\d\d(-sweep)?(-\d+)?")
DAYS_SWEPT = 3  # the latest that are there
SECONDS_TO_BEGIN = 24 * 3600  # a corpus may take hours to tokenise, on another machine, where the hold is not seen
held: list[int] = []  # the hold on the directory that this process claimed last; it falls with the process
SCRATCH = "roundround-rank-"
LARGEST = 16 << 20  # bytes of a manifest; most have a few thousand


def run_directory(outputs: str, verb: str, resume: str | None, overrides: Sequence[str] = ()) -> str:
    """Hydra's run directory: the resumed run's own, or a new one claimed under `outputs`.

    A job that Slurm or torchrun starts again, with the same overrides, gets the directory that it had. Processes other
    than the first leave files to the first one and get a scratch folder, which Hydra insists on. While they train, they
    learn the first one's directory.
    """
    if resume is not None:
        directory = find_run(resume, outputs, verb, done=False)
        found = read_manifest(directory)["verb"]
        if found != verb:  # said before Hydra writes its log there
            raise UserError(f"{directory} is a run of {found}, and this takes one of {verb}")
        refuse_links(directory)
        return str(directory)
    earlier = directory_of_job(runs_of(outputs, verb), verb, overrides) if started_again() else None
    if earlier is not None:
        return str(earlier)
    if rank() != 0:
        return tempfile.mkdtemp(prefix=SCRATCH)
    return str(claim(runs_of(outputs, verb), datetime.now()))


def directory_of_job(folder: Path, verb: str, overrides: Sequence[str]) -> Path | None:
    """The run that this job began before it was started again; None where it had not begun."""
    own = [
        (time_of(manifest["started"]), path)
        for path, manifest in all_runs(folder, verb, done=False)
        if manifest.get("job") == job() and sorted(manifest["overrides"]) == sorted(overrides)
    ]
    return max(own)[1] if own else None


def remove_scratch(directory: Path) -> None:
    """Remove the directory of a process other than the first; leave any other."""
    if directory.name.startswith(SCRATCH) and directory.parent == Path(tempfile.gettempdir()):
        shutil.rmtree(directory, ignore_errors=True)


def sweep_directory(outputs: str, verb: str) -> str:
    """Hydra's sweep directory, whose folders are the jobs by number. UserError where it cannot be one for all ranks."""
    launched = launched_from_outside()
    if launched is not None and "SUBMITIT_EXECUTOR" not in os.environ:
        raise UserError(f"{launched.launcher} starts the processes of one run; leave out -m, or start a run at a time")
    return str(claim(runs_of(outputs, verb), datetime.now(), suffix="-sweep"))


def claim(parent: Path, now: datetime, suffix: str = "") -> Path:
    """Create and return `parent/<date>/<time><suffix>`, with -2, -3, ... where another launch took it this second.

    Directories that earlier launches left behind before they began are swept.
    """
    day = parent.absolute() / now.strftime("%Y-%m-%d")
    try:
        for n in range(1, 10_000):
            path = day / (now.strftime("%H-%M-%S") + suffix + (f"-{n}" if n > 1 else ""))
            try:
                path.mkdir(parents=True)
            except FileExistsError:
                continue
            hold(path)
            with suppress(OSError):
                sweep(day.parent)
            return path
    except OSError as error:
        raise UserError(f"cannot create a run directory in {day}: {error.strerror}; give outputs=DIR") from error
    raise UserError(f"10,000 runs were started in {day} this second; wait for the next one")


def find_run(reference: str, outputs: str, verb: str, *, done: bool) -> Path:
    """The run directory that `reference` means: a path, or `last` for the latest started one under `outputs`.

    `done` asks `last` for a finished run. Raises UserError where there is none.
    """
    if reference != "last":
        path = path_of(reference)
        read_manifest(path)
        return path
    folder = runs_of(outputs, verb)
    found = [(time_of(manifest["started"]), path) for path, manifest in all_runs(folder, verb, done=done)]
    if not found:
        kind = "finished " if done else ""
        raise UserError(f"no {kind}{verb} run under {folder}; start one with: roundround {verb}")
    return max(found)[1]


def runs_of(outputs: str, verb: str) -> Path:
    """The folder of a verb's runs. UserError where `outputs` names a user whose home is not known."""
    return home_expanded(outputs, "outputs") / verb


def path_of(reference: str) -> Path:
    """The folder that a reference names. UserError for none at all, or for a user whose home is not known."""
    if not reference:
        raise UserError("the name of the run is empty; give a run directory, or last")
    return home_expanded(reference, "the run").absolute()


def all_runs(folder: Path, verb: str, *, done: bool) -> list[tuple[Path, dict[str, Any]]]:
    """The runs of a verb below its folder, jobs of sweeps included; with `done` the finished ones."""
    runs = readable([*folder.glob(f"*/*/{MANIFEST}"), *folder.glob(f"*/*-sweep*/*/{MANIFEST}")])
    return [
        (path.absolute(), manifest)
        for path, manifest in runs
        if manifest["verb"] == verb and (manifest["status"] == "done" or not done)
    ]


def jobs_of_sweep(sweep: Path) -> list[tuple[Path, dict[str, Any]]]:
    """The jobs of a sweep that have begun, each with its manifest."""
    return readable(sorted(sweep.glob(f"*/{MANIFEST}")))


def readable(paths: list[Path]) -> list[tuple[Path, dict[str, Any]]]:
    """Run directories with their manifests; what is damaged or of another program is passed over."""
    found = []
    for path in paths:
        try:
            found.append((path.parent, read_manifest(path.parent)))
        except UserError:
            continue
    return found


def read_manifest(directory: Path) -> dict[str, Any]:
    """The manifest of a run directory, its shape checked; its strings are text, in which nothing is resolved.

    UserError where the directory is no run, where a lower version wrote it whose runs are not read any more, or where a
    field that is read is missing or of a wrong type.
    """
    path = directory / MANIFEST
    try:
        manifest = parse_json(read_text(path, LARGEST))
    except OSError as error:
        raise UserError(f"{directory} is not a run directory: {why_unreadable(directory, error)}") from error
    except ValueError as error:
        raise UserError(f"{path} is not valid json ({one_line(error)}); the run directory is damaged") from error
    version = too_old(manifest)
    if version is not None:
        raise UserError(
            f"{directory} was written by roundround {printable(version, 20)}, whose runs {__version__} does not read; "
            "use that version, or make the run again"
        )
    wrong = fault(manifest)
    if wrong is not None:
        raise UserError(f"{path} is not a manifest of roundround: {wrong}")
    assert isinstance(manifest, dict)
    return manifest


def why_unreadable(directory: Path, error: OSError) -> str:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        return f"its {MANIFEST} cannot be read: {error.strerror}"
    return f"it has no {MANIFEST}" if os.path.isdir(directory) else "it does not exist"


# -- a run that is opened again


def recover(directory: Path) -> None:
    """Put a run directory right after a kill: temporary files, half-deleted checkpoints, links. The lock is held.

    Raises UserError where something else lies in the place of one of its files.
    """
    check_kinds(directory)
    for folder, names in {".": FILES, "conf/softmax": FILES, "figures": FIGURES}.items():
        for path in leftovers(directory / folder, names):
            path.unlink()
    shutil.rmtree(directory / f".{EXPORTED}", ignore_errors=True)
    if (directory / "checkpoints").is_dir():
        from roundround.runs import checkpoints  # torch takes seconds to import

        checkpoints.recover(directory / "checkpoints")


def check_kinds(directory: Path) -> None:
    """Raises UserError where a file of the run is a folder, or a folder something else."""
    for name in FILES:
        path = directory / name
        if path.exists() and not path.is_file():
            raise UserError(f"{path} is not a file; move it away to resume the run")
    for name in FOLDERS:
        path = directory / name
        if path.exists() and not path.is_dir():
            raise UserError(f"{path} is not a folder; move it away to resume the run")


def refuse_links(directory: Path) -> None:
    """Raises UserError for a link that leads out of a run: a resume would write there. W&B makes some in its folder."""
    inside = directory.resolve()
    for folder, folders, files in os.walk(directory):
        for path in (Path(folder, name) for name in [*folders, *files]):
            if path.is_symlink() and not path.resolve().is_relative_to(inside):
                raise UserError(f"{path} is a link that leads out of the run; put what it leads to in its place")
        folders[:] = [name for name in folders if name != "wandb"]


# -- directories that were claimed and never begun


def hold(directory: Path) -> None:
    """Keep a new directory from being swept as long as this process lives, or until it claims another."""
    handle = locked_folder(directory)
    if handle is not None:
        while held:
            os.close(held.pop())
        held.append(handle)


def sweep(parent: Path) -> None:
    """Remove the directories under `parent` (the runs of a verb) whose process ended before it wrote a manifest.

    Only those named as `claim` names them, which hold nothing but a lock, a log of no error and what is written before
    the manifest, which have not changed for a day, and which no living process holds.
    """
    days = sorted(day for day in parent.iterdir() if DAY.fullmatch(day.name) and not day.is_symlink())
    for day in days[-DAYS_SWEPT:]:
        with suppress(OSError):  # another start is quicker, or the folder is not ours to change
            for directory in day.iterdir():
                if TIME.fullmatch(directory.name) and not directory.is_symlink():
                    remove_unbegun(directory, f"{parent.name}.log")


def remove_unbegun(directory: Path, log_name: str) -> None:
    """`sweep` of one directory."""
    if (directory / MANIFEST).exists() or time.time() - directory.stat().st_mtime < SECONDS_TO_BEGIN:
        return
    with suppress(OSError), unheld(directory) as free:
        if free and is_unbegun(directory, log_name):
            shutil.rmtree(directory)


def is_unbegun(directory: Path, log_name: str) -> bool:
    """Whether a directory, of a run or of a sweep, holds only what is written before a manifest."""
    temporary = leftovers(directory, FILES)
    return all(path in temporary or comes_before(path, log_name) for path in directory.iterdir())


def comes_before(path: Path, log_name: str) -> bool:
    """Whether a manifest is written after this: a file, copies of the user's classes, or a job of a sweep."""
    if path.is_symlink():
        return False
    if path.is_dir():
        return path.name == "variants" or (path.name.isdecimal() and is_unbegun(path, log_name))
    return path.name in BEFORE_MANIFEST or (path.name == log_name and tells_no_error(path))


def tells_no_error(log: Path) -> bool:
    """Whether a log says nothing that somebody may want to read: at most that the corpus was being tokenised."""
    return log.stat().st_size < 4096 and b"Traceback" not in log.read_bytes()


@contextmanager
def unheld(directory: Path) -> Iterator[bool]:
    """Whether no living process holds the directory; none can while this lasts."""
    handle = locked_folder(directory)
    try:
        yield handle is not None
    finally:
        if handle is not None:
            os.close(handle)


def locked_folder(directory: Path) -> int | None:
    """A handle on a folder with the system's lock on it; None where another has it, or there is no such lock."""
    if os.name != "posix":  # there nothing is swept
        return None
    import fcntl

    try:
        handle = os.open(directory, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle
