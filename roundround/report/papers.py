"""The verdicts on the statements and the reproduced figures of the papers, as lines, tables, pages and drawings.

Tested by tests/verbs/test_theory.py and tests/verbs/test_reproduce.py.
"""

from __future__ import annotations

import math
import re
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from roundround.config.options import conf_dir
from roundround.config.verb import FigureStyle
from roundround.papers import CLAIMS
from roundround.papers.claim import (
    DIFFERS,
    FAILS,
    HOLDS,
    JUDGED,
    NOT_RUN,
    RULE,
    SHOWN,
    CheckedNumber,
    Entry,
    Figure,
    Finding,
    checks_of,
    count_verdicts,
    newest_of,
    read_entries,
    write_entries,
)
from roundround.report.drawing.figures import save_drawing
from roundround.support import __version__
from roundround.support.console import print_status, print_table
from roundround.support.files import write_atomically
from roundround.support.markdown import markdown_table
from roundround.support.panels import Drawing, HeatMap, Panel


def interval(comparison: CheckedNumber) -> str:
    """The interval in which the number had to lie, in words; "" if the number is not judged."""
    low, high = comparison.low, comparison.high
    if not comparison.is_judged:
        return ""
    if not math.isfinite(low):
        return f"at most {number(high)}"
    if not math.isfinite(high):
        return f"at least {number(low)}"
    if low == high:
        return f"must be {number(low)}"
    middle, half = (low + high) / 2, (high - low) / 2
    if half < 0.001 * abs(middle):  # its ends would read alike
        return f"must be {number(middle)} within {half:.1g}"
    return f"from {number(low)} to {number(high)}"


def number(value: float | None) -> str:
    """A number as text; "" for None."""
    if value is None:
        return ""
    return f"{value:,.0f}" if float(value).is_integer() and abs(value) < 1e9 else f"{value:.4g}"


# -- statements: findings by label, which is the statement's name, followed by the tested model in parentheses, if any


def title(label: str) -> str:
    return CLAIMS[label.partition(" ")[0]]


def line(label: str, finding: Finding) -> str:
    """A line with the verdict, the statement and the number that is nearest to failing."""
    closest = finding.closest
    what = f"{closest.what}: {number(closest.ours)} ({interval(closest)})"
    return f"{finding.of_statement}  {label}: {title(label)}; {what}"


def counted(findings: Mapping[str, Finding]) -> str:
    """How many statements hold and how many fail."""
    found = Counter(finding.of_statement for finding in findings.values())
    return f"{found[HOLDS]} hold, {found[FAILS]} fail"


def verdict(comparison: CheckedNumber) -> str:
    """The verdict on a number of a statement: a number that differs fails; any other number that is judged holds."""
    return {DIFFERS: FAILS, SHOWN: SHOWN}.get(comparison.verdict, HOLDS)


def statement_records(findings: Mapping[str, Finding]) -> list[dict[str, Any]]:
    """A record for every number of every check."""
    return [
        {"metric": "comparison", "claim": label, "what": c.what, "value": c.ours, "low": c.low, "high": c.high,
         "published": c.published, "margin": c.margin, "verdict": verdict(c)}
        for label, finding in findings.items() for c in finding.comparisons
    ]  # fmt: skip


def show_statements(findings: Mapping[str, Finding]) -> None:
    """Print a table with a row for each statement."""
    table = Table("claim", "says", "numbers", "margin", "verdict", title="theory")
    for label, finding in findings.items():
        numbers, margin = str(len(finding.comparisons)), f"{finding.closest.margin:.2f}"
        table.add_row(label, title(label), numbers, margin, finding.of_statement)
    margin = (
        "1 in the middle of the allowed interval, 0 at an end, negative outside; if the interval has only one end, "
        "the distance from this end as a share of it"
    )
    table.caption = f"{counted(findings)}\nmargin: {margin}"
    print_table(table, first_to_leave=["numbers", "margin"])


def write_statements(findings: Mapping[str, Finding], path: Path) -> None:
    """Write a page with every statement, its formula, its source and all its numbers."""
    parts = [f"# Theory\n\n{counted(findings)}.\n"]
    for label, finding in findings.items():
        words = checks_of(label.partition(" ")[0])[0].__doc__ or ""
        statement, *formula, source = [" ".join(part.split()) for part in words.split("\n\n") if part.strip()]
        rows = [(c.what, number(c.ours), interval(c), number(c.published), verdict(c)) for c in finding.comparisons]
        parts += [
            f"\n## {label}: {finding.of_statement}\n\n{statement}\n\n    {'; '.join(formula)}\n\n{source}\n",
            *([f"\n{finding.remark}\n"] if finding.remark else []),
            "\n",
            markdown_table(("number", "ours", "allowed", "published", "verdict"), rows),
        ]
    write_atomically(path, "".join(parts))


