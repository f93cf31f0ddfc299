"""What is wrong before a task starts is one line and exit code 2, whoever raises it, and nothing is left."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
from conftest import ROOT, Done, assert_refused

from roundround.command_line import launch
from roundround.command_line.launch import about_path


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (["pe=\x1b[31mx"], ["no pe=\\x1b[31mx"]),
        (["pe=mine"], ["no pe=mine; one of your own needs --config-dir FOLDER (choices: alibi"]),
        (["seed=${oc.env:NOPE}"], ["NOPE"]),
        (["hydra.run.dir=/dev/null/x"], ["/dev/null/x"]),
        (["outputs="], ["outputs= is empty"]),
        (["resume="], ["resume= is empty"]),
    ],
    ids=lambda value: value[-1][:30] if isinstance(value, list) else None,
)
def test_a_wrong_start_is_one_line(train: Callable[..., Done], args: list[str], parts: list[str]) -> None:
    done = train(*args)
    assert_refused(done, *parts)
    assert len(done.err.splitlines()) == 1
    assert list(Path("outputs").glob("*/*/*")) == []


@pytest.mark.parametrize("address", ["http:/u:hush@h", "S3://u:hush%40h"])
@pytest.mark.parametrize("key", ["outputs=", "data.path=", "--config-dir=", ""])
def test_a_password_in_an_address_is_neither_shown_nor_recorded(
    train: Callable[..., Done], key: str, address: str
) -> None:
    done = train(f"{key}'{address}'" if key else address)
    assert_refused(done, f"{key.rstrip('=') or 'an argument'}: an address of ", ":// with credentials")
    assert "hush" not in done.err
    assert list(Path().glob("*u:hu*")) == []


def test_a_fault_of_ours_is_not_the_users(train: Callable[..., Done], monkeypatch: pytest.MonkeyPatch) -> None:

    monkeypatch.setattr(launch, "read_command_line", Mock(side_effect=KeyError("ours")))
    done = train()
    assert (done.code, len(done.err.splitlines())) == (1, 1)
    assert "failed: KeyError: 'ours' (HYDRA_FULL_ERROR=1 shows the traceback)" in done.err


def test_the_module_imports_nothing_from_the_folder_it_stands_in(tmp_path: Path) -> None:
    for name in ("yaml", "signal"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('of the folder')\n")
    command = [sys.executable, "-m", "roundround", "list", "gate"]
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_path_that_cannot_be_is_the_users_to_mend() -> None:
    for number in (errno.ENAMETOOLONG, errno.EACCES, errno.EROFS, errno.ELOOP):
        assert str(about_path(OSError(number, "no", "x" * 9), Path("run"))) == "x" * 9 + ": no"
    assert about_path(OSError(errno.EIO, "no", "x"), Path("run")) is None
    full = about_path(OSError(errno.ENOSPC, "no"), Path("run"))
    assert full is not None
    assert full.startswith("no space left on the disk of run;")


# -- habits


def test_a_wrong_verb_is_one_line(roundround: Callable[..., Done]) -> None:
    done = roundround("trian")
    assert (done.code, done.out, done.err.count("\n"), "'train'" in done.err) == (2, "", 1, True)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("lr=1", "optim.lr"),
        ("steps=5", "trainer.max_steps"),
        ("max_step=5", "trainer.max_steps"),
        ("theta=1", "pe.theta"),
    ],
)
def test_a_short_key_finds_the_nested_one(train: Callable[..., Done], typed: str, meant: str) -> None:
    assert_refused(train(typed), f"no config key '{typed.partition('=')[0]}'; did you mean '{meant}'?")
