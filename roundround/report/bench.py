"""The values of variants on the standard set (docs/howto/bench.md): tables, sentences and a page.

Tested by tests/verbs/test_bench.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from pandas import DataFrame

from roundround.analysis.standings import (
    BETTER,
    EQUIVALENT,
    NO_CLEAR,
    NO_VALUE,
    NOT_TESTED,
    SIGNIFICANT,
    WORSE,
    Part,
    StandardSet,
    Standing,
    compared,
)
from roundround.report.comparison import sheet
from roundround.report.drawing.tables import Cell, Record, Table, fixed, shown_p
from roundround.report.page.view import RunFiles, Section, View
from roundround.support.console import print_result, print_status, print_table
from roundround.support.files import write_atomically, write_json
from roundround.support.panels import Curve, Panel

ABOUT, CSV, MARKDOWN = "bench.json", "bench.csv", "bench.md"
FEW = 3  # variants beside the baseline that have a sentence each
MOST_CURVES = 6
CODES = {BETTER: 0, EQUIVALENT: 3, NO_CLEAR: 3, WORSE: 4}  # exit codes, from the best verdict to the worst
MARKS = {BETTER: "+", WORSE: "-", EQUIVALENT: "=", NOT_TESTED: "!"}
COLOURED = (BETTER, WORSE)
JUDGED, COST, GATE, DESCRIBED = "judged", "cost", "within the trained lengths", "described"  # groups of columns


@dataclass
class Standings:
    """The variants to show, compared with a baseline.

    chosen: the variants to show. tries: by variant, its try in the history of a search. tuned: each part has
    the better of the set's two learning rates.
    """

    set: StandardSet
    chosen: Sequence[Standing]
    baseline: Standing
    tries: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    tuned: bool = False

    @cached_property
    def groups(self) -> dict[str, str]:
        """The columns by name, in the order in which they are shown, each with its group."""
        gates = {column.gate for column in self.set.columns}
        costs = {part.name for part in self.set.parts if part.measures == "costs"}
        of = {
            c.name: GATE
            if c.name in gates
            else COST
            if c.part in costs
            else DESCRIBED
            if c.better == "none"
            else JUDGED
            for c in self.set.columns
        }
        return {
            name: group for wanted in (JUDGED, COST, GATE, DESCRIBED) for name, group in of.items() if group == wanted
        }

    @cached_property
    def rows(self) -> list[tuple[Standing, list[Record]]]:
        """Each chosen variant with its records: the baseline first, with the others' seeds, then these by name."""
        others = sorted((s for s in self.chosen if s is not self.baseline), key=lambda s: s.name)
        seeds = {seed for s in others for seed in s.made}
        base = self.baseline.without(self.baseline.made.keys() - seeds) if others else self.baseline
        found = []
        for s in [base, *others]:
            records = {record["metric"]: record for record in compared(s, base, self.set)}
            found.append((s, [records[name] for name in self.groups]))
        return found

    def records(self) -> list[Record]:
        return [record for _, some in self.rows for record in some]

    def leave(self, directory: Path) -> None:
        """Write bench.json, bench.csv and bench.md. The page is made from bench.json and the records."""
        parts = [
            {
                "name": part.name,
                "question": part.question,
                "columns": [asdict(column) for column in part.columns],
                "curves": [self.curves(part)],
            }
            for part in self.set.parts
        ]
        about = {
            "set": self.set.name,
            "size": self.set.size,
            "hash": self.set.hash,
            "standard": self.set.is_standard,
            "baseline": self.baseline.name,
            "sentences": self.sentences(),
            "remarks": self.remarks(),
            "groups": self.groups,
            "parts": parts,
        }
        write_json(directory / ABOUT, about)
        records = DataFrame(self.records(), dtype=object)
        write_atomically(directory / CSV, records.to_csv(index=False, lineterminator="\n"))
        lines = "".join(f"- {line}\n" for line in [*self.sentences(), *self.remarks(), self.legend])
        write_atomically(directory / MARKDOWN, f"{self.overview().markdown()}\n{lines}")

    def curves(self, part: Part) -> dict[str, Any]:
        """The values of a part's first metric at each length, for every seed of at most MOST_CURVES variants."""
        metric = part.columns[0].number.partition("@")[0]
        clear = [sum(r["part"] == part.name and r["verdict"] in COLOURED for r in some) for _, some in self.rows]
        most = sorted(range(1, len(self.rows)), key=lambda n: -clear[n])[: MOST_CURVES - 1]  # most differences
        drawn = [self.rows[n][0] for n in [0, *sorted(most)]]
        return {"x": "length", "variants": {s.name: s.curve(part.name, metric) for s in drawn}}

    def remarks(self) -> list[str]:
        """Lines about the set, and about each variant where there is a sentence for each."""
        changed = f"not the standard set: {self.set.name} was changed (hash {self.set.hash})"
        own = [] if self.set.is_standard else [changed]
        if self.set.newer:
            own.append(f"set {self.set.name} is an earlier version; set={self.set.newer} finds more differences")
        if self.tuned:
            first, second = f"{self.set.rate:g}", f"{self.set.tuned_rate:g}"
            shared = ", ".join(map(str, sorted(self.rows[0][0].made)))
            own.append(
                f"each part is at its better learning rate, {second} where a line says so, else {first}, by seeds "
                f"{shared}, which all have at both; variants without the seeds of the command at both are not shown"
            )
            own += [f"{s.name}: at a rate of {second}: {', '.join(s.tuned)}" for s, _ in self.rows if s.tuned]
        if len(self.rows) > FEW + 1:
            return own
        own += [f"{s.name}: one seed, so its own spread is unknown" for s, _ in self.rows[1:] if len(s.made) == 1]
        (base, _), *others = self.rows
        seeds = {s.name: ", ".join(map(str, sorted(s.made))) for s, _ in self.rows}
        own += [
            f"{s.name} has seeds {seeds[s.name]} and {base.name} {seeds[base.name]}: the difference uses those of both"
            for s, _ in others
            if s.made.keys() != base.made.keys()
        ]
        return own + [
            f"{standing.name}: {part}: {line}"
            for standing, _ in self.rows
            for part, lines in standing.remarks.items()
            for line in lines
        ]

    def sentences(self) -> list[str]:
        """A sentence for each variant except the baseline; no sentences if there are more than FEW such variants."""
        others = self.rows[1 : FEW + 1] if len(self.rows) <= FEW + 1 else []
        return [
            *(sentence(s.name, self.baseline.name, some) for s, some in others),
            *(decision(name, one) for name, one in self.tries.items()),
        ]

    def document(self, directory: Path, commit: Any) -> dict[str, Any]:
        """The verdict for a program. commit: the state of the code that made it."""
        variants = [
            {
                "name": s.name,
                "variant": s.variant,
                "verdict": verdict_of(some),
                "seeds": sorted(s.made),
                "commits": sorted({str(made.get("commit")) for made in s.made.values()}),
                "history": self.tries.get(s.name),
                "remarks": s.remarks,
                "numbers": [{**r, "verdict": r["verdict"] or None} for r in some],
            }
            for s, some in self.rows[1:]
        ]
        return {
            "run": str(directory),
            "verdict": max((str(one["verdict"]) for one in variants), key=[*CODES].index, default=NO_CLEAR),
            "set": self.set.name,
            "size": self.set.size,
            "hash": self.set.hash,
            "standard": self.set.is_standard,
            "baseline": {"name": self.baseline.name, "seeds": sorted(self.rows[0][0].made)},
            "commit": commit,
            "variants": variants,
            "remarks": self.remarks(),
        }

    def show(self, *, on_output: bool = True) -> None:
        """Print the table, the sentences and the remarks."""
        table = self.overview()
        print_table(table.rich(), on_output=on_output, first_to_leave=table.columns[:1:-1], see=CSV)
        for line in self.sentences():
            (print_result if on_output else print_status)(line)
        for remark in self.remarks():
            print_status(remark)
        print_status(f"{self.legend}; all numbers, with their intervals, are in the file {CSV} of the run")

    @property
    def legend(self) -> str:
        return (
            f"+ is better, - is worse than {self.baseline.name} with the same seeds (p < {SIGNIFICANT} after Holm, "
            "however small; within the trained lengths: by more than the margin), = is equivalent, ! is not tested: "
            "its number within the trained lengths is worse"
        )

    def overview(self) -> Table:
        """A row for each variant, a column for each number.

        A number is marked with + or - if it is significantly better or worse than the number of the baseline, with = if
        it is equivalent, and with ! if it is not tested.
        """
        title = f"standard set {self.set.name}, size {self.set.size}{'' if self.set.is_standard else ', changed'}"
        rows = [
            [Cell(s.name), len(s.made), *(Cell(text(r) + MARKS.get(r["verdict"], ""), r["value"]) for r in some)]
            for s, some in self.rows
        ]
        return Table(title, ["variant", "seeds", *self.groups], rows, names=1)