def draw_statement(label: str, finding: Finding, folder: Path, style: FigureStyle) -> None:
    """Draw the statement's figure, if it has one. The figure can be read without colour."""
    if finding.panels:
        name = "_".join(re.findall(r"[\w.-]+", label))
        save_drawing(Drawing(name, f"{label}: {title(label)}", list(finding.panels.values())), folder, style)


# -- figures

PAPERS = {
    "rope": "Round and Round We Go! What makes Rotary Positional Encodings useful? (arXiv 2410.06205)",
    "softmax": "softmax is not enough (for sharp out-of-distribution) (arXiv 2410.01104)",
}
HEAD = """# The papers' figures and tables, made again

This page is written by `roundround reproduce --write-docs` from what was run; do not edit it. `roundround reproduce
NAME` makes an item again, `roundround reproduce` lists what each needs. A figure of Gemma or Llama uses their weights
if they are in the cache of the Hugging Face hub; otherwise it uses another model, here Gemma 3 270M
([gemma3.md](gemma3.md)).

An item's name links to its figure. Pairs are counted from 1. [outcomes.json](reproduction/outcomes.json), written by
the same command, has all numbers of all items; below the tables are the three with the worst verdicts of each judged
item.
"""
ON_PAGE = 3  # the number of a judged item's numbers on the page


def needs(item: Figure) -> str:
    """What an item needs (time, weights, ...), in a few words."""
    if item.needs:
        return item.needs
    if item.model is not None:
        return f"weights of {item.model}"
    if item.minutes < 1:
        return "seconds"
    return f"{item.minutes:.0f} minutes of CPU" if item.minutes < 90 else f"{item.minutes / 60:.1f} hours of CPU"


def show_all(items: Mapping[str, Figure], found: Mapping[str, tuple[Entry, Path]]) -> None:
    """Print a table of every item with its last outcome."""
    columns = ("item", "shows", "command", "needs", "published", "ours", "verdict")
    table = Table(*columns, title="figures and tables of the papers")
    entries = {name: found[name][0] for name in items if name in found}
    for name, item in items.items():
        table.add_row(name, item.shows, item.command, needs(item), item.published, *last_of(entries.get(name)))
    table.columns[2].no_wrap = True  # a command is copied
    print_table(table, first_to_leave=["command", "needs", "published", "ours"])
    print_status(
        "roundround reproduce NAME makes one of them, roundround reproduce all makes every one that this machine can "
        "make"
    )
    print_status(summary(items, entries))


def last_of(entry: Entry | None) -> tuple[str, str]:
    """Our outcome of a figure or table in words, and its verdict; "" and NOT_RUN if there is no outcome yet (None)."""
    return ("", NOT_RUN) if entry is None else (ours_of(entry), entry.verdict)


def summary(items: Mapping[str, Figure], entries: Mapping[str, Entry]) -> str:
    """How many items have each verdict, how many show a pretrained model, and how many of these use the paper's own."""
    counted = count_verdicts(last_of(entries.get(name))[1] for name, item in items.items())
    of_models = [entries.get(name) for name, item in items.items() if item.model is not None]
    own = sum(entry is not None and entry.is_the_papers for entry in of_models)
    return (
        f"{len(items)} figures and tables: {counted}. {len(of_models)} of them show a pretrained model; "
        f"measured on the paper's own model: {own or 'none'}."
    )


def show(items: Mapping[str, Figure], entries: Sequence[Entry]) -> None:
    """Print a table of the items that this run made, and a line for every number that differs."""
    table = Table("item", "published", "ours", "numbers", "verdict", title="reproduced")
    for entry in entries:
        numbers = count_verdicts(c.verdict for c in entry.comparisons if c.is_judged)
        table.add_row(entry.name, items[entry.name].published, ours_of(entry), numbers, entry.verdict)
    print_table(table)
    for entry in entries:
        for c in entry.comparisons:
            if c.is_judged and c.verdict == DIFFERS:
                print_status(f"{entry.name}: {c.what}: {with_error(c)} ({interval(c)})")


def ours_of(entry: Entry) -> str:
    """The outcome; the model's name follows if another model than the paper's was used."""
    return entry.ours if entry.is_the_papers else f"{entry.ours} (of {entry.model})"


