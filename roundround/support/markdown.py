"""Tables in Markdown; no text in a cell can break them.

Tested by tests/report/test_markdown.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from roundround.support.errors import escaped


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]], *, right_from: int | None = None) -> str:
    """A line for the header, a rule, and a line for each row. Columns from `right_from` on are right-aligned."""
    names = len(header) if right_from is None else right_from
    rule = ["---"] * names + ["---:"] * (len(header) - names)
    lines = [map(cell, header), rule, *(map(cell, row) for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def cell(text: str) -> str:
    """A text as one cell: an unescaped bar would start another cell, and a line break another row."""
    return escaped(text.replace("\n", " ")).strip().replace("\\", "\\\\").replace("|", "\\|")
