"""`roundround sync PATH...`: upload runs that were logged offline to Weights & Biases."""

from __future__ import annotations

from pathlib import Path

from roundround.analysis.choosing import directories_of_all, filters_of, runs_in
from roundround.analysis.past_run import PastRun
from roundround.runs.loggers.wandb import has_login
from roundround.runs.loggers.wandb_sync import is_synced, offline_files, upload
from roundround.support.console import print_result, print_status
from roundround.support.errors import Failed, UserError, nearest


def sync(names: list[str], values: dict[str, str]) -> None:
    """Upload what is not uploaded yet of the runs that are named. UserError without a login, or without such a run."""
    for key in values:
        if key != "outputs":
            raise UserError(f"no key {key}{nearest(key, ['outputs'])}")
    if not names:
        raise UserError("give runs: a run directory, a sweep, a folder of runs such as outputs, or last")
    damaged: list[tuple[str, str]] = []
    directories = directories_of_all(names, values.get("outputs", "outputs"))
    runs = list(runs_in(directories, filters_of({}), damaged))
    for _, why in damaged:
        print_status(f"passed over: {why}")
    missing = {run.directory: files for run in runs if (files := to_upload(run))}
    if not missing:
        if not any(offline_files(run.directory) for run in runs):
            raise UserError(f"{' '.join(names)}: no run was logged offline; logger=wandb does that without a login")
        return
    if not has_login():
        raise UserError(
            f"{len(missing)} run{'s' if len(missing) > 1 else ''} to upload, and no login to Weights & Biases: "
            "type `wandb login`, or set WANDB_API_KEY"
        )
    upload([file for files in missing.values() for file in files])
    tell(missing)


def to_upload(run: PastRun) -> list[Path]:
    """The files of a run that are not uploaded; a line about a run that has none, or that is not at its end."""
    files = offline_files(run.directory)
    waiting = [file for file in files if not is_synced(file)]
    if not files:
        online = (run.manifest["wandb"] or {}).get("mode") == "online"
        print_status(f"{run.directory}: {'was logged online' if online else 'has no files of Weights & Biases'}")
    elif not waiting:
        print_status(f"{run.directory}: already synced")
    elif run.status == "running":
        print_status(f"{run.directory}: is still running; sync it when it has ended")
        return []
    return waiting


def tell(missing: dict[Path, list[Path]]) -> None:
    """A line for each run that is uploaded. Failed where one is not."""
    failed = [directory for directory, files in missing.items() if not all(map(is_synced, files))]
    for directory in missing:
        if directory not in failed:
            print_result(f"{directory}: synced")
    if failed:
        raise Failed(f"{len(failed)} of {len(missing)} not uploaded, see above: {', '.join(map(str, failed))}")
