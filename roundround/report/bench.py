"""Where variants stand on the standard set: a terminal table, csv, Markdown, sentences, a page, a report to cite.

All are made from the records of `results.json` and the curves in `bench.json`.

Tested by tests/verbs/test_bench.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from pandas import DataFrame

from roundround.analysis.standings import (
    BETTER,
    NO_VALUE,
    NOT_TESTED,
    NOT_TOLD_APART,
    SIGNIFICANT,
    WORSE,
    Part,
    StandardSet,
    Standing,
    compared,
    priors,
)
from roundround.config.verb import FigureStyle
from roundround.records.directories import PAGE
from roundround.report.drawing.figures import save_drawing
from roundround.report.drawing.tables import Cell, Record, Table, fixed, number, shown_p
from roundround.report.page.view import RunFiles, Section, View, write_page
from roundround.support.console import print_result, print_status, print_table
from roundround.support.files import write_atomically, write_json
from roundround.support.panels import Curve, Drawing, Panel

ABOUT, CSV, MARKDOWN = "bench.json", "bench.csv", "bench.md"
FEW = 3  # variants beside the baseline that a terminal shows as columns, with intervals
MOST_CURVES = 6
MARKS = {BETTER: "+", WORSE: "-"}
BAND = "all variants, from the lowest to the highest tenth"


@dataclass
class Standings:
    """The chosen variants beside the baseline; `found` are all that have values."""

    set: StandardSet
    found: Sequence[Standing]
    chosen: Sequence[Standing]
    baseline: Standing

    @cached_property
    def rows(self) -> list[tuple[Standing, list[Record]]]:
        """The baseline first, then by name."""
        order = sorted(self.chosen, key=lambda s: (s is not self.baseline, s.name))
        columns, known = self.set.columns, priors(self.baseline, self.found, self.set.columns)
        return [
            (s, [record | {"variant": self.label(s)} for record in compared(s, self.baseline, known, columns)])
            for s in order
        ]

    def label(self, standing: Standing) -> str:
        """The variant's name, with its learning rate where that is not the set's."""
        return standing.name if standing.rate == self.set.rate else f"{standing.name}, lr {standing.rate:g}"

    def records(self) -> list[Record]:
        return [record for _, some in self.rows for record in some]

    # -- files

    def leave(self, directory: Path) -> None:
        records = self.records()
        write_json(directory / ABOUT, self.about())
        write_atomically(directory / CSV, DataFrame(records, dtype=object).to_csv(index=False, lineterminator="\n"))
        write_atomically(directory / MARKDOWN, self.markdown())

    def about(self) -> dict[str, Any]:
        """What the page needs beside the records."""
        return {
            "set": self.set.name,
            "size": self.set.size,
            "hash": self.set.hash,
            "standard": self.set.is_standard,
            "baseline": self.label(self.baseline),
            "spread": self.spread,
            "remarks": self.remarks(),
            "parts": [
                {
                    "name": part.name,
                    "question": part.question,
                    "columns": [asdict(column) for column in part.columns],
                    "curves": [
                        {
                            "x": label,
                            "variants": {self.label(s): s.curve(part.name, metric) for s in self.drawn(part)},
                            "band": band([s.curve(part.name, metric) for s in self.found]),
                        }
                        for first in [part.columns[0].number.partition("@")[0]]
                        for metric, label in (
                            (first, "length"),
                            (f"{first}:position", "position in the longest window"),
                        )
                    ],
                }
                for part in self.set.parts
            ],
        }

    def drawn(self, part: Part) -> list[Standing]:
        """The baseline and the variants that differ most from it in the part, if there are too many to draw."""
        if len(self.rows) <= MOST_CURVES:
            return [standing for standing, _ in self.rows]
        sized = [
            (abs(record["difference"]) / (self.spread[record["metric"]] or 1.0), n)
            for n, (_, some) in enumerate(self.rows)
            for record in some
            if record["part"] == part.name and record["verdict"] in MARKS
        ]
        most = list(dict.fromkeys(n for _, n in sorted(sized, reverse=True)))[: MOST_CURVES - 1]
        return [self.baseline, *(self.rows[n][0] for n in most)]

    @cached_property
    def spread(self) -> dict[str, float]:
        """The size of a large difference in each column: a tenth of all variants exceed it."""
        found = {}
        for column in self.set.columns:
            own, means = self.baseline.mean(column), [s.mean(column) for s in self.found]
            sizes = [abs(mean - own) for mean in means if own is not None and mean is not None] or [0.0]
            found[column.name] = float(np.quantile(sizes, 0.9))
        return found

    def remarks(self) -> list[str]:
        changed = [f"not the standard set: {self.set.name} was changed (hash {self.set.hash})"]
        found = changed * (not self.set.is_standard)
        for standing, _ in self.rows:
            for part, some in standing.remarks().items():
                seeds: dict[str, list[str]] = {}
                for remark in some:
                    seed, _, text = remark.partition(": ")
                    seeds.setdefault(text, []).append(seed.removeprefix("seed "))
                found += [f"{self.label(standing)}: {part}: seed {', '.join(n)}: {text}" for text, n in seeds.items()]
        return found

    def leave_report(self, directory: Path, folder: Path, command: str, style: FigureStyle) -> None:
        """What a paper cites: the page of the run, table, csv, figures as pdf, and a paragraph on methods."""
        write_page(directory, folder / PAGE)
        self.leave(folder)
        for panel in panels_of(self.about()):
            name = re.sub(r"\W+", "_", f"{panel.note.partition(':')[0]}_by_{panel.x_label.split()[0]}")
            save_drawing(Drawing(name, panel.title, [panel]), folder, style, kinds=("pdf", "svg"))
        write_atomically(folder / "methods.md", self.methods(command))
        print_status(f"to cite: {folder}")

    def methods(self, command: str) -> str:
        seeds = sorted({len(standing.seeds) for standing, _ in self.rows})
        n = " to ".join(map(str, dict.fromkeys((seeds[0], seeds[-1])))) + " seed" + "s" * (seeds[-1] > 1)
        parts = ", ".join(part.name for part in self.set.parts)
        return (
            f"Variants were run on version {self.set.name} (size {self.set.size}, hash {self.set.hash}) of "
            f"roundround's standard set, whose parts are {parts}, with {n} each. All variants of a seed begin with the "
            "same weights where shapes agree and see the same batches. Differences from "
            f"{self.label(self.baseline)} are paired by seed; their t-test has a variance moderated by those of the "
            f"{len(self.found)} variants with stored values (Smyth 2004), and Holm's correction over "
            f"{sum(c.better != 'none' for c in self.set.columns)} numbers; a difference counts as one below "
            f"p = {SIGNIFICANT}. Command: `{command}`.\n\n" + "\n\n".join(self.sentences()) + "\n"
        )

    # -- in words and tables

    def sentences(self) -> list[str]:
        """One for each variant but the baseline."""
        return [
            sentence(self.label(s), self.label(self.baseline), some) for s, some in self.rows if s is not self.baseline
        ]

    def show(self) -> None:
        """Print the table, the sentences and the remarks."""
        if 1 < len(self.rows) <= FEW + 1:
            print_table(self.side_by_side().rich(), on_output=True, see=CSV)
            for line in self.sentences():
                print_result(line)
            for remark in self.remarks():
                print_status(remark)
        else:
            table = self.overview()
            print_table(table.rich(), on_output=True, first_to_leave=table.columns[:1:-1], see=CSV)
        judged = sum(column.better != "none" for column in self.set.columns)
        print_status(
            f"+ better, - worse than {self.label(self.baseline)}: paired by seed, p < {SIGNIFICANT} after Holm over "
            f"{judged} numbers; all numbers are in {CSV} of the run"
        )

    def side_by_side(self) -> Table:
        """A row for each number, a column for each variant."""
        columns = ["number", *(self.label(s) for s, _ in self.rows), "better"]
        by_number = zip(*(some for _, some in self.rows), strict=True)
        rows = [
            [some[0]["metric"], *(cell(record, whole=True) for record in some), some[0]["better"].replace("none", "")]
            for some in by_number
        ]
        return Table(self.title, columns, rows, names=1)

    def overview(self) -> Table:
        """A row for each variant, a column for each number."""
        columns = ["variant", "seeds", *(column.name for column in self.set.columns)]
        rows = [[Cell(self.label(s)), len(s.seeds), *map(cell, some)] for s, some in self.rows]
        return Table(self.title, columns, rows, names=1)

    @property
    def title(self) -> str:
        changed = "" if self.set.is_standard else ", changed: not the standard set"
        return f"standard set {self.set.name}, size {self.set.size}{changed}"

    def markdown(self) -> str:
        lines = [*self.sentences(), *self.remarks()] if len(self.rows) <= FEW + 1 else self.remarks()
        return self.overview().markdown() + "\n" + "".join(f"- {line}\n" for line in lines)


def cell(record: Record, *, whole: bool = False) -> Cell:
    """The mean with a mark where it differs; whole: with the difference and its interval."""
    mean, mark = record["value"], MARKS.get(record["verdict"], "")
    if mean is None:
        return Cell(NO_VALUE if whole else "n/a")
    if not whole or record["difference"] is None:
        return Cell(text(mean) + mark, mean)
    low, high = record["difference_low"], record["difference_high"]
    half = "" if low is None else f" ±{fixed((high - low) / 2, 3)}"
    return Cell(f"{text(mean)} ({fixed(record['difference'], 3, '+')}{half}){mark}", mean)


def sentence(name: str, baseline: str, records: Sequence[Record]) -> str:
    """`half against rope: better in counting 1.5x (+0.82, p 0.003); worse in ...; not told apart in 11.`"""
    parts = []
    for verdict in (BETTER, WORSE):
        some = [record for record in records if record["verdict"] == verdict]
        listed = [f"{r['metric']} ({fixed(r['difference'], 3, '+')}, p {shown_p(r['p_holm'])})" for r in some]
        parts += [f"{verdict} in {', '.join(listed)}"] * bool(some)
    judged = [record for record in records if record["better"] != "none"]
    missing = [record["metric"] for record in judged if record["value"] is None]
    verdicts = [record["verdict"] for record in judged]
    n_rest = verdicts.count(NOT_TOLD_APART)
    apart = any(record["value"] is not None and not record["n_pairs"] for record in judged)
    parts += [f"not told apart in {n_rest} of {len(judged)} numbers"] * bool(n_rest)
    parts += ["one seed alone, from which nothing can be told"] * (NOT_TESTED in verdicts)
    parts += ["no seed in common, so that nothing can be compared"] * apart
    parts += [f"no value in {', '.join(missing)}"] * bool(missing)
    return f"{name} against {baseline}: {'; '.join(parts)}."


def band(curves: Sequence[Mapping[int, Sequence[float]]]) -> dict[int, list[float]]:
    """By length, where most are measured: the ends of the means of eight tenths of all variants, and their median."""
    if len(curves) <= FEW:
        return {}
    places = sorted({length for curve in curves for length in curve})
    by_place = {n: [float(np.mean(curve[n])) for curve in curves if curve.get(n)] for n in places}
    return {
        n: [float(q) for q in np.quantile(some, [0.1, 0.5, 0.9])]
        for n, some in by_place.items()
        if 2 * len(some) > len(curves)
    }


# -- the page


def view(files: RunFiles, records: list[Record]) -> View:
    """The grid of variants and numbers, the curves of all parts, and the numbers with their intervals."""
    about = files.json(ABOUT)
    if not isinstance(about, dict):
        return View([])
    files.remarks.extend(about["remarks"])
    grid = Section(
        "Standings",
        note=(
            "Each number is the mean over the seeds. A cell is coloured where the difference from "
            f"{about['baseline']} is told apart (p < {SIGNIFICANT}, paired by seed, Holm over the row's numbers): blue "
            "and + is better, orange and - is worse, the stronger the larger. A number's name leads to the curves."
        ),
        part="bench.html.j2",
        values={"grid": grid_of(records, about)},
    )
    note = f"At most {MOST_CURVES} variants are drawn: the ones that differ most from {about['baseline']} in the part."
    curves = Section("Curves", note=note, panels=panels_of(about), anchor="curves")
    numbers = Section("Numbers", anchor="numbers", tables=[table_of(part, records) for part in about["parts"]])
    scope = [f"set {about['set']}, size {about['size']}, hash {about['hash']}"]
    return View([grid, curves, numbers], scope=scope)


def grid_of(records: Sequence[Record], about: Mapping[str, Any]) -> dict[str, Any]:
    """Rows of cells with their text, class and strength of colour."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        difference, spread = number(record["difference"]), number(about["spread"].get(record["metric"])) or 0.0
        share = min(1.0, abs(difference) / spread) if difference is not None and spread else 0.0
        ends = interval(record)
        beside = f"; difference {text(difference, '+')} ({ends}), p {shown_p(record['p_holm'])}" if ends else ""
        rows.setdefault(record["variant"], []).append(
            {
                "text": text(record["value"]) or "n/a",
                "title": f"{record['variant']}: {record['metric']}, {record['unit']}{beside}",
                "kind": record["verdict"] if record["verdict"] in (BETTER, WORSE) else "",
                "share": f"{share:.2f}",
            }
        )
    columns = [(c["name"], part["question"]) for part in about["parts"] for c in part["columns"]]
    return {"columns": columns, "rows": list(rows.items())}


