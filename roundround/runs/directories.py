"""Where runs live: claiming a new run directory, finding an old one. No torch here, so the command line starts fast."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from roundround import __version__
from roundround.distributed.launcher import job, launched_from_outside, rank, started_again
from roundround.runs.leftovers import MANIFEST, hold, refuse_links, sweep
from roundround.runs.manifest import fault, time_of, too_old
from roundround.support.errors import UserError, one_line, printable
from roundround.support.files import home_expanded, parse_json, read_text

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
