"""Records of results.json as tables: those of the same fields together, a column for each metric."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from roundround.report.page.numbers import text_of
from roundround.report.page.sources import Record, number


@dataclass
class Table:
    """Columns by name and rows of plain values. `note` says what holds for all rows, `more` the rows left out.

    short: numbers are shown and carried with few digits alone, because there are thousands.
    """

    title: str
    columns: list[str]
    rows: list[list[Any]]
    note: str = ""
    more: int = 0
    folded: bool = False
    short: bool = False
    numeric: list[bool] = field(init=False)

    def __post_init__(self) -> None:
        columns = list(zip(*self.rows, strict=True)) or [()] * len(self.columns)
        self.numeric = [all(value is None or is_number(value) for value in column) for column in columns]

    def cut(self, most_rows: int) -> None:
        """Leave out the rows after the first `most_rows`, and count them."""
        self.more += max(0, len(self.rows) - most_rows)
        self.rows = self.rows[:most_rows]


def is_number(value: Any) -> bool:
    """Whether a cell is a number, those that json writes as a name included."""
    return number(value) is not None or (isinstance(value, str) and value in ("nan", "inf", "-inf"))


def common_fields(records: list[Record]) -> dict[str, Any]:
    """The fields that all records share, with one value: what the results are of."""
    if not records:
        return {}
    first = records[0]
    names = [name for name in first if name not in ("metric", "value")]
    return {name: first[name] for name in names if all(name in r and r[name] == first[name] for r in records)}


def tables_of(records: list[Record]) -> list[Table]:
    """A table for each set of fields that records have beside those that all share."""
    common = common_fields(records)
    groups: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        groups.setdefault(tuple(n for n in record if n not in (*common, "metric", "value")), []).append(record)
    return [pivoted(list(fields), group) for fields, group in groups.items()]


def pivoted(fields: list[str], records: list[Record]) -> Table:
    """One row for each combination of the fields, one column for each metric. Of two alike the later one gets a row.

    A field with one value stands in the note and not in a column.
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


def in_words(name: str) -> str:
    return name.replace("_", " ")