def verdict_of(records: Sequence[Record]) -> str:
    """The verdict on a variant: worse if any number is, else better if any is and each has a value.

    It is equivalent if all judged numbers are, and else there is no clear difference.
    """
    verdicts = {str(record["verdict"]) for record in records} - {""}
    if WORSE in verdicts:
        return WORSE
    if BETTER in verdicts and NO_VALUE not in verdicts:
        return BETTER
    return EQUIVALENT if verdicts == {EQUIVALENT} else NO_CLEAR


def decision(name: str, one: Mapping[str, Any]) -> str:
    """The sentence about a try: `half: kept, e-value 2.1e+05, needed 126 (try 1)`."""
    return (
        f"{name}: {'kept' if one['kept'] else 'not kept'}, e-value {one['e_value']:.3g}, needed {one['needed']:.3g} "
        f"(try {one['try']}{'' if one['seeds_are_new'] else '; its seeds are those of other tries'}"
        f"{'' if one['same_as'] is None else '; tried before, as ' + one['variant'] + ', and adds no evidence'})"
    )


def text(record: Record) -> str:
    """The mean with three decimals; with one decimal if it is 10 or more."""
    mean = record["value"]
    return "n/a" if mean is None else fixed(mean, 3 if abs(mean) < 10 else 1)


