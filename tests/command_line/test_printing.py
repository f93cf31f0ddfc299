"""What reaches a terminal, a pipe or a full device."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.table import Table

from roundround.cli import run
from roundround.support.console import Stream, print_status, print_table
from roundround.support.errors import printable


def test_what_a_terminal_would_obey_is_escaped() -> None:
    assert printable("\x1b[31mred\x07") == "\\x1b[31mred\\x07"
    assert printable("a\u202ecod.exe\u2066") == "a\\u202ecod.exe\\u2066"
    assert printable("\udcff") == "\\udcff"


def test_a_line_and_a_table_carry_names_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("the name of a token", title="model \x1b[2J[/red]")
    table.add_row("token \u202e")
    print_table(table)
    print_status("choices: \x1b[2J")
    told = capsys.readouterr().err
    assert "\x1b" not in told
    assert "model \\x1b[2J[/red]" in told
    assert "token \\u202e" in told
    assert "choices: \\x1b[2J" in told


# -- tables on narrow terminals


def table_of_runs() -> Table:
    """Paths, words and numbers of every length that tables have."""
    table = Table("run", "given", "perplexity", "difference", "memory", title="a sweep")
    for n in range(12):
        given = " ".join(f"model.key_{k}={10**k}" for k in range(n))
        run, value = f"outputs/train/2026-11-22/21-52-{n:02}-sweep/{n}", f"{10 ** (n % 7)}.1234"
        table.add_row(run, given, value, "-1.5 to +2.25", f"{n}24.1 MiB")
    return table


@pytest.mark.parametrize("width", [40, 100, 200])
def test_a_narrow_terminal_gets_whole_names_and_numbers(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No number and no path is broken; sentences are, and columns leave in their order."""
    monkeypatch.setenv("COLUMNS", str(width))
    table = table_of_runs()
    print_table(table, first_to_leave=["memory", "difference"], see="format=markdown")
    shown = capsys.readouterr().err
    left_out = [] if width == 200 else ["memory", "difference"]
    for column in table.columns:
        for cell in map(str, column.cells if column.header not in left_out else []):
            for text in [cell] if len(cell) <= 30 else cell.split():
                assert text in shown, text
    in_order = [str(column.header) for column in table.columns if column.header in left_out]
    line = f"not shown for lack of room: {', '.join(in_order)}; a wider terminal or format=markdown shows them\n"
    assert shown.endswith(line) if left_out else "not shown" not in shown
    assert width < 100 or max(map(len, shown.removesuffix(line).splitlines())) <= width


COMMANDS = [
    "roundround train resume=/home/somebody/work/outputs/train/2026-11-28/03-38-29",
    "roundround eval run='outputs of mine/2026-11-28/03-38-29-sweep' length=128,256,512 'prompt=one; two. Three'",
    "roundround max-retrieval -m seed=1,2,3 --config-dir mine hydra.sweep.dir=/home/somebody/work/outputs/again",
]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("text", ["resume with: {}", "it was stopped after many steps: {}; it goes on at once {}."])
def test_a_terminal_breaks_no_command(
    command: str, text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pasted, the first half of `train resume=...` would start a new training."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    print_status(text.format(command, "and no step is done twice"))
    assert command in capsys.readouterr().err


# -- streams that fail


@pytest.mark.parametrize("needed", [True, False])
def test_a_reader_that_has_gone_is_no_error(needed: bool) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    assert Stream(writing, needed=needed).write(b"abc") == 3


@contextmanager
def standard_output(number: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    stream = io.TextIOWrapper(io.BufferedWriter(Stream(number, needed=True)), encoding="utf-8")
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", stream)
        yield


def test_a_run_on_a_full_standard_output_is_done_and_found(
    here: Path, fast: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with standard_output(os.open("/dev/full", os.O_WRONLY), monkeypatch):
        assert run(["train", *fast, "trainer.max_steps=1"]) == 1
    directory = next(Path("outputs/train").glob("*/*"))
    assert '"status": "done"' in (directory / "run.json").read_text()
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("roundround train: standard output cannot be written: No space left on device; see ")
    assert last.endswith(str(directory))


def test_a_finished_run_whose_reader_has_gone_exits_with_0(
    here: Path, fast: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with standard_output(writing, monkeypatch):
        assert run(["train", *fast, "trainer.max_steps=1"]) == 0
    assert "roundround train" not in capsys.readouterr().err


def in_a_shell(line: str) -> tuple[int, str]:
    """Exit code and standard error of a line of bash in which $rr is roundround."""
    done = subprocess.run(
        ["bash", "-c", line],
        env=os.environ | {"rr": f"{sys.executable} -m roundround"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stderr


def test_pages_say_that_standard_output_is_full() -> None:
    code, told = in_a_shell("$rr --help > /dev/full")
    assert (code, told) == (1, "roundround: standard output cannot be written: No space left on device\n")


@pytest.mark.parametrize("line", ["$rr --help | head -c 1; exit ${PIPESTATUS[0]}", "$rr --help <&- >&- 2>&-"])
def test_a_page_that_nobody_reads_is_no_error(line: str) -> None:
    assert in_a_shell(line) == (0, "")
