"""What a person or a script reads: lines on standard error, results on standard output, and the two streams.

Tested by tests/command_line/test_printing.py.
"""

from __future__ import annotations

import io
import os
import select
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from roundround.support.errors import OutputError, escaped, printable

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

WIDE = 10_000  # characters: a file or a pipe has no width to wrap at


quiet: set[str] = set()  # why this process leaves lines and tables to another one


def print_status(text: str) -> None:
    """Print one line on standard error."""
    if not quiet:
        print(printable(text), file=sys.stderr, flush=True)


def print_passing(text: str) -> None:
    """On a terminal, print what the next line overwrites; an empty text takes it away. Elsewhere print nothing."""
    if not quiet and sys.stderr.isatty():
        print(f"{text:<10}", end="\r", file=sys.stderr, flush=True)


def print_result(text: str) -> None:
    """Print one line on standard output, such as the run directory: never cut."""
    print(escaped(text), flush=True)


def print_document(text: str) -> None:
    """Print a whole document on standard output, whose writer has escaped what a terminal would obey."""
    print(text, end="", flush=True)


def print_table(*tables: RenderableType, on_output: bool = False, width: int | None = None) -> None:
    """Print tables on standard error, or on standard output, where a pipe gets them as wide as they are."""
    if quiet:
        return
    from rich.console import Console

    stream = sys.stdout if on_output else sys.stderr
    wide = on_output and not stream.isatty() and not os.environ.get("COLUMNS", "").isdigit()
    console = Console(file=stream, width=WIDE if wide else width, markup=False, emoji=False, highlight=False)
    for table in tables:
        console.print(Escaped(table))


class Escaped:
    """A table whose text cannot command the terminal: names of models, tokens and options come from anywhere."""

    def __init__(self, table: RenderableType) -> None:
        self.table = table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        from rich.segment import Segment

        for segment in console.render(self.table, options):
            text = "\n".join(map(escaped, segment.text.split("\n")))
            yield segment if segment.control else Segment(text, segment.style)


class Stream(io.FileIO):
    """Standard output or standard error as a file that may fail without taking the run with it.

    A reader that has gone, as in `| head -1`, has what it wanted. What cannot be written on standard error (`needed`
    False) is lost; standard output raises OutputError, once. Another process may have made a pipe
    that both write to one that does not block: standard output then waits for its reader.
    """

    def __init__(self, number: int, *, needed: bool) -> None:
        super().__init__(number, "w", closefd=False)
        self.needed, self.lost = needed, False

    def write(self, data: Any) -> int | None:  # type: ignore[override]
        if self.lost:
            return len(data)
        try:
            written = super().write(data)
            while written is None and self.needed:
                select.select([], [self], [])
                written = super().write(data)
            return len(data) if written is None else written
        except OSError as error:
            self.lost = True
            if self.needed and not isinstance(error, BrokenPipeError):
                raise OutputError(f"standard output cannot be written: {error.strerror}") from error
        return len(data)


def open_streams() -> None:
    """Make standard output and standard error streams of ours. A closed one is opened on nothing.

    Otherwise the next file to be opened would take its number, and get what libraries print.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
    sys.stdout, sys.stderr = text_stream(1, sys.stdout), text_stream(2, sys.stderr)


def text_stream(number: int, before: TextIO | None) -> TextIO:
    """A stream in the encoding of the one before, with escapes for what that cannot write."""
    if os.name != "posix" and isinstance(before, io.TextIOWrapper):  # the console of Windows is no file
        before.reconfigure(errors="backslashreplace")
        return before
    raw = Stream(number, needed=number == 1)
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=before.encoding if before is not None else "utf-8",
        errors="backslashreplace",
        line_buffering=number == 2 or raw.isatty(),
    )


@contextmanager
def warnings_as_lines(kind: type[Warning]) -> Iterator[None]:
    """Inside, print warnings of this kind as plain lines, each text once; others are shown as always."""
    printed = set()
    with warnings.catch_warnings():
        shown = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *place: Any, **options: Any) -> None:
            if not issubclass(category, kind):
                shown(message, category, *place, **options)
            elif str(message) not in printed:
                printed.add(str(message))
                print_status(str(message))

        warnings.showwarning = show
        warnings.simplefilter("always", kind)
        yield