def with_error(comparison: CheckedNumber) -> str:
    """A number, followed by half the width of its 95 % interval if it has one."""
    if not comparison.is_judged or comparison.error == 0:
        return number(comparison.ours)
    error = f"± {number(comparison.error)}" if np.isfinite(comparison.error) else "(interval unknown)"
    return f"{number(comparison.ours)} {error}"


def tell_plan(items: Mapping[str, Figure], missing: Mapping[str, str]) -> None:
    """Print how long the run may take, and which items are left out."""
    here = {name: item for name, item in items.items() if name not in missing}
    commands = {item.command or name: item.minutes for name, item in here.items()}  # one run may serve several
    minutes = sum(commands.values())
    long = "seconds" if minutes < 2 else f"{minutes / 60:.1f} hours" if minutes > 90 else f"{minutes:.0f} minutes"
    print_status(f"items: {len(here)}; {long} on two cores, less if some runs are finished")
    for name, why in missing.items():
        print_status(f"{name} is left out: it {why}")


def records(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """Records of every item's verdict and of its numbers."""
    found: list[dict[str, Any]] = []
    for entry in entries:
        found.append({"metric": "verdict", "item": entry.name, "value": entry.verdict})
        found += [
            {"metric": "comparison", "item": entry.name, "what": c.what, "value": c.ours, "low": c.low, "high": c.high,
             "published": c.published, "error": c.error, "verdict": c.verdict}
            for c in entry.comparisons
        ]  # fmt: skip
    return found


# -- the figure


def draw(entry: Entry, item: Figure, panels: Mapping[str, HeatMap | Panel], folder: Path, style: FigureStyle) -> None:
    """Draw all panels of an item on a grid. The figure can be read without colour."""
    if panels:
        note = "" if entry.is_the_papers else f"Of {entry.model}, in the place of the paper's model."
        named = [replace(panel, title=name) for name, panel in panels.items()]
        save_drawing(Drawing(entry.name, f"{entry.name}: {item.shows}", named, note=note), folder, style)


# -- the page


DOCS = conf_dir().parent / "docs" / "results"  # of the checkout that this code runs from


def write_docs(items: Mapping[str, Figure], found: Mapping[str, tuple[Entry, Path]]) -> Path:
    """Write the page of all items and its figures; returns its path.

    The outcomes are stored beside the figures. An item that this machine has not made keeps its stored outcome.
    """
    folder = DOCS / "reproduction"
    folder.mkdir(exist_ok=True)
    every = newest_of([*((entry, folder) for entry in read_entries(folder)), *found.values()])
    every = {name: every[name] for name in items if name in every}
    for entry, figures in every.values():
        if entry.figure is not None and figures != folder:
            shutil.copyfile(figures / f"{entry.figure}.svg", folder / f"{entry.figure}.svg")
    entries = {name: replace(entry, runs=[]) for name, (entry, _) in every.items()}  # of this machine
    write_entries(list(entries.values()), folder)
    path = DOCS / "reproduction.md"
    write_atomically(path, page_of(items, entries))
    return path


def page_of(items: Mapping[str, Figure], entries: Mapping[str, Entry]) -> str:
    """The page of all items, in Markdown: a row for each item, and a section for each item that is judged."""
    parts = [HEAD, f"\n**{summary(items, entries)}**\n\n", RULE, f"\nWritten by version {__version__}.\n"]
    for paper, title in PAPERS.items():
        of_paper = {name: item for name, item in items.items() if name.startswith(f"{paper}.")}
        rows = []
        for name, item in of_paper.items():
            entry = entries.get(name)
            linked = f"[`{name}`](reproduction/{entry.figure}.svg)" if entry and entry.figure else f"`{name}`"
            rows.append((linked, item.shows, last_of(entry)[1], item.published, entry.ours if entry else ""))
        parts += [f"\n## {title}\n\n", markdown_table(("item", "shows", "verdict", "published", "ours"), rows)]
        parts += [section(entries[name]) for name in of_paper if name in entries and entries[name].verdict in JUDGED]
    return "".join(parts)


def section(entry: Entry) -> str:
    """A judged item: its remark, and those of its numbers that decide its verdict, from the worst verdict on."""
    judged = sorted((c for c in entry.comparisons if c.is_judged), key=lambda c: -JUDGED.index(c.verdict))
    published = {c.what: f"; paper: {number(c.published)}" for c in judged if c.published is not None}
    lines = [
        f"- {c.what}: {with_error(c)} ({interval(c)}{published.get(c.what, '')}): {c.verdict}\n"
        for c in judged[:ON_PAGE]
    ]
    counts = count_verdicts(c.verdict for c in judged)
    return f"\n### {entry.name}: {entry.verdict}\n\n{entry.remark} Judged: {counts}.\n\n{''.join(lines)}"
