"""Checks of the papers' statements and figures: the numbers, the rule that judges them, and the file of results.

`roundround reproduce` writes the file of results to its run directory; a copy is in docs/results/reproduction.

Tested by tests/papers/test_claims.py, tests/papers/test_figure.py and tests/verbs/test_theory.py.
"""

from __future__ import annotations

import importlib
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from roundround.papers import CLAIMS, FIGURES
from roundround.records.directories import all_runs, runs_of, time_of
from roundround.support.errors import UserError, nearest
from roundround.support.files import write_json
from roundround.support.panels import HeatMap, Panel

AGREES, SIGN_AGREES, NO_CLEAR, DIFFERS = "agrees", "sign agrees", "no clear difference", "differs"
JUDGED = (AGREES, SIGN_AGREES, NO_CLEAR, DIFFERS)  # from best to worst
SHOWN = "not judged"  # the verdict on a number that is not judged
NOT_TESTED, DRAWN, NOT_RUN = "not tested", "plotted only", "not run"  # the other verdicts on a figure
HOLDS, FAILS = "holds", "FAILS"  # the verdicts on a statement


@dataclass(frozen=True)
class CheckedNumber:
    """A number that a check computed, and the interval in which it must lie, ends included.

    low, high: the ends of the interval; infinite if the interval has no end on that side.
    published: the number in the paper, or None if the paper prints none.
    error: half the width of the 95 % interval of the difference between our number and the published one; infinite if
    unknown.
    signed: whether the number is an effect, so that its sign is a direction and 0 means no effect.
    """

    what: str
    ours: float
    low: float
    high: float
    published: float | None = None
    error: float = 0.0
    signed: bool = False

    @property
    def is_judged(self) -> bool:
        return math.isfinite(self.low) or math.isfinite(self.high)

    @property
    def verdict(self) -> str:
        """The verdict according to RULE. A number that is NaN gets DIFFERS: any other verdict would hide an error."""
        if not self.is_judged:
            return SHOWN
        low, high = self.ours - self.error, self.ours + self.error
        if math.isnan(self.ours) or high < self.low or low > self.high:
            return DIFFERS
        if self.low <= low and high <= self.high:
            return AGREES if math.isfinite(self.low) and math.isfinite(self.high) else SIGN_AGREES
        if self.signed and self.published and (low > 0 if self.published > 0 else high < 0):
            return SIGN_AGREES
        return NO_CLEAR

    @property
    def margin(self) -> float:
        """How far the number is from failing: 1 in the middle of the interval, 0 at an end, negative outside.

        If the interval has only one end, the margin is the distance to it, divided by the end's absolute value, or by 1
        if the end is 0.
        """
        room = min(self.ours - self.low, self.high - self.ours)
        if math.isfinite(self.low) and math.isfinite(self.high):
            half = (self.high - self.low) / 2
            return room / half if half else float(room == 0)
        end = self.low if math.isfinite(self.low) else self.high
        return math.inf if math.isinf(end) else room / (abs(end) or 1.0)


def near(
    what: str,
    ours: float,
    expected: float,
    tolerance: float,
    published: float | None = None,
    error: float = 0.0,
    signed: bool = False,
) -> CheckedNumber:
    """A number that must lie within `tolerance` of `expected`."""
    return CheckedNumber(what, float(ours), expected - tolerance, expected + tolerance, published, error, signed)


def as_printed(what: str, ours: float, published: float, tolerance: float, error: float = 0.0) -> CheckedNumber:
    """A number that must equal the published number within `tolerance`."""
    return near(what, ours, published, tolerance, published, error)


def at_least(what: str, ours: float, bound: float, error: float = 0.0) -> CheckedNumber:
    return CheckedNumber(what, float(ours), bound, math.inf, error=error)


def at_most(what: str, ours: float, bound: float, error: float = 0.0) -> CheckedNumber:
    return CheckedNumber(what, float(ours), -math.inf, bound, error=error)


def shown(what: str, ours: float, published: float | None = None, error: float = 0.0) -> CheckedNumber:
    """A number that is printed and not judged."""
    return CheckedNumber(what, float(ours), -math.inf, math.inf, published, error)


