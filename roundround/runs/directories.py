"""Where runs live: claiming a new run directory, finding an old one. No torch here, so the command line starts fast."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from roundround.errors import UserError
from roundround.runs.launcher import launched_from_outside, rank
from roundround.runs.leftovers import MANIFEST, hold, sweep

SCRATCH = "roundround-rank-"


def run_directory(outputs: str, verb: str, resume: str | None) -> str:
    """Hydra's run directory: the resumed run's own, or a new one claimed under `outputs`.

    Processes other than the first leave files to the first one and get a scratch folder, which Hydra insists on. While
    they train, they learn the first one's directory.
    """
    if resume is not None:
        return str(find_run(resume, outputs, verb, done=False))
    if rank() != 0:
        return tempfile.mkdtemp(prefix=SCRATCH)
    return str(claim(Path(outputs) / verb, datetime.now()))


def remove_scratch(directory: Path) -> None:
    """Remove the directory of a process other than the first; leave any other."""
    if directory.name.startswith(SCRATCH) and directory.parent == Path(tempfile.gettempdir()):
        shutil.rmtree(directory, ignore_errors=True)


def sweep_directory(outputs: str, verb: str) -> str:
    """Hydra's sweep directory, whose folders are the jobs by number. UserError where it cannot be one for all ranks."""
    launched = launched_from_outside()
    if launched is not None and "SUBMITIT_EXECUTOR" not in os.environ:
        raise UserError(f"{launched.launcher} starts the processes of one run; leave out -m, or start a run at a time")
    return str(claim(Path(outputs) / verb, datetime.now(), suffix="-sweep"))


def claim(parent: Path, now: datetime, suffix: str = "") -> Path:
    """Create and return `parent/<date>/<time><suffix>`, with -2, -3, ... where another launch took it this second.

    Directories that earlier launches left behind before they began are swept.
    """
    day = parent.expanduser().absolute() / now.strftime("%Y-%m-%d")
    try:
        day.mkdir(parents=True, exist_ok=True)
        for n in range(1, 10_000):
            path = day / (now.strftime("%H-%M-%S") + suffix + (f"-{n}" if n > 1 else ""))
            try:
                path.mkdir()
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
        path = Path(reference).expanduser().absolute()
        read_manifest(path)
        return path
    runs = [(manifest["started"], path) for path, manifest in all_runs(Path(outputs) / verb) if fits(manifest, done)]
    if not runs:
        kind = "finished " if done else ""
        raise UserError(f"no {kind}{verb} run under {Path(outputs) / verb}; start one with: roundround {verb}")
    return max(runs, key=lambda run: datetime.fromisoformat(run[0]))[1]


def fits(manifest: dict[str, Any], done: bool) -> bool:
    return manifest["status"] == "done" or not done


def all_runs(folder: Path) -> list[tuple[Path, dict[str, Any]]]:
    """Every readable run directory of a verb, jobs of sweeps included."""
    found = []
    for manifest in [*folder.glob(f"*/*/{MANIFEST}"), *folder.glob(f"*/*-sweep*/*/{MANIFEST}")]:
        try:
            found.append((manifest.parent.absolute(), read_manifest(manifest.parent)))
        except UserError:  # a file of another program; `last` never means it
            continue
    return found


def jobs_of_sweep(sweep: Path) -> list[tuple[Path, dict[str, Any]]]:
    """The jobs of a sweep that have begun, each with its manifest."""
    return [(path.parent, read_manifest(path.parent)) for path in sorted(sweep.glob(f"*/{MANIFEST}"))]


def read_manifest(directory: Path) -> dict[str, Any]:
    """The manifest of a run directory; UserError where the directory is none."""
    path = directory / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        what = "has no run.json" if directory.is_dir() else "does not exist"
        raise UserError(f"{directory} is not a run directory: it {what}") from error
    except ValueError as error:
        raise UserError(f"{path} is not valid json ({error}); the run directory is damaged") from error
    if not isinstance(manifest, dict) or not {"verb", "status", "started", "config"} <= manifest.keys():
        raise UserError(f"{path} is not a manifest of roundround: it lacks verb, status, started or config")
    return manifest
