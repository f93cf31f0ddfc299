"""Output for people and scripts: status lines on standard error, results on standard output.

`Stream` replaces these two streams, so that an error in writing does not stop a run.

Tested by tests/command_line/test_printing.py.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import sys
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from typing import TYPE_CHECKING, Any, TextIO

from roundround.support.errors import OutputError, escaped, printable

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

WIDE = 10_000  # characters: the width used for a file or a pipe, which has none of its own
UNBROKEN = 30  # a cell of at most this many characters stays on one line; a number with its interval has fewer
NARROWEST = 20  # characters: the least width of a column of sentences
# a verb and the words after it, up to the first word of prose: one in small letters, or one after the end of a clause
COMMAND = re.compile(r"roundround [a-z-]+((?<![.,;:]) (-\S+ |(?=\S*([^a-z\s.,;:]|\.\w)))('[^']*'|[^\s'])+)*")


quiet: set[str] = set()  # if not empty, this process prints no lines or tables; the entries are the reasons


def print_status(text: str) -> None:
    """Print one line on standard error; on a terminal it is wrapped between words."""
    if not quiet:
        print(in_lines(printable(text), sys.stderr), file=sys.stderr, flush=True)


def in_lines(text: str, stream: TextIO) -> str:
    """The text; for a terminal it is wrapped between words, because a terminal itself breaks lines inside words."""
    if not stream.isatty():
        return text
    width = shutil.get_terminal_size().columns
    return "\n".join(wrapped(text, width)) if len(text) > width else text


def wrapped(text: str, width: int, indent: str = "") -> list[str]:
    """The lines of a text wrapped between words. A command is not broken, because people copy it."""
    unbroken = COMMAND.sub(lambda found: found.group().replace(" ", "\0"), text)
    lines = textwrap.wrap(unbroken, width - len(indent), break_long_words=False, break_on_hyphens=False)
    return [indent + line.replace("\0", " ") for line in lines]


def print_result(text: str) -> None:
    """Print one line on standard output, such as the run directory. It is never shortened."""
    print(escaped(text), flush=True)


def print_paragraph(text: str) -> None:
    """Print sentences on standard output, as one line; on a terminal they are wrapped between words."""
    print(in_lines(escaped(text), sys.stdout), flush=True)


def print_document(text: str) -> None:
    """Print a whole document on standard output. The caller has escaped its control characters."""
    print(text, end="", flush=True)


def print_table(
    *tables: Table | str, on_output: bool = False, first_to_leave: Sequence[str] = (), see: str = ""
) -> None:
    """Print tables on standard error or standard output. In a pipe or a file they have their full width.

    On a narrow terminal columns are left out, in the order of `first_to_leave`, until the remaining columns fit. A line
    below the tables names the missing columns and recommends `see`.

    see: a setting that shows all columns, such as format=markdown; "" if there is none.
    """
    if quiet:
        return
    from rich import box
    from rich.console import Console

    stream = sys.stdout if on_output else sys.stderr
    wide = not stream.isatty() and not os.environ.get("COLUMNS", "").isdigit()
    room = WIDE if wide else Console(file=stream).width
    console = Console(file=stream, width=WIDE, markup=False, emoji=False, highlight=False)
    missing: dict[str, None] = {}
    for table in tables:
        if isinstance(table, str):
            console.print(escaped(table), width=room)
            continue
        if table.box is box.HEAVY_HEAD:  # rich's own choice
            table.box, table.pad_edge = box.SIMPLE_HEAD, False
            table.title_justify = table.caption_justify = "left"
        names = [str(column.header) for column in table.columns]
        leave = [name for name in first_to_leave if name in names]
        kept = [[name for name in names if name not in leave[:n]] for n in range(len(leave) + 1)]
        shown = next((names for names in kept if least(part_of(table, names)) <= room), kept[-1])
        for part in parts_of(table, shown, room):
            console.print(part, width=max(room, least(part)))  # the terminal wraps a column that alone is too wide
        missing |= dict.fromkeys(name for name in names if name not in shown)
    if missing:
        shows = f"a wider terminal{f' or {see}' * bool(see)} shows them"
        print(in_lines(f"not shown for lack of room: {', '.join(missing)}; {shows}", stream), file=stream)


def least(table: Table) -> int:
    """The least width that a table needs."""
    from rich.console import Console

    return Console(width=WIDE).measure(table).minimum


def parts_of(table: Table, names: Sequence[str], room: int) -> list[Table]:
    """The columns of these names, split into tables that fit into `room`. Each table repeats the first column."""
    whole = part_of(table, names)
    if least(whole) <= room:
        return [whole]
    groups = [[names[0]]]
    for name in names[1:]:
        if len(groups[-1]) > 1 and least(part_of(table, [*groups[-1], name])) > room:
            groups.append([names[0]])
        groups[-1].append(name)
    parts = [part_of(table, group) for group in groups]
    for part in parts[1:]:
        part.title = None
    for part in parts[:-1]:
        part.caption = None
    return parts


def part_of(table: Table, names: Sequence[str]) -> Table:
    """The table with only the columns of these names, and with its text escaped.

    Only a cell of more than UNBROKEN characters with spaces, such as a sentence, may be wrapped.
    """
    from rich.cells import cell_len

    part = copy(table)
    part.title, part.caption = (escaped(str(text)) if text else None for text in (table.title, table.caption))
    part.columns, part.rows = [], []
    columns = [column for column in table.columns if str(column.header) in names]
    for column in columns:
        lines = [line for cell in (column.header, *column.cells) for line in lines_of(cell).split("\n")]
        whole = max((cell_len(line) for line in lines if column.no_wrap or is_whole(line)), default=NARROWEST)
        part.add_column(
            lines_of(column.header),
            min_width=whole,
            no_wrap=all(map(is_whole, lines)) or column.no_wrap,
            overflow="fold",
            justify=column.justify,
            style=column.style,
        )
    for row, texts in zip(table.rows, zip(*(column.cells for column in columns), strict=True), strict=True):
        part.add_row(*map(lines_of, texts), style=row.style, end_section=row.end_section)
    return part


def is_whole(line: str) -> bool:
    """Whether a line of a cell is never broken, because it is short or has no spaces."""
    return len(line) <= UNBROKEN or " " not in line


def lines_of(cell: RenderableType) -> str:
    """The text of a cell, with control characters escaped, because names of models and tokens may contain anything."""
    return "\n".join(map(escaped, str(cell).split("\n")))


class Stream(io.FileIO):
    """Standard output or standard error as a file whose errors do not stop the run.

    If the reader has closed the pipe, as in `| head -1`, the rest is dropped without an error. On any other error,
    standard error drops the text, but standard output raises OutputError, once.

    needed: whether errors are raised: True for standard output, False for standard error.
    """

    def __init__(self, number: int, *, needed: bool) -> None:
        super().__init__(number, "w", closefd=False)
        self.needed, self.lost = needed, False

    def write(self, data: Any) -> int | None:  # type: ignore[override]
        try:
            return len(data) if self.lost else super().write(data)
        except OSError as error:
            self.lost = True
            if self.needed and not isinstance(error, BrokenPipeError):
                raise OutputError(f"standard output cannot be written: {error.strerror}") from error
        return len(data)


def open_streams() -> None:
    """Replace standard output and standard error by `Stream`s, and open the null device for closed standard streams.

    Otherwise the next file to be opened would get the number of a closed stream, and libraries would print into it.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
    sys.stdout, sys.stderr = text_stream(1, sys.stdout), text_stream(2, sys.stderr)


def text_stream(number: int, before: TextIO | None) -> TextIO:
    """A stream in the encoding of `before`, with escapes for characters that the encoding lacks."""
    raw = Stream(number, needed=number == 1)
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=before.encoding if before is not None else "utf-8",
        errors="backslashreplace",
        line_buffering=number == 2 or raw.isatty(),
    )


@contextmanager
def warnings_as_lines(kind: type[Warning]) -> Iterator[None]:
    """Inside the block, print warnings of this kind as plain lines, each text once; show other warnings as usual."""
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
