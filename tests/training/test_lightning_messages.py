"""What is installed on a machine neither stops a training run nor prints anything in it."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Done
from lightning.fabric.utilities.warnings import PossibleUserWarning

from roundround.training.lightning_messages import lightning_messages_in_log


def said(done: Done) -> str:
    """All that a run printed, and all that it logged."""
    assert done.code == 0, done.err
    return done.out + done.err + (done.directory / "train.log").read_text()


def test_slurm_on_the_path_changes_nothing(
    train: Callable[..., Done], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    srun = tmp_path / "bin" / "srun"
    srun.parent.mkdir()
    srun.write_text("#!/bin/sh\nexit 1\n")
    srun.chmod(0o755)
    monkeypatch.setenv("PATH", str(srun.parent), prepend=":")
    assert "`srun`" not in said(train())


def test_many_cores_ask_for_no_more_workers(train: Callable[..., Done], monkeypatch: pytest.MonkeyPatch) -> None:
    connector = "lightning.pytorch.trainer.connectors.data_connector"
    monkeypatch.setattr(f"{connector}.suggested_max_num_workers", lambda n_devices: 64)
    assert "workers" not in said(train())


def test_a_gpu_that_the_run_leaves_alone_is_no_warning(
    train: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Installed:
        @staticmethod
        def is_available() -> bool:
            return True

    monkeypatch.setattr("lightning.pytorch.trainer.setup.MPSAccelerator", Installed)
    log = said(train("trainer.accelerator=cpu"))
    assert "GPU available: True (mps), used: False" in log  # a fact, which stays
    assert "not used" not in log


def test_a_run_is_not_told_to_install_anything(train: Callable[..., Done]) -> None:
    log = said(train())
    assert "Trainer.fit` stopped" in log  # what Lightning has to say of the run stays
    assert "install" not in log


def test_other_warnings_stay(caplog: pytest.LogCaptureFixture) -> None:
    with lightning_messages_in_log():
        with pytest.warns(PossibleUserWarning, match="does not fit"):
            warnings.warn("the batch size does not fit", PossibleUserWarning, stacklevel=1)
        with caplog.at_level(logging.INFO):
            logging.getLogger("lightning.pytorch.utilities.rank_zero").info("the precision is 16")
    assert "the precision is 16" in caplog.text