@dataclass(frozen=True)
class Finding:
    """The result of checking a statement, or of making a figure again.

    panels: a mapping from title to drawing, in the paper's layout.
    remark: an explanation, such as the reason why a number differs, or a detail that the paper leaves open.
    ours: one or two main numbers of the new figure, as text.
    untested: the reason why the numbers are not judged; "" if they are judged.
    drawn: True if the paper's figure is a sketch or a listing. Nothing is measured for such a figure; it is drawn again
    from its formula.
    """

    comparisons: Sequence[CheckedNumber] = ()
    panels: Mapping[str, HeatMap | Panel] = field(default_factory=dict)
    remark: str = ""
    ours: str = ""
    untested: str = ""
    drawn: bool = False

    @property
    def verdict(self) -> str:
        """The verdict on a figure: the worst verdict of its judged numbers, unless it is untested or plotted only."""
        if self.untested:
            return NOT_TESTED
        worst = max((c.verdict for c in self.comparisons if c.is_judged), key=JUDGED.index, default=NOT_RUN)
        return DRAWN if self.drawn and worst not in (DIFFERS, NOT_RUN) else worst

    @property
    def of_statement(self) -> str:
        """The verdict on a statement: HOLDS if some number is judged and none differs."""
        return FAILS if self.verdict in (NOT_RUN, DIFFERS) else HOLDS

    @property
    def closest(self) -> CheckedNumber:
        """The number with the smallest margin: the nearest to failing, or if some fail, the one that fails most."""
        return min(self.comparisons, key=lambda c: np.nan_to_num(c.margin, nan=-math.inf))


def checks_of(name: str) -> tuple[Callable[[], Finding], Callable[..., Finding] | None]:
    """The two functions that check the statement of this name. Raises UserError if there is no such statement.

    The first checks the paper's construction, in float64 unless stated otherwise. It takes seconds and needs no
    network. Its docstring gives the statement in one sentence, then the formula, then the place in the paper. The
    second, whose name ends in `_of_model`, checks a trained model on texts given as token ids. It is None if the
    statement has no such check.
    """
    if name not in CLAIMS:
        raise UserError(f"no claim '{name}'{nearest(name, CLAIMS)}")
    paper, _, function = name.partition(".")
    module = importlib.import_module(f"roundround.papers.{paper}")
    return getattr(module, function), getattr(module, f"{function}_of_model", None)


# -- figures and tables

# runs `roundround VERB OVERRIDE ...`, or reuses a finished run with the same numbers; returns the run's directory
RunVerb = Callable[..., Path]


@dataclass(frozen=True)
class Subject:
    """The pretrained model with which a figure is made: the paper's own, or another one in its place.

    overrides: the words that choose the model on the command line, such as ("model=hf", "model.path=DIR").
    """

    name: str
    overrides: tuple[str, ...]
    is_the_papers: bool


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure or table of the papers, and how to make it again.

    shows: a description of the figure.
    published: one or two main numbers of the paper, as text.
    measure: the function that makes the figure by running other verbs, or None if the figure cannot be made. Its
    arguments are a RunVerb and, if `model` is given, a Subject.
    command: the command that does the work; "" if `measure` calls functions directly.
    minutes: the time that the figure takes on two CPU cores, if `model` is None.
    model: the name, as in `model=`, of the pretrained model that the figure shows; None if it shows no such model.
    needs: a requirement that `roundround` cannot meet, such as a fine-tuned model; "" if there is none.
    trains: whether models are trained for the figure, on the text that `data=` names.
    """

    shows: str
    published: str
    measure: Callable[..., Finding] | None
    command: str = ""
    minutes: float = 0.2
    model: str | None = None
    needs: str = ""
    trains: bool = False

    def make(self, run: RunVerb, subject: Subject | None) -> Finding:
        """Make the figure again. subject: the model to use, if the figure shows a pretrained model.

        If the subject is not the paper's own model, the numbers are printed and not judged.
        """
        assert self.measure is not None, "a figure that needs something else is refused before"
        if self.model is None or subject is None:
            return self.measure(run)
        found = self.measure(run, subject)
        if subject.is_the_papers:
            return found
        comparisons = [shown(c.what, c.ours, c.published) for c in found.comparisons]
        papers = {"gemma-2b": "Gemma 2B", "gemma-7b": "Gemma 7B", "llama-3.1-8b": "Llama 3.1 8B"}[self.model]
        return replace(found, comparisons=comparisons, untested=f"made of {subject.name}, not of {papers}")


def figures_of(names: Iterable[str]) -> dict[str, Figure]:
    """The figures and tables of these names; only the modules that define them are imported."""
    files = {name: importlib.import_module(f"roundround.papers.figures.{FIGURES[name]}") for name in names}
    return {name: file.FIGURES[name] for name, file in files.items()}


# -- the rule, for figures and statements

LEARNED = 0.99  # a lower exact match within the trained lengths makes longer ones meaningless: docs/results/length.md

RULE = f"""Each number is judged by the 95 % interval of its difference from the published value; the interval
includes the error of the published value if that is known. The margin stands beside the number. The margins were
written down with this rule, from what the papers claim; most numbers of the page were known by then.

