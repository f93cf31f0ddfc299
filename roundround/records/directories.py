"""Run directories: how one is claimed and found, and how its run.json is read.

Anybody may have written a run directory, so no string of its run.json is resolved or executed. This module does not
import torch, so that the command line starts fast.
Tested by tests/records/test_run.py, test_manifest.py and test_leftovers.py.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from roundround.config.recorded import nodes_in
from roundround.config.renamed import today
from roundround.distributed.launcher import job, launched_from_outside, rank, started_again
from roundround.support.console import print_status
from roundround.support.errors import UserError, one_line
from roundround.support.files import home_expanded, parse_json, read_text

ONE_RUN = "resume= continues a single run; leave out -m, and any experiment= that is a sweep"


def is_date(value: Any) -> bool:
    try:
        datetime.fromisoformat(value)
    except (ValueError, TypeError):
        return False
    return True


def time_of(started: str) -> datetime:
    """The recorded start of a run as a time. A time without a zone gets the local zone."""
    time = datetime.fromisoformat(started)
    return time if time.tzinfo is not None else time.replace(tzinfo=datetime.now().astimezone().tzinfo)


MANIFEST, LOCK, METRICS, RESULTS, PAGE = "run.json", ".lock", "metrics.jsonl", "results.json", "report.html"
# files that are written atomically
FILES = (
    *(MANIFEST, METRICS, RESULTS, PAGE, "code.patch", "tokenizer.json", "table.md", "fitted.yaml"),
    *("metrics.csv", "results.csv"),
)
FIGURES = ("*.svg", "*.pdf", "*.png")  # also written atomically, in the folder figures
SCRATCH = "roundround-rank-"
NEEDED = {"verb", "status", "started", "roundround", "overrides", "config", "facts", "headline"}  # keys of a manifest


def has_words(manifest: Mapping[str, Any], verb: str, overrides: Sequence[str]) -> bool:
    """Whether the run was made by this verb with these overrides, in any order."""
    return manifest["verb"] == verb and sorted(manifest["overrides"]) == sorted(overrides)


def run_directory(outputs: str, verb: str, resume: str | None, overrides: Sequence[str] = ()) -> str:
    """Hydra's run directory: the directory of the resumed run, or a new directory claimed under `outputs`.

    A job that Slurm or torchrun starts again, with the same overrides, gets its old directory. Only the first process
    writes files. The other processes get a scratch folder here, because Hydra needs one; if they train, they later get
    the directory of the first process.
    """
    if resume is not None:
        directory = find_run(resume, outputs, verb, done=False)
        found = read_manifest(directory)["verb"]
        if found != verb:  # refused before Hydra writes its log there
            raise UserError(f"{directory} is a run of {found}; give the directory of a run of {verb}")
        refuse_links(directory)
        return str(directory)
    if started_again():
        runs = all_runs(runs_of(outputs, verb), verb)
        own = [run for run in runs if run[1].get("job") == job() and has_words(run[1], verb, overrides)]
        if own:  # else the job was stopped before it made its run
            return str(max((time_of(manifest["started"]), path) for path, manifest in own)[1])
    if rank() != 0:
        return tempfile.mkdtemp(prefix=SCRATCH)
    return str(claim(runs_of(outputs, verb), datetime.now()))


def remove_scratch(directory: Path) -> None:
    """Remove the directory if it is the scratch folder of a process other than the first."""
    if directory.name.startswith(SCRATCH) and directory.parent == Path(tempfile.gettempdir()):
        shutil.rmtree(directory, ignore_errors=True)


def sweep_directory(outputs: str, verb: str) -> str:
    """Hydra's sweep directory, in which each job has a folder with its number.

    Raises UserError if a launcher started this process.
    """
    launched = launched_from_outside()
    if launched is not None and "SUBMITIT_EXECUTOR" not in os.environ:
        raise UserError(
            f"{launched.launcher} starts the processes of one run, but -m asks for several runs; leave out -m, or "
            "start one run at a time"
        )
    return str(claim(runs_of(outputs, verb), datetime.now(), suffix="-sweep"))


def claim(parent: Path, now: datetime, suffix: str = "") -> Path:
    """Create and return `parent/<date>/<time><suffix>`; if the name is taken, -2, -3, ... is added."""
    day, n = parent.absolute() / now.strftime("%Y-%m-%d"), 1
    while True:
        path = day / (now.strftime("%H-%M-%S") + suffix + (f"-{n}" if n > 1 else ""))
        try:
            path.mkdir(parents=True)
            return path
        except FileExistsError:
            n += 1
        except OSError as error:
            raise UserError(f"cannot create a run directory in {day}: {error.strerror}; give outputs=DIR") from error


def find_run(reference: str, outputs: str, verb: str, *, done: bool, sweep: Path | None = None) -> Path:
    """The run directory that `reference` means: a path, or `last` for the run under `outputs` that started last.

    last~N means the Nth run before the last. done: True to choose among finished runs; False to choose among runs that
    can be resumed, which leaves out runs that measured another run. sweep: the sweep that asks for the run; its own
    jobs are left out. If a newer run is left out because it is not finished, this run is named in a printed line.
    Raises UserError if no run is found.
    """
    named = re.fullmatch(r"last(?:~(\d{1,9}))?", reference)
    if named is None or (os.path.lexists(reference) and reference != "last"):
        path = home_expanded(reference, "the run").absolute()
        read_manifest(path)
        return path
    folder = runs_of(outputs, verb)
    others = ((path, run) for path, run in all_runs(folder, verb) if path.parent != sweep)
    runs = sorted((time_of(run["started"]), path, run["status"]) for path, run in others if done or not run.get("run"))
    found = [run for run in runs if run[2] == "done" or not done]
    kind, before = "finished " if done else "", int(named[1] or 0)
    if before >= len(found):
        raise UserError(
            f"there is no {kind}{verb} run {reference} under {folder} (number of such runs: {len(found)}); start one "
            f"with: roundround {verb}"
        )
    taken = found[-1 - before]
    newer = [run for run in runs if run > taken and run not in found]
    if newer:
        print_status(
            f"{reference} means {taken[1]}, because {newer[-1][1]}, which is newer, is not finished ({newer[-1][2]})"
        )
    return taken[1]


def runs_of(outputs: str, verb: str) -> Path:
    """The folder of a verb's runs. Raises UserError if `outputs` is an internet address instead of a folder."""
    return home_expanded(outputs, "outputs") / verb


