"""What a statement or a figure of the papers is here: its numbers, the one rule that judges them, what is kept.

What came of each figure lies in the run directories of `roundround reproduce`, and beside the page in docs.

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

AGREES, SIGN_AGREES, NOT_TOLD_APART, DIFFERS = "agrees", "sign agrees", "not told apart", "differs"
JUDGED = (AGREES, SIGN_AGREES, NOT_TOLD_APART, DIFFERS)  # from best to worst
SHOWN = "shown"  # the verdict on a number that is not judged
NOT_TESTED, DRAWN, NOT_RUN = "not tested", "drawn", "not run"  # the other verdicts on a figure
HOLDS, FAILS = "holds", "FAILS"  # the verdicts on a statement


@dataclass(frozen=True)
class CheckedNumber:
    """A number that a check computed, and the interval in which it must lie, ends included.

    published: the paper's number, where it prints one. An end is infinite where there is none. error: for a measured
    number, half of the 95 % interval of its difference from the published one, infinite where that is not known.
    signed: whether 0 means no effect.
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
        """By the one rule, RULE. NaN differs, because it would hide what is broken."""
        if not self.is_judged:
            return SHOWN
        low, high = self.ours - self.error, self.ours + self.error
        if math.isnan(self.ours) or high < self.low or low > self.high:
            return DIFFERS
        if self.low <= low and high <= self.high:
            return AGREES if math.isfinite(self.low) and math.isfinite(self.high) else SIGN_AGREES
        if self.signed and self.published and (low > 0 if self.published > 0 else high < 0):
            return SIGN_AGREES
        return NOT_TOLD_APART

    @property
    def margin(self) -> float:
        """How far from failing: 1 in the middle of the interval, 0 at an end, negative outside.

        Where there is one end alone, the distance to it as a share of the end (of 1 where it is 0).
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
    """Must lie within `tolerance` of `expected`."""
    return CheckedNumber(what, float(ours), expected - tolerance, expected + tolerance, published, error, signed)


def as_printed(what: str, ours: float, published: float, tolerance: float, error: float = 0.0) -> CheckedNumber:
    """Must be the paper's number, within `tolerance` for its rounding."""
    return near(what, ours, published, tolerance, published, error)


def at_least(what: str, ours: float, bound: float, error: float = 0.0) -> CheckedNumber:
    return CheckedNumber(what, float(ours), bound, math.inf, error=error)


def at_most(what: str, ours: float, bound: float, error: float = 0.0) -> CheckedNumber:
    return CheckedNumber(what, float(ours), -math.inf, bound, error=error)


def shown(what: str, ours: float, published: float | None = None, error: float = 0.0) -> CheckedNumber:
    """A number that is shown and not judged."""
    return CheckedNumber(what, float(ours), -math.inf, math.inf, published, error)


@dataclass(frozen=True)
class Finding:
    """What came of the check of a statement, or of making a figure again.

    panels: the figure, in the paper's layout; a statement has one where a figure or table of the papers shows it.
    remark: why it differs, what the paper does not say. ours: a figure's most telling number or two, as text. untested:
    why nothing is judged, although there are numbers; "" where something is. drawn: whether a sketch or a listing is
    compared with itself.
    """

    comparisons: Sequence[CheckedNumber] = ()
    panels: Mapping[str, HeatMap | Panel] = field(default_factory=dict)
    remark: str = ""
    ours: str = ""
    untested: str = ""
    drawn: bool = False

    @property
    def verdict(self) -> str:
        """On a figure: that of the worst of its judged numbers."""
        if self.untested:
            return NOT_TESTED
        worst = max((c.verdict for c in self.comparisons if c.is_judged), key=JUDGED.index, default=NOT_RUN)
        return DRAWN if self.drawn and worst not in (DIFFERS, NOT_RUN) else worst

    @property
    def of_statement(self) -> str:
        """The verdict on a statement: HOLDS where some number is judged and none differs."""
        return FAILS if self.verdict in (NOT_RUN, DIFFERS) else HOLDS

    @property
    def closest(self) -> CheckedNumber:
        """The number that is nearest to failing, or fails most."""
        return min(self.comparisons, key=lambda c: np.nan_to_num(c.margin, nan=-math.inf))


def checks_of(name: str) -> tuple[Callable[[], Finding], Callable[..., Finding] | None]:
    """The functions that check the statement of this name. Raises UserError if there is none.

    The first checks the paper's construction, in float64 unless stated otherwise. It takes seconds and needs no
    network. Its docstring gives the statement in one sentence, then the formula, then the place in the paper. The
    second has the same name with `_of_model` and checks a trained model on texts given as token ids; None if there is
    no such check.
    """
    if name not in CLAIMS:
        raise UserError(f"no claim '{name}'{nearest(name, CLAIMS)}")
    paper, _, function = name.partition(".")
    module = importlib.import_module(f"roundround.papers.{paper}")
    return getattr(module, function), getattr(module, f"{function}_of_model", None)


# -- figures and tables

# runs `roundround VERB OVERRIDE ...`, or finds the finished run of the same numbers; returns its directory
RunVerb = Callable[..., Path]


