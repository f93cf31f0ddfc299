"""Uploading offline runs of Weights & Biases later, by `wandb sync`. Nothing of W&B is imported here."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from roundround.runs.child import surroundings

WANDB_SYNC = (sys.executable, "-m", "wandb", "sync")


def offline_files(directory: Path) -> list[Path]:
    """The files in a run directory that W&B wrote without a connection, one for each time that the run was started."""
    return sorted((directory / "wandb").glob("offline-run-*/run-*.wandb"))


def is_synced(file: Path) -> bool:
    """Whether W&B has uploaded a file: it leaves a mark beside it."""
    return file.with_suffix(".wandb.synced").exists()


def upload(files: Sequence[Path]) -> None:
    """Let W&B upload them, those of one run in their order. It tells on standard error what it does and what fails."""
    environment = {name: value for name, value in surroundings().items() if name != "WANDB_MODE"}  # perhaps offline
    folders = [str(file.parent) for file in files]
    subprocess.run([*WANDB_SYNC, *folders], env=environment, stdout=2, check=False)