- *{AGREES}*: the whole interval is within the margin.
- *{DIFFERS}*: the whole interval is outside it.
- *{SIGN_AGREES}*: neither, but the whole interval of an effect lies on the published side of 0. If the paper states
  a direction and no number, no better verdict is possible.
- *{NO_CLEAR}*: in every other case, or if the number has no known interval.

An item gets the verdict of its worst number, in the order *{AGREES}*, *{SIGN_AGREES}*, *{NO_CLEAR}*,
*{DIFFERS}*. It is *{NOT_TESTED}* if another model stands in for the paper's, or if the exact match of
a task is below {LEARNED} within its trained lengths; *{DRAWN}* if a sketch or a listing is compared with itself;
*{NOT_RUN}* otherwise. Only *{DIFFERS}* makes `roundround reproduce` end with exit code 1.
"""


def count_verdicts(verdicts: Iterable[str]) -> str:
    """The count of each verdict, as text: `agrees 1, sign agrees 5, ...`."""
    found = Counter(verdicts)
    return ", ".join(f"{name} {found[name]}" for name in (*JUDGED, NOT_TESTED, DRAWN, NOT_RUN) if found[name])


# -- what is kept

ENTRIES = "outcomes.json"
UNKNOWN = {"ours": math.nan, "low": -math.inf, "high": math.inf, "error": math.inf}  # what null in the file means


@dataclass(frozen=True)
class Entry:
    """The result of making a figure, as `outcomes.json` keeps it.

    model: the name of the pretrained model that was used, or None.
    figure: the name of the picture in the folder `figures` of the run directory, or None.
    runs: the runs that were reused or started for the figure (`Made`).
    seconds: the time that the figure took; the time of reused runs is not included.
    """

    name: str
    verdict: str
    ours: str
    comparisons: Sequence[CheckedNumber]
    remark: str
    untested: str
    model: str | None
    is_the_papers: bool
    runs: Sequence[Any]
    figure: str | None
    seconds: float
    ended: str


def write_entries(entries: Sequence[Entry], directory: Path) -> None:
    """Write entries into a folder. NaN and infinite numbers become null, because json has no such numbers."""
    recorded = [asdict(entry) for entry in entries]
    for comparison in (c for entry in recorded for c in entry["comparisons"]):
        comparison.update({k: None for k, v in comparison.items() if isinstance(v, float) and not math.isfinite(v)})
    write_json(directory / ENTRIES, recorded)


def read_entries(directory: Path) -> list[Entry]:
    """The entries in a folder's `outcomes.json`; [] if there is no such file."""
    path, entries = directory / ENTRIES, []
    for recorded in json.loads(path.read_text(encoding="utf-8")) if path.is_file() else ():
        comparisons = [
            CheckedNumber(**c | {key: other if c[key] is None else float(c[key]) for key, other in UNKNOWN.items()})
            for c in recorded["comparisons"]
        ]
        entries.append(Entry(**recorded | {"comparisons": comparisons}))
    return entries


def newest_entries(outputs: str) -> dict[str, tuple[Entry, Path]]:
    """For every figure, the entry under `outputs` that `newest_of` prefers, and the folder of the entry's picture."""
    found: list[tuple[Entry, Path]] = []
    for directory, _ in all_runs(runs_of(outputs, "reproduce"), "reproduce"):
        with suppress(ValueError, TypeError, KeyError):  # a file of an older version, or incomplete
            found += [(entry, directory / "figures") for entry in read_entries(directory)]
    return newest_of(found)


def newest_of(entries: Iterable[tuple[Entry, Path]]) -> dict[str, tuple[Entry, Path]]:
    """For every figure, its newest entry, and the folder of the entry's picture.

    Entries made with the paper's own model are preferred to entries made with another model. An entry with the verdict
    NOT_RUN is used only if the figure has no other entry.
    """
    ranked = sorted(entries, key=lambda e: (e[0].verdict != NOT_RUN, e[0].is_the_papers, time_of(e[0].ended)))
    return {entry.name: (entry, figures) for entry, figures in ranked}
