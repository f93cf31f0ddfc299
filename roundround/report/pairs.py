"""What an evaluation on minimal pairs says: the share of pairs whose right sentence is likelier, by phenomenon and over
all, as records, tables, a figure and a page.

Shapes: N pairs of a phenomenon, P phenomena.

Tested by tests/training/test_pair_runs.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Column, Table

from roundround.analysis.intervals import half_width, wilson
from roundround.report.drawing.numbers import number
from roundround.report.drawing.tables import Record, tables_of
from roundround.report.page.view import Section, View
from roundround.support.panels import Curve, Drawing, Panel, numbers

BEFORE = "tokens of text before the sentence"


@dataclass(frozen=True, eq=False)
class PairScores:
    """Log-probabilities in nats of the right and the wrong sentence of each pair, [N, 2], by phenomenon."""

    by_phenomenon: Mapping[str, NDArray[np.float64]]

    @property
    def n(self) -> int:
        return sum(map(len, self.by_phenomenon.values()))

    def right(self, phenomenon: str) -> NDArray[np.bool_]:
        """Where the wrong sentence is not the likelier one, [N]: of equal ones the first counts, as in lm-eval."""
        scores_N2 = self.by_phenomenon[phenomenon]
        found: NDArray[np.bool_] = scores_N2[:, 0] >= scores_N2[:, 1]
        return found

    def shares(self) -> NDArray[np.float64]:
        """The accuracy of each phenomenon, [P]."""
        return np.array([self.right(name).mean() for name in self.by_phenomenon])


def of_mean(shares_P: NDArray[np.float64]) -> dict[str, float]:
    """The mean over phenomena, with its 95 % interval by Student's t: pairs of a phenomenon go right together, so each
    phenomenon is one observation. One phenomenon has no interval, nor do several that are equal.
    """
    mean, half = float(shares_P.mean()), float(half_width(shares_P))
    return {"value": mean} | ({"low": mean - half, "high": mean + half} if len(shares_P) > 1 and half > 0 else {})


def records(by_prefix: Mapping[int, PairScores], common: Mapping[str, Any]) -> list[Record]:
    """For each prefix the accuracy over all and of each phenomenon, and how the first changes from the shortest prefix.

    Intervals are of 95 %: Wilson's over the pairs of a phenomenon, and `of_mean` over all.
    """
    found: list[Record] = []
    first = by_prefix[min(by_prefix)]
    for prefix, scores in by_prefix.items():
        over_all = {**common, "prefix": prefix, "phenomena": len(scores.by_phenomenon), "pairs": scores.n}
        mean = of_mean(scores.shares())
        mean = {name: min(1.0, max(0.0, value)) for name, value in mean.items()}  # a share ends at 0 and 1
        found.append({"metric": "accuracy", **over_all, **mean})
        if scores is not first:
            found.append({"metric": "accuracy_change", **over_all, **of_mean(scores.shares() - first.shares())})
    for prefix, scores in by_prefix.items():
        for name in scores.by_phenomenon:
            right_N = scores.right(name)
            low, high = wilson(int(right_N.sum()), len(right_N))
            place = {"prefix": prefix, "phenomenon": name, "pairs": len(right_N)}
            value = float(right_N.mean())
            found.append({"metric": "accuracy", **common, **place, "value": value, "low": low, "high": high})
    return found


# -- on the terminal


def table(found: Sequence[Record], *, title: str) -> Table:
    """A row for each prefix."""
    changes = {r["prefix"]: r for r in found if r["metric"] == "accuracy_change"}
    columns = ["prefix", "accuracy", *(["change from the first"] if changes else [])]
    shown = Table(*columns, title=title)
    for record in over_all(found):
        cells = [f"{record['prefix']:,}", in_brackets(record)]
        if changes:
            cells.append(in_brackets(changes[record["prefix"]], "+") if record["prefix"] in changes else "")
        shown.add_row(*cells)
    return shown


def table_of_phenomena(found: Sequence[Record], *, title: str) -> Table:
    """A row for each phenomenon, a column for each prefix; with an interval where there is one prefix."""
    rows: dict[str, list[Record]] = {}
    for record in found:
        if "phenomenon" in record:
            rows.setdefault(record["phenomenon"], []).append(record)
    prefixes = [f"behind {record['prefix']:,}" for record in next(iter(rows.values()))]
    shown = Table(Column("phenomenon", overflow="fold"), "pairs", title=title)
    for column in ["accuracy"] if len(prefixes) == 1 else prefixes:
        shown.add_column(column)
    for name, some in rows.items():
        values = [in_brackets(some[0])] if len(some) == 1 else [f"{record['value']:.3f}" for record in some]
        shown.add_row(name, f"{some[0]['pairs']:,}", *values)
    return shown


def in_brackets(record: Record, sign: str = "") -> str:
    interval = f" [{record['low']:{sign}.3f}, {record['high']:{sign}.3f}]" if "low" in record else ""
    return f"{record['value']:{sign}.3f}{interval}"


def over_all(found: Sequence[Record]) -> list[Record]:
    """The accuracy over all phenomena, by prefix."""
    whole = [r for r in found if r["metric"] == "accuracy" and "phenomenon" not in r and number(r["value"]) is not None]
    return sorted(whole, key=lambda record: record["prefix"])


# -- figure and page


def are_pairs(found: Sequence[Record]) -> bool:
    """Whether these are the records of an evaluation on minimal pairs."""
    return any("prefix" in record and record["metric"] == "accuracy" for record in found)


def drawing(found: Sequence[Record], title: str = "", note: str = "") -> Drawing:
    """Accuracy over all against the prefix, where there are several, and that of each phenomenon in ascending order."""
    panels = [] if len(over_all(found)) < 2 else [by_prefix(found)]
    return Drawing("accuracy", title, [*panels, by_rank(found)], note=note)


def by_prefix(found: Sequence[Record]) -> Panel:
    some = over_all(found)
    x = [float(record["prefix"]) for record in some]
    y, low, high = (numbers(number(record.get(name)) for record in some) for name in ("value", "low", "high"))
    return Panel(
        BEFORE, "share right", [Curve("all phenomena", x, y, low=low, high=high), chance(x[0], x[-1])],
        title="Right sentences by distance", possible=(0.0, 1.0), x_ticks=x,
        note="The mean over phenomena; the band is its 95 % interval, in which a phenomenon counts once.",
    )  # fmt: skip


def by_rank(found: Sequence[Record]) -> Panel:
    """The phenomena in the order of their accuracy behind the shortest prefix; its interval is over their pairs."""
    values: dict[int, dict[str, Record]] = {}
    for record in found:
        if record["metric"] == "accuracy" and "phenomenon" in record:
            values.setdefault(record["prefix"], {})[str(record["phenomenon"])] = record
    first = values[min(values)]
    order = sorted(first, key=lambda name: number(first[name]["value"]) or 0.0)
    x = list(range(1, len(order) + 1))
    curves = []
    for prefix, own in sorted(values.items()):
        y, low, high = (numbers(number(own[name].get(key)) for name in order) for key in ("value", "low", "high"))
        name = f"behind {prefix:,} tokens"
        curves.append(Curve(name, x, y, low=low, high=high) if own is first else Curve(name, x, y, points=True))
    return Panel(
        "phenomena, by their accuracy", "share right", [*curves, chance(1, len(x))],
        title="Right sentences by phenomenon", possible=(0.0, 1.0), whole=True,
        note="The table names the phenomena; the band is the 95 % interval over the pairs of one.",
    )  # fmt: skip


def chance(start: float, end: float) -> Curve:
    return Curve("chance", [start, end], [0.5, 0.5], reference=True)


def view(found: list[Record]) -> View:
    """The figure's panels, then the records as tables."""
    tables = tables_of(found)
    for one in tables[1:]:
        one.folded = len(one.rows) > 20
    record = over_all(found)[0]
    sample = ", a sample" if record.get("sample") else ""
    scope = [f"{record['pairs']:,} pairs of {record['phenomena']:,} phenomena{sample}; chance is 0.5."]
    return View([Section("Right sentences", panels=drawing(found).panels), Section("Results", tables=tables)], scope)
