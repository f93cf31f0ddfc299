"""What a person or a script reads: lines on standard error, results on standard output, and the two streams.

Tested by tests/command_line/test_printing.py.
"""

from __future__ import annotations

import io
import os
import re
import select
import shutil
import sys
import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TextIO

from roundround.support.errors import OutputError, escaped, printable

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment
    from rich.table import Column, Table

WIDE = 10_000  # characters: a file or a pipe has no width to wrap at
UNBROKEN = 30  # characters of a cell that stays on one line: a number with its interval has fewer
NARROWEST = 20  # characters of a column whose cells are longer
# a verb and the words behind it, up to one that is prose: in small letters, or behind a sign that ends a clause
COMMAND = re.compile(r"roundround [a-z-]+((?<![.,;:]) (-\S+ |(?=\S*([^a-z\s.,;:]|\.\w)))('[^']*'|[^\s'])+)*")


quiet: set[str] = set()  # why this process leaves lines and tables to another one


def print_status(text: str) -> None:
    """Print one line on standard error; a terminal gets it in lines that end between words."""
    if not quiet:
        print(in_lines(printable(text), sys.stderr), file=sys.stderr, flush=True)


def in_lines(text: str, stream: TextIO) -> str:
    """A text broken between words where a terminal would break it anywhere."""
    if not stream.isatty():
        return text
    width = shutil.get_terminal_size().columns
    return "\n".join(wrapped(text, width)) if len(text) > width else text


def wrapped(text: str, width: int, indent: str = "") -> list[str]:
    """A text in lines that end between words. A command stays whole: it is copied."""
    unbroken = COMMAND.sub(lambda found: found.group().replace(" ", "\0"), text)
    lines = textwrap.wrap(unbroken, width - len(indent), break_long_words=False, break_on_hyphens=False)
    return [indent + line.replace("\0", " ") for line in lines]


def print_passing(text: str) -> None:
    """On a terminal, print what the next line overwrites; an empty text takes it away. Elsewhere print nothing."""
    if not quiet and sys.stderr.isatty():
        print(f"{text:<10}", end="\r", file=sys.stderr, flush=True)


def print_result(text: str) -> None:
    """Print one line on standard output, such as the run directory: never cut."""
    print(escaped(text), flush=True)


def print_paragraph(text: str) -> None:
    """Print sentences on standard output, as one line or as a terminal has room."""
    print(in_lines(escaped(text), sys.stdout), flush=True)


def print_document(text: str) -> None:
    """Print a whole document on standard output, whose writer has escaped what a terminal would obey."""
    print(text, end="", flush=True)


def print_table(
    *tables: RenderableType, on_output: bool = False, first_to_leave: Sequence[str] = (), see: str = ""
) -> None:
    """Print tables on standard error, or on standard output; a pipe or a file gets them as wide as they are.

    What has no room leaves by `fitted`; a line below names it, and `see`, such as format=markdown, which shows all.
    """
    if quiet:
        return
    from rich.console import Console
    from rich.table import Table

    stream = sys.stdout if on_output else sys.stderr
    wide = not stream.isatty() and not os.environ.get("COLUMNS", "").isdigit()
    console = Console(file=stream, width=WIDE if wide else None, markup=False, emoji=False, highlight=False)
    room, missing = console.width, dict[str, None]()
    for table in tables:
        if not isinstance(table, Table):
            console.print(Escaped(table), width=room)
            continue
        console.width = WIDE  # what is too wide is the terminal's to wrap
        parts, left_out = fitted(table, room, first_to_leave)
        for part in parts:
            console.print(Escaped(part))
        missing |= dict.fromkeys(left_out)
    if missing:
        shows = f"a wider terminal{f' or {see}' * bool(see)} shows them"
        print(in_lines(f"not shown for lack of room: {', '.join(missing)}; {shows}", stream), file=stream)


def fitted(table: Table, room: int, first_to_leave: Sequence[str]) -> tuple[list[Table], list[str]]:
    """A table as parts that a terminal has room for, and the columns left out.

    No cell of up to UNBROKEN characters is broken, and longer ones at spaces alone. Columns leave in the order of
    `first_to_leave`, but one that still has room stays; if the others are too wide, they stand below each other, each
    time behind the first column.
    One that alone is too wide stays whole: the terminal wraps it, and it can still be copied.
    """
    ends = {column._index: widths_of(column) for column in table.columns}

    def is_too_wide(columns: Sequence[Column]) -> bool:
        return least_width(table, columns, ends) > room

    left_out = [name for name in first_to_leave if any(column.header == name for column in table.columns)]
    columns = [column for column in table.columns if column.header not in left_out]
    for name in reversed(left_out.copy()):
        more = [column for column in table.columns if column.header == name or any(column is one for one in columns)]
        if not is_too_wide(more):
            columns = more
            left_out.remove(name)
    first, *others = columns
    parts: list[list[Column]] = [[first]]
    for column in others:
        if len(parts[-1]) > 1 and is_too_wide([*parts[-1], column]):
            parts.append([first])
        parts[-1].append(column)
    found = [part_of(table, part, ends, room - least_width(table, part, ends)) for part in parts]
    for n, part in enumerate(found):
        part.title = None if n else table.title
        part.caption = table.caption if n == len(found) - 1 else None
    return found, [str(column.header) for column in table.columns if column.header in left_out]


Widths = Mapping[int, tuple[int, int]]  # by column, the least and the largest that it needs


def part_of(table: Table, columns: Sequence[Column], ends: Widths, spare: int) -> Table:
    """The table with these columns alone; those that may be broken share the spare characters."""
    part, own = copy(table), [ends[column._index] for column in columns]
    share = min(1.0, max(0, spare) / max(1, sum(most - least for least, most in own)))
    part.columns = [
        replace(column, _index=n, width=least + int(share * (most - least)), overflow="fold")
        for n, (column, (least, most)) in enumerate(zip(columns, own, strict=True))
    ]
    return part


def least_width(table: Table, columns: Sequence[Column], ends: Widths) -> int:
    """The characters that a table of these columns needs."""
    from rich.console import Console

    return Console(width=WIDE).measure(part_of(table, columns, ends, 0)).maximum


def widths_of(column: Column) -> tuple[int, int]:
    """The least and the largest width that a column needs: whole cells, or whole words of longer ones."""
    from rich.cells import cell_len

    head, *cells = [str(cell).split("\n") for cell in (column.header, *column._cells)]
    head, lines = list(map(escaped, head)), [escaped(line) for cell in cells for line in cell]
    words = [word for line in [*head, *lines] for word in line.split()]
    most = max(map(cell_len, [*head, *lines]), default=0)
    if column.no_wrap:
        return most, most
    whole = [width if (width := cell_len(line)) <= UNBROKEN else NARROWEST for line in lines]
    return max([*whole, *map(cell_len, words)], default=0), most


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
