"""Where runs live: claiming a directory, finding one, putting right what killed processes left in it.

No torch here, so the command line starts fast. Tested by tests/runs/test_run.py and tests/runs/test_leftovers.py.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from roundround import __version__
from roundround.distributed.launcher import job, launched_from_outside, rank, started_again
from roundround.runs.manifest import fault, time_of, too_old
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
    if started_again():
        runs = all_runs(runs_of(outputs, verb), verb, done=False)
        own = [run for run in runs if run[1].get("job") == job() and sorted(run[1]["overrides"]) == sorted(overrides)]
        if own:  # else it had not begun
            return str(max((time_of(manifest["started"]), path) for path, manifest in own)[1])
    if rank() != 0:
        return tempfile.mkdtemp(prefix=SCRATCH)
    return str(claim(runs_of(outputs, verb), datetime.now()))


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
    """Create and return `parent/<date>/<time><suffix>`, with -2, -3, ... where another launch took it this second."""
    day = parent.absolute() / now.strftime("%Y-%m-%d")
    try:
        for n in range(1, 10_000):
            path = day / (now.strftime("%H-%M-%S") + suffix + (f"-{n}" if n > 1 else ""))
            try:
                path.mkdir(parents=True)
            except FileExistsError:
                continue
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
        why = f"it has no {MANIFEST}" if os.path.isdir(directory) else "it does not exist"
        if not isinstance(error, FileNotFoundError | NotADirectoryError):
            why = f"its {MANIFEST} cannot be read: {error.strerror}"
        raise UserError(f"{directory} is not a run directory: {why}") from error
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


# -- a run that is opened again


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
        from roundround.runs import checkpoints  # torch takes seconds to import

        checkpoints.recover(directory / "checkpoints")


def refuse_links(directory: Path) -> None:
    """Raises UserError for a link that leads out of a run: a resume would write there. W&B makes some in its folder."""
    inside = directory.resolve()
    for folder, folders, files in os.walk(directory):
        for path in (Path(folder, name) for name in [*folders, *files]):
            if path.is_symlink() and not path.resolve().is_relative_to(inside):
                raise UserError(f"{path} is a link that leads out of the run; put what it leads to in its place")
        folders[:] = [name for name in folders if name != "wandb"]
