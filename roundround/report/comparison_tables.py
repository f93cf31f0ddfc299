"""A comparison as text: tables for a terminal, Markdown and LaTeX, a row for each place and setting; csv and json.

Tested by tests/analysis/test_compare_command.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pandas import DataFrame
from rich import box
from rich.table import Table

from roundround.analysis.comparison import Comparison, Row, format_setting
from roundround.analysis.past_run import direction
from roundround.report.numbers import decimals_of, fixed, shown_bytes, shown_p
from roundround.support.errors import escaped
from roundround.support.markdown import markdown_table

MOST_ROWS = 120  # of all tables together; the files have all
FINE = ("layer", "head", "first_position", "last_position", "kind", "first_token", "pair")  # places of detail
TEX = {"\\": r"\textbackslash{}", **{mark: f"\\{mark}" for mark in "&%$#_{}"}, "~": r"\textasciitilde{}"}
TEX |= {"^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"}


@dataclass(frozen=True)
class Sheet:
    """One metric of one verb. header: names of the columns; rows: cells as text."""

    title: str
    header: list[str]
    rows: list[list[str]]


def sheets(comparison: Comparison) -> tuple[list[Sheet], list[str]]:
    """The tables to read, and the metrics that they leave out: those by layer and head, and what is too much to read.

    Where a verb measures how good models are, they are about that; numbers that are the same everywhere are left out.
    What is measured in detail alone is shown as far as there is room.
    """
    judged = {row.verb for row in comparison.table if direction(row.metric)}
    by_metric: dict[tuple[str | None, str], list[Row]] = {}
    for row in comparison.table:
        by_metric.setdefault((row.verb, row.metric), []).append(row)
    found: list[Sheet] = []
    left_out: list[str] = []
    n_rows = 0
    for (verb, metric), rows in by_metric.items():
        coarse = [row for row in rows if not set(row.coordinates) & set(FINE)]
        chosen = coarse or rows
        name = f"{verb}: {metric}" if verb else metric
        same = len({value for row in rows for value in row.values}) == 1 and len(by_metric) > 1
        if same or (verb in judged and not direction(metric)) or (n_rows + len(chosen) > MOST_ROWS and found):
            left_out.append(name)
            continue
        found.append(sheet(name, chosen[:MOST_ROWS]))
        n_rows += len(chosen)
        if len(chosen) < len(rows) or len(chosen) > MOST_ROWS:
            left_out.append(f"more of {name}")
    return found, left_out


def sheet(title: str, rows: Sequence[Row]) -> Sheet:
    """The rows of one metric as text; columns that nothing stands in are left out."""
    halves = [(row.high - row.low) / 2 for row in rows if row.low is not None and row.high is not None]
    of_means = decimals_of([row.mean for row in rows], halves)
    differing = [row for row in rows if row.difference is not None]
    wide = [(row.difference_high or 0) - (row.difference_low or 0) for row in differing]
    of_differences = decimals_of([row.difference or 0 for row in differing], [width / 2 for width in wide])
    keys = dict.fromkeys(key for row in rows for key in row.coordinates)
    settings = dict.fromkeys(key for row in rows for key in row.settings)
    columns: list[tuple[str, list[str]]] = [
        *((key, [format_cell(row.coordinates.get(key, "")) for row in rows]) for key in keys),
        *((key, [format_cell(row.settings.get(key, "")) for row in rows]) for key in settings),
        ("mean", [fixed(row.mean, of_means) for row in rows]),
        ("95 % interval", [interval(row.low, row.high, of_means) for row in rows]),
        ("seeds", [str(row.n_seeds) for row in rows]),
        ("difference", ["" if row.difference is None else fixed(row.difference, of_differences, "+") for row in rows]),
        ("95 % interval", [interval(row.difference_low, row.difference_high, of_differences, "+") for row in rows]),
        ("p", [shown_p(row.p, row.p_is_bound) for row in rows]),
        ("p (Holm)", [shown_p(row.p_holm, row.p_is_bound) for row in rows]),
        ("tokens/s", [f"{speed:,.0f}" if (speed := row.group.tokens_per_second) is not None else "" for row in rows]),
        ("memory", [memory(row) for row in rows]),
    ]
    filled = [(name, cells) for name, cells in columns if any(cells)]
    return Sheet(title, [name for name, _ in filled], [list(row) for row in zip(*(c for _, c in filled), strict=True)])


def format_cell(value: Any) -> str:
    """The value of a setting or a coordinate."""
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else format_setting(value)


def interval(low: float | None, high: float | None, decimals: int, sign: str = "") -> str:
    return "" if low is None or high is None else f"{fixed(low, decimals, sign)} to {fixed(high, decimals, sign)}"


def memory(row: Row) -> str:
    """The largest peak: of the device where one was used, else of the process."""
    peaks = row.group.peak_memory
    peak = peaks["peak_device_bytes"] or peaks["peak_resident_bytes"]
    return "" if peak is None else shown_bytes(peak)


# -- as documents


def rich_tables(found: Iterable[Sheet]) -> list[Table]:
    tables = []
    for one in found:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=escaped(one.title), title_justify="left")
        for name in one.header:
            table.add_column(name, overflow="fold")
        for row in one.rows:
            table.add_row(*row)
        tables.append(table)
    return tables


def markdown(found: Iterable[Sheet], remarks: Sequence[str]) -> str:
    parts = [f"### {escaped(one.title)}\n\n{markdown_table(one.header, one.rows)}" for one in found]
    listed = ["".join(f"- {escaped(remark)}\n" for remark in remarks)] if remarks else []
    return "\n".join([*parts, *listed])


def latex(found: Iterable[Sheet], remarks: Iterable[str]) -> str:
    """Tables for a paper; the preamble needs booktabs."""
    parts = ["% \\usepackage{booktabs}\n"]
    for one in found:
        lines = [" & ".join(map(tex, row)) + r" \\" for row in [one.header, *one.rows]]
        body = "\n".join([r"\toprule", lines[0], r"\midrule", *lines[1:], r"\bottomrule"])
        names = one.header.index("mean")  # what comes before the mean says what it is of
        form = "l" * names + "r" * (len(one.header) - names)
        parts.append(f"% {escaped(one.title)}\n\\begin{{tabular}}{{{form}}}\n{body}\n\\end{{tabular}}\n")
    return "\n".join([*parts, "".join(f"% {escaped(remark)}\n" for remark in remarks)])


def tex(text: str) -> str:
    return "".join(TEX.get(letter, letter) for letter in escaped(text))


def as_csv(comparison: Comparison) -> str:
    """The records of results.json, a line each; settings as pe=rope, softmax=softmax, seeds apart by spaces."""
    rows = []
    for row, record in zip(comparison.table, comparison.records(), strict=True):
        record |= {"settings": row.group.name, "baseline": None if row.baseline is None else row.baseline.name}
        rows.append({key: plain(value) for key, value in record.items()})
    table = DataFrame(rows, dtype=object)  # integers stay such
    first = ["metric", "verb", *dict.fromkeys(key for row in comparison.table for key in row.coordinates), "settings"]
    text: str = table[[*first, *table.columns.difference(first, sort=False)]].to_csv(index=False, lineterminator="\n")
    return text


def plain(value: Any) -> Any:
    if isinstance(value, list):
        return " ".join(map(str, value))
    return escaped(value) if isinstance(value, str) and not value.isprintable() else value


def as_json(comparison: Comparison) -> str:
    return json.dumps(comparison.records(), indent=2, default=str) + "\n"
