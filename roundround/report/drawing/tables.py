"""A table that can be shown in a terminal, Markdown, LaTeX and a page; tables of the records of results.json.

Numbers have as many digits as their interval justifies.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from rich import box
from rich import table as rich

from roundround.analysis.past_run import is_number
from roundround.support.errors import escaped
from roundround.support.markdown import markdown_table

MOST_DECIMALS = 8
LARGE = 1e15
UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
DIGITS = 4  # significant digits in a table


def shown_p(p: float | None, is_bound: bool = False) -> str:
    """A p-value as text, such as 0.012, 3e-5 or <= 0.25; "" if it is None, and "-" if it is NaN."""
    if p is None:
        return ""
    if math.isnan(p):
        return "-"
    text = f"{p:.0e}".replace("e-0", "e-") if p < 0.001 else f"{p:.3f}".rstrip("0").rstrip(".")
    return f"<= {text}" if is_bound else text


def decimals_of(values: Iterable[float], half_widths: Iterable[float]) -> int:
    """The number of decimals that shows two digits of the smallest half width.

    If no half width is positive and finite, the result is the number of decimals that shows four digits of the smallest
    value, or 0 if all values are whole.
    """
    halves, sizes = [half for half in half_widths if 0 < half < math.inf], [abs(value) for value in values if value]
    if not halves and all(float(size).is_integer() for size in sizes):
        return 0
    decimals = 1 - math.floor(math.log10(min(halves))) if halves else 3 - math.floor(math.log10(min(sizes)))
    return max(0, min(MOST_DECIMALS, decimals))


def fixed(value: float, decimals: int, sign: str = "") -> str:
    """A number with this many decimals; a huge number, such as a diverged run's, is in scientific notation."""
    return f"{value:{sign}.{decimals}f}" if abs(value) < LARGE else f"{value:{sign}.3e}"


def shown_bytes(n: float) -> str:
    """A number of bytes as text: 1536 as 1.5 KiB."""
    power = min(len(UNITS) - 1, int(math.log(max(n, 1), 1024)))
    return f"{n / 1024**power:.{0 if power == 0 else 1}f} {UNITS[power]}"


def number(value: Any) -> float | None:
    """The value as a float if it is a finite number; None for anything else, such as the text "nan"."""
    return float(value) if is_number(value) else None


def shown(value: Any, digits: int = DIGITS) -> str:
    """A value as a table shows it: integers with all digits, other numbers with a few significant digits."""
    if value is None:
        return ""
    if isinstance(value, bool) or number(value) is None:
        return text_of(value)
    if isinstance(value, int) or value == 0:
        return f"{int(value):,}"
    if 1e-3 <= abs(value) < 1e6:
        decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
        return f"{value:,.{decimals}f}"
    return f"{value:.{digits - 1}e}"


