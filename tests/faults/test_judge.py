"""The judge of the cases can fail: each of its rules, on an answer that breaks it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from case import SECRET, Case, about_the_files, about_the_text, snapshot
from forkserver import Ended

OURS = "roundround train: seed=-1 must lie between 0 and 2^32 - 1\n"
ENTRY = "cache/" + "0" * 32


@pytest.mark.parametrize(
    ("code", "err"),
    [
        (0, "a warning of some library\n"),
        (1, OURS + OURS),
        (1, ""),
        (2, "Error executing job with overrides: []\n" + OURS),
        (2, OURS + "Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.\n"),
        (2, "x" * 800 + "\n"),
        (2, "Traceback (most recent call last):\n"),
        (2, "\x1b[31mno\n"),
        (2, f"no {SECRET}\n"),
    ],
)
def test_a_wrong_answer_falls_short_in_a_sweep_and_alone(code: int, err: str) -> None:
    for args in ((), ("-m",)):
        assert about_the_text(Case(name="kind: what", args=args, codes=(0, 1, 2)), Ended(code, "", err, False)) != []


def test_a_note_has_to_come_and_to_say_what_it_should() -> None:
    case = Case(name="kind: what", codes=(0,), notes=["^damaged"])
    answers = {err: about_the_text(case, Ended(0, "", err, False)) for err in ("", "damaged\n", "other\n")}
    assert [err for err, found in answers.items() if not found] == ["damaged\n"]


@pytest.mark.parametrize(
    ("change", "code", "right"),
    [
        (lambda folder: None, 2, True),
        (lambda folder: (folder / "run.json").write_text("other"), 2, False),
        (lambda folder: (folder / "run.json").chmod(0o600), 2, False),
        (lambda folder: (folder / "run.json").unlink(), 2, False),
        (lambda folder: (folder / "new").touch(), 2, False),
        (lambda folder: (folder / "new").touch(), 0, True),
        (lambda folder: (folder / "train.log").write_text("as it was\nrefused\n"), 2, True),
        (lambda folder: (folder / "train.log").write_text("other"), 2, False),
        (lambda folder: (folder / ENTRY).mkdir(), 2, True),
        (lambda folder: (folder / f"{ENTRY}.lock").touch(), 2, True),
        (lambda folder: (folder / f"{ENTRY}.tmp").touch(), 0, False),
        (lambda folder: (folder / "cache" / "EXECUTED").touch(), 0, False),
        (lambda folder: (folder / "new").write_text(f"key-{SECRET}-0"), 0, False),
    ],
)
def test_what_is_left_or_changed_is_seen(
    change: Callable[[Path], object], code: int, right: bool, tmp_path: Path
) -> None:
    (tmp_path / "cache").mkdir()
    for name in ("run.json", "train.log"):
        (tmp_path / name).write_text("as it was\n")
    before = snapshot(tmp_path)
    change(tmp_path)
    assert (about_the_files(tmp_path, before, code, leaves=False, secret=True) == []) == right