@dataclass(frozen=True)
class Subject:
    """The model that a figure of a pretrained model is made of: the paper's own, or another in its place.

    overrides: how it is given on the command line, such as ("model=hf", "model.path=DIR").
    """

    name: str
    overrides: tuple[str, ...]
    is_the_papers: bool


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure or table.

    shows: what it is about. published: the paper's most telling number or two, as text. measure: the function that
    makes it from what other verbs do; it takes the model too where `model` is one; None where it cannot be made.
    command: the verb that does the work; "" where this program's own functions are called directly. minutes: of two CPU
    cores, without a model. model: the pretrained model that it is about, by its name in `model=`; None for none. needs:
    what no machine like this has; "" where it can be made here, given the model. trains: whether it reads `data=`, a
    text to train on.
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
        """Make it again. subject: where `model` is not None, the model to take.

        Made of another model in the place of the paper's, its numbers are shown and not judged.
        """
        assert self.measure is not None, "what needs something else is refused before"
        if self.model is None or subject is None:
            return self.measure(run)
        found = self.measure(run, subject)
        if subject.is_the_papers:
            return found
        comparisons = [shown(c.what, c.ours, c.published) for c in found.comparisons]
        papers = {"gemma-2b": "Gemma 2B", "gemma-7b": "Gemma 7B", "llama-3.1-8b": "Llama 3.1 8B"}[self.model]
        return replace(found, comparisons=comparisons, untested=f"made of {subject.name}, not of {papers}")


def figures_of(names: Iterable[str]) -> dict[str, Figure]:
    """The figures and tables of these names; only the files that hold them are imported."""
    files = {name: importlib.import_module(f"roundround.papers.figures.{FIGURES[name]}") for name in names}
    return {name: file.FIGURES[name] for name, file in files.items()}


# -- the rule, of statements too

LEARNED = 0.99  # exact match within the trained lengths, below which longer ones say nothing: docs/results/length.md

RULE = f"""Each number is judged by the 95 % interval of its difference from the published value; the error of the
published value is taken in where it is known. The margin stands beside the number. The margins were written down with
this rule, from what the papers claim; most numbers of the page were known by then.

- *{AGREES}*: the whole interval is within the margin.
- *{DIFFERS}*: the whole interval is outside it.
- *{SIGN_AGREES}*: neither, but the interval of an effect leaves out 0, on the published side. Where the paper states a
  direction and no number, more than this is not possible.
- *{NOT_TOLD_APART}*: anything else, also a number whose interval is not known.

An item gets the verdict of its worst number, in the order *{AGREES}*, *{SIGN_AGREES}*, *{NOT_TOLD_APART}*,
*{DIFFERS}*. It is *{NOT_TESTED}* where another pretrained model stands in for the paper's, or where the exact match of
a task is below {LEARNED} within its trained lengths; *{DRAWN}* where a sketch or a listing is compared with itself;
*{NOT_RUN}* otherwise. Only *{DIFFERS}* makes `roundround reproduce` end with exit code 1.
"""


def count_verdicts(verdicts: Iterable[str]) -> str:
    """How many got each verdict: `agrees 1, sign agrees 5, ...`."""
    found = Counter(verdicts)
    return ", ".join(f"{name} {found[name]}" for name in (*JUDGED, NOT_TESTED, DRAWN, NOT_RUN) if found[name])


# -- what is kept

ENTRIES = "outcomes.json"
UNKNOWN = {"ours": math.nan, "low": -math.inf, "high": math.inf, "error": math.inf}  # what stands in the file as null


@dataclass(frozen=True)
class Entry:
    """What came of a figure. model: of a figure of a pretrained model; figure: its name in the run's figures, or None.

    runs: those that it took or started, by `analysis/repetition.py`. seconds: how long it took, runs that were there
    left out.
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
    """Into a folder; infinite ends of intervals as null, which every reader of json knows."""
    recorded = [asdict(entry) for entry in entries]
    for comparison in (c for entry in recorded for c in entry["comparisons"]):
        comparison.update({k: None for k, v in comparison.items() if isinstance(v, float) and not math.isfinite(v)})
    write_json(directory / ENTRIES, recorded)


def read_entries(directory: Path) -> list[Entry]:
    """The entries of a folder; none where it has no such file."""
    path, entries = directory / ENTRIES, []
    for recorded in json.loads(path.read_text(encoding="utf-8")) if path.is_file() else ():
        comparisons = [
            CheckedNumber(**c | {key: other if c[key] is None else float(c[key]) for key, other in UNKNOWN.items()})
            for c in recorded["comparisons"]
        ]
        entries.append(Entry(**recorded | {"comparisons": comparisons}))
    return entries


def newest_entries(outputs: str) -> dict[str, tuple[Entry, Path]]:
    """What was found last of every figure under `outputs`, and the folder of its picture."""
    found: list[tuple[Entry, Path]] = []
    for directory, _ in all_runs(runs_of(outputs, "reproduce"), "reproduce"):
        with suppress(ValueError, TypeError, KeyError):  # what an older version wrote, or nothing whole
            found += [(entry, directory / "figures") for entry in read_entries(directory)]
    return newest_of(found)


def newest_of(entries: Iterable[tuple[Entry, Path]]) -> dict[str, tuple[Entry, Path]]:
    """The last entry of every figure. What was made of the paper's own model comes before what was made of another, and
    what could not be made replaces nothing.
    """
    ranked = sorted(entries, key=lambda e: (e[0].verdict != NOT_RUN, e[0].is_the_papers, time_of(e[0].ended)))
    return {entry.name: (entry, figures) for entry, figures in ranked}