def text_of(value: Any) -> str:
    """A value of a config or a record as text."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(text_of, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {text_of(item)}" for key, item in value.items()) + "}"
    return str(value)


Record = dict[str, Any]
LONG = 20  # a table with more rows is long, and may be folded on a page
TEX = str.maketrans(
    {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", **{mark: f"\\{mark}" for mark in "&%$#_{}"}}
    | {"^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"}
)


class Cell(NamedTuple):
    """A value and the text that is shown for it."""

    text: str
    value: Any = None


@dataclass
class Table:
    """The names of the columns, and the rows; each item of a row is a plain value or a `Cell`.

    note: a text about what all rows have in common. more: the number of rows that were left out. folded: whether a page
    shows the table folded. short: whether a page stores the numbers with few digits, to save room in a large table.
    names: the number of columns at the left that name the row; the columns after them have numbers. numeric: for each
    column, whether it has only numbers.
    """

    title: str
    columns: list[str]
    rows: list[list[Any]]
    note: str = ""
    more: int = 0
    folded: bool = False
    short: bool = False
    names: int = 0
    numeric: list[bool] = field(init=False)

    def __post_init__(self) -> None:
        columns = list(zip(*self.rows, strict=True)) or [()] * len(self.columns)
        self.numeric = [all(is_numeric_cell(value) for value in column) for column in columns]

    def cut(self, most_rows: int) -> None:
        """Leave out the rows after the first `most_rows`, and count them."""
        self.more += max(0, len(self.rows) - most_rows)
        self.rows = self.rows[:most_rows]

    def texts(self) -> list[list[str]]:
        """The rows as text."""
        return [[text(cell) for cell in row] for row in self.rows]

    def rich(self) -> rich.Table:
        """The table for a terminal."""
        found = rich.Table(box=box.SIMPLE_HEAD, pad_edge=False, title=escaped(self.title), title_justify="left")
        for name in self.columns:
            found.add_column(name, overflow="fold")
        for row in self.texts():
            found.add_row(*row)
        return found

    def markdown(self) -> str:
        return f"### {escaped(self.title)}\n\n{markdown_table(self.columns, self.texts())}"

    def latex(self) -> str:
        """The table in LaTeX, for a paper that loads the package booktabs."""
        rows = [[escaped(cell).translate(TEX) for cell in row] for row in [self.columns, *self.texts()]]
        rows = [
            ["{}" * (row[0][:1] in ("[", "*")) + row[0], *row[1:]] for row in rows
        ]  # {} stops LaTeX from reading [ or * as an argument of \\ before it
        lines = [" & ".join(row) + r" \\" for row in rows]
        body = "\n".join([r"\toprule", lines[0], r"\midrule", *lines[1:], r"\bottomrule"])
        form = "l" * self.names + "r" * (len(self.columns) - self.names)
        return f"% {escaped(self.title)}\n\\begin{{tabular}}{{{form}}}\n{body}\n\\end{{tabular}}\n"


def text(cell: Any) -> str:
    """The text of a cell."""
    return cell.text if isinstance(cell, Cell) else shown(cell)


def exact(cell: Any) -> Any:
    """The value behind a cell."""
    return cell.value if isinstance(cell, Cell) else cell


def is_numeric_cell(cell: Any) -> bool:
    """Whether a cell is empty, a number, or one of the names that json uses for numbers (nan, inf, -inf)."""
    value = exact(cell)
    if value is None:
        return not isinstance(cell, Cell) or not cell.text
    return number(value) is not None or (isinstance(value, str) and value in ("nan", "inf", "-inf"))


def filled(title: str, columns: Iterable[tuple[str, list[Any]]], **options: Any) -> Table:
    """A table of the columns that are not empty. options: other fields of `Table`."""
    there = [(name, cells) for name, cells in columns if any(text(cell) for cell in cells)]
    return Table(
        title, [name for name, _ in there], [list(row) for row in zip(*(c for _, c in there), strict=True)], **options
    )


def common_fields(records: list[Record]) -> dict[str, Any]:
    """The fields that all records have with the same value."""
    if not records:
        return {}
    return {
        name: value
        for name, value in records[0].items()
        if name not in ("metric", "value") and all(name in r and r[name] == value for r in records)
    }


def tables_of(records: list[Record], *, folded: bool = False) -> list[Table]:
    """One table for each group of records with the same fields; a field with one value in all records is left out.

    folded: whether a page folds tables of many rows.
    """
    common = common_fields(records)
    groups: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        groups.setdefault(tuple(n for n in record if n not in (*common, "metric", "value")), []).append(record)
    tables = [pivoted(list(fields), group) for fields, group in groups.items()]
    return [replace(table, folded=folded and len(table.rows) > LONG) for table in tables]


def pivoted(fields: list[str], records: list[Record]) -> Table:
    """A table with a row for each combination of values of the fields, and a column for each metric.

    If two records have the same metric and the same fields, the second gets a row of its own. A field with a single
    value has no column; the note names it.
    """
    metrics = list(dict.fromkeys(record["metric"] for record in records))
    varies = [name for name in fields if any(record[name] != records[0][name] for record in records)]
    rows: dict[tuple[str | int, ...], tuple[list[Any], dict[str, Any]]] = {}
    n_alike: Counter[tuple[str, ...]] = Counter()
    for record in records:
        place, metric = tuple(text_of(record[name]) for name in varies), record["metric"]
        key: tuple[str | int, ...] = (*place, n_alike[(*place, metric)])
        n_alike[(*place, metric)] += 1
        rows.setdefault(key, ([record[name] for name in varies], {}))[1][metric] = record["value"]
    cells = [[*places, *(values.get(name) for name in metrics)] for places, values in rows.values()]
    fixed = [
        f"{name} {text_of(records[0][name])}" for name in fields if name not in varies and records[0][name] != "nan"
    ]
    title = in_words(metrics[0]) if len(metrics) == 1 else f"{in_words(metrics[0])} and {len(metrics) - 1} more"
    if len(metrics) in (2, 3):
        title = ", ".join(map(in_words, metrics))
    return Table(title, [*varies, *metrics], cells, note=", ".join(fixed))


WORDS = {"n_vocab": "vocabulary", "low": "lower end", "high": "upper end", "p_holm": "p (Holm)"}


def in_words(name: str) -> str:
    """The name of a field or a metric as people read it. Files keep the name itself."""
    return WORDS.get(name) or name.removeprefix("n_").replace("_", " ").replace("joints", "separators")