def table_of(part: Mapping[str, Any], records: Sequence[Record]) -> Table:
    """The numbers of a part, a row for each variant and number."""
    columns = ["variant", "number", "mean", "difference", "95 % interval", "p (Holm)", "verdict", "seeds"]
    rows = [
        [
            Cell(r["variant"]),
            Cell(r["metric"]),
            Cell(text(r["value"]), r["value"]),
            Cell(text(r["difference"], "+"), r["difference"]),
            Cell(interval(r)),
            Cell(shown_p(number(r["p_holm"])), r["p_holm"]),
            Cell(r["verdict"]),
            r["n_seeds"],
        ]
        for r in records
        if r["part"] == part["name"]
    ]
    units = "; ".join(f"{column['name']}: {column['unit']}" for column in part["columns"])
    return Table(f"{part['name']}: {units}", columns, rows, names=2, folded=True)


def text(value: Any, sign: str = "") -> str:
    """A number with three decimals, a large one with one."""
    return "" if (found := number(value)) is None else fixed(found, 3 if abs(found) < 10 else 1, sign)


def interval(record: Record) -> str:
    low, high = number(record["difference_low"]), number(record["difference_high"])
    return "" if low is None or high is None else f"{fixed(low, 3, '+')} to {fixed(high, 3, '+')}"


def panels_of(about: Mapping[str, Any]) -> list[Panel]:
    """A panel for each part that was measured at several lengths; of text another by position in the longest."""
    found = []
    for part in about["parts"]:
        share = part["columns"][0]["better"] == "higher"
        for curves in part["curves"]:
            lines = [
                Curve(name, [*map(int, of)], [*map(np.mean, some)], low=[*map(min, some)], high=[*map(max, some)])
                for name, of in curves["variants"].items()
                if len(some := list(of.values())) > 1
            ]
            if not lines:
                continue
            if band := curves["band"]:
                low, middle, high = zip(*band.values(), strict=True)
                lines.append(Curve(BAND, [*map(int, band)], middle, low=low, high=high, reference=True))
            ticks = sorted({n for line in lines for n in np.asarray(line.x).tolist()})
            found.append(
                Panel(
                    curves["x"], part["columns"][0]["unit"], lines, log="x", title=part["question"], x_ticks=ticks[-5:],
                    possible=(0.0, 1.0) if share else (0.0, None), whole=share,
                    note=f"{part['name'].replace('_', ' ')}: means over the seeds, from the lowest to the highest",
                )
            )  # fmt: skip
    return found