def all_runs(folder: Path, verb: str) -> list[tuple[Path, dict[str, Any]]]:
    """The runs of a verb below its folder, jobs of sweeps included."""
    runs = readable([*folder.glob(f"*/*/{MANIFEST}"), *folder.glob(f"*/*-sweep*/*/{MANIFEST}")])
    return [(path.absolute(), manifest) for path, manifest in runs if manifest["verb"] == verb]


def jobs_of_sweep(sweep: Path) -> list[tuple[Path, dict[str, Any]]]:
    """The jobs of a sweep that have started, each with its manifest."""
    return readable(sorted(sweep.glob(f"*/{MANIFEST}")))


def readable(paths: list[Path]) -> list[tuple[Path, dict[str, Any]]]:
    """The run directories of these manifests, each with its manifest; manifests that cannot be read are left out."""
    found = []
    for path in paths:
        try:
            found.append((path.parent, read_manifest(path.parent)))
        except UserError:
            continue
    return found


def read_manifest(directory: Path) -> dict[str, Any]:
    """The manifest of a run directory, with interpolations unresolved. Raises UserError if the directory has no run."""
    path = directory / MANIFEST
    try:
        manifest: Any = parse_json(read_text(path))
    except FileNotFoundError as error:
        why = f"it has no {MANIFEST}" if directory.is_dir() else "it does not exist"
        raise UserError(f"{directory} is not a run directory: {why}") from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else one_line(error)
        raise UserError(f"{directory} is not a run directory: its {MANIFEST} cannot be read: {reason}") from error
    if not isinstance(manifest, dict) or not manifest.keys() >= NEEDED:
        raise UserError(
            f"{path} is not a manifest of roundround: it lacks at least one of the keys {', '.join(sorted(NEEDED))}"
        )
    for _, node in nodes_in(manifest["config"]):
        if isinstance(node.get("_target_"), str):
            node["_target_"] = today(node["_target_"])
    return manifest


def refuse_links(directory: Path) -> None:
    """Raises UserError if a link leads out of the run directory: a resumed run would write to the link's target.

    Links in the folder of W&B are allowed.
    """
    inside = directory.resolve()
    for folder, folders, files in os.walk(directory):
        for path in (Path(folder, name) for name in [*folders, *files]):
            if path.is_symlink() and not path.resolve().is_relative_to(inside):
                raise UserError(
                    f"{path} is a link to something outside the run directory; replace the link by a copy of what it "
                    "points to"
                )
        folders[:] = [name for name in folders if name != "wandb"]