def sentence(name: str, baseline: str, records: Sequence[Record]) -> str:
    """The sentence about a variant: `half against rope: better in counting (+0.82, p 0.003); equivalent in loss.`"""
    of = {verdict: [r for r in records if r["verdict"] == verdict] for verdict in (*CODES, NOT_TESTED, NO_VALUE)}
    parts = [
        f"{verdict} in "
        + ", ".join(
            f"{r['metric']} ({fixed(r['difference'], 3, '+')}, p {shown_p(r['p_holm'] or r['p'])})" for r in of[verdict]
        )
        for verdict in (BETTER, WORSE)
        if of[verdict]
    ]
    parts += [
        f"{verdict} in {', '.join(r['metric'] for r in of[verdict])}"
        for verdict in (EQUIVALENT, NO_CLEAR, NOT_TESTED, NO_VALUE)
        if of[verdict]
    ]
    return f"{name} against {baseline}: {'; '.join(parts)}."


# -- the page


def view(files: RunFiles, records: list[Record]) -> View:
    """The grid of variants and numbers, the curves of all parts, and the numbers with their intervals."""
    about = files.json(ABOUT)
    if not isinstance(about, dict):
        return View([])
    files.remarks.extend(about["remarks"])
    note = (
        f"Numbers are means over all seeds; differences use the seeds shared with {about['baseline']}. A judged number "
        f"is coloured if p < {SIGNIFICANT} after Holm, however small the difference: blue and + mean better, orange "
        "and - mean worse. = is equivalent: neither better nor worse, and the 90 % interval lies within the margin. "
        "! is not tested, whatever its p: the number of the same task within the trained lengths is worse by more than "
        "the margin (orange there if its whole 95 % interval is). Other numbers are not judged. The name of a number "
        "leads to its curves."
    )
    questions = {column["name"]: part["question"] for part in about["parts"] for column in part["columns"]}
    groups = [(group, list(names)) for group, names in groupby(about["groups"], about["groups"].get)]
    rows: dict[str, list[dict[str, str]]] = {}
    for r in records:
        cell = {"text": text(r), "title": f"{r['variant']}: {r['metric']}, {r['unit']}"}
        rows.setdefault(r["variant"], []).append(
            cell | {"kind": r["verdict"].replace(" ", "-") if r["verdict"] in MARKS else ""}
        )
    grid = {"groups": groups, "questions": questions, "rows": list(rows.items())}
    standings = Section("Standings", note=note, part="bench.html.j2", values={"grid": grid})
    note = f"At most {MOST_CURVES} variants are drawn: those with the most significant differences in the part."
    curves = Section("Curves", note=note, panels=panels_of(about), anchor="curves")
    tables = []
    for part in about["parts"]:
        units = [
            f"{c['name']}: {c['unit']}"
            + f", margin {c['margin']}" * bool(c["margin"])
            + f", weight {c.get('weight')}" * (c.get("weight", 1) != 1)
            for c in part["columns"]
        ]
        own = [r for r in records if r["part"] == part["name"]]
        tables.append(sheet(f"{part['name']}: {'; '.join(units)}", list(map(as_compared, own)), folded=True))
    numbers = Section("Numbers", anchor="numbers", tables=tables)
    scope = [f"set {about['set']}, size {about['size']}, hash {about['hash']}"]
    return View([standings, curves, numbers], scope=scope, findings=about["sentences"])


def as_compared(record: Record) -> Record:
    """The record in the form that `report/comparison.py` expects."""
    settings = {"variant": record["variant"], "number": record["metric"], "verdict": record["verdict"]}
    own = ("metric", "n_seeds", "n_pairs", "difference", "difference_low", "difference_high", "p", "p_holm")
    return {"settings": settings, "mean": record["value"], **{key: record[key] for key in own}}


def panels_of(about: Mapping[str, Any]) -> list[Panel]:
    """A panel for each part that was measured at several lengths."""
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
            ticks = sorted({n for line in lines for n in np.asarray(line.x).tolist()})
            found.append(
                Panel(
                    curves["x"], part["columns"][0]["unit"], lines, log="x", title=part["question"], x_ticks=ticks[-5:],
                    possible=(0.0, 1.0) if share else (0.0, None), whole=share,
                    note=f"{part['name'].replace('_', ' ')}: means over the seeds, from the lowest to the highest",
                )
            )  # fmt: skip
    return found
