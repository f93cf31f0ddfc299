"""What a figure or table of a paper is here: how it is made again, the one rule by which it is judged, what is kept.

What came of each lies in the run directories of `roundround reproduce`, and beside the page in docs.

Tested by tests/papers/test_figure.py.
"""

from __future__ import annotations

import importlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from roundround.analysis.repetition import Made
from roundround.papers import FIGURES
from roundround.papers.claim import (
    AGREES,
    DIFFERS,
    JUDGED,
    NOT_TOLD_APART,
    SIGN_AGREES,
    CheckedNumber,
    shown,
    worst_of,
)
from roundround.records.directories import all_runs, runs_of, time_of
from roundround.support.files import parse_json, read_text, write_json
from roundround.support.panels import HeatMap, Panel

PAPERS_MODELS = {"gemma-2b": "Gemma 2B", "gemma-7b": "Gemma 7B", "llama-3.1-8b": "Llama 3.1 8B"}


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


@dataclass(frozen=True)
class Outcome:
    """What came of making a figure again.

    ours: its most telling number or two, as text. panels: the figure, in the paper's layout. remark: why it differs,
    what the paper does not say. untested: why nothing is judged, although there are numbers; "" where something is.
    drawn: whether a sketch or a listing is compared with itself.
    """

    ours: str
    comparisons: Sequence[CheckedNumber] = ()
    panels: Mapping[str, HeatMap | Panel] = field(default_factory=dict)
    remark: str = ""
    untested: str = ""
    drawn: bool = False

    @property
    def verdict(self) -> str:
        """That of the worst of its judged numbers."""
        if self.untested:
            return NOT_TESTED
        worst = worst_of(self.comparisons) or NOT_RUN
        return DRAWN if self.drawn and worst not in (DIFFERS, NOT_RUN) else worst


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
    measure: Callable[..., Outcome] | None
    command: str = ""
    minutes: float = 0.2
    model: str | None = None
    needs: str = ""
    trains: bool = False

    def make(self, run: RunVerb, subject: Subject | None) -> Outcome:
        """Make it again. subject: where `model` is not None, the model to take.

        Made of another model in the place of the paper's, its numbers are shown and not judged.
        """
        assert self.measure is not None, "what needs something else is refused before"
        if self.model is None or subject is None:
            return self.measure(run)
        outcome = self.measure(run, subject)
        if subject.is_the_papers:
            return outcome
        comparisons = [shown(c.what, c.ours, c.published) for c in outcome.comparisons]
        untested = f"made of {subject.name}, not of {PAPERS_MODELS[self.model]}"
        return replace(outcome, comparisons=comparisons, untested=untested)


def figures_of(names: Iterable[str]) -> dict[str, Figure]:
    """The figures and tables of these names; only the files that hold them are imported."""
    files = {name: importlib.import_module(f"roundround.papers.figures.{FIGURES[name]}") for name in names}
    return {name: file.FIGURES[name] for name, file in files.items()}


# -- the rule

NOT_TESTED, DRAWN, NOT_RUN = "not tested", "drawn", "not run"
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

    seconds: how long it took, verbs that had run before left out.
    """

    name: str
    verdict: str
    ours: str
    comparisons: Sequence[CheckedNumber]
    remark: str
    untested: str
    model: str | None
    is_the_papers: bool
    runs: Sequence[Made]
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
    """The entries of a folder; none where there is no such file, or a damaged one."""
    entries = []
    try:
        for recorded in parse_json(read_text(directory / ENTRIES)):
            recorded["comparisons"] = [
                CheckedNumber(**c | {key: other if c[key] is None else float(c[key]) for key, other in UNKNOWN.items()})
                for c in recorded["comparisons"]
            ]
            recorded["runs"] = [Made(run["command"], Path(run["directory"]), run["taken"]) for run in recorded["runs"]]
            entries.append(Entry(**recorded | {"ended": time_of(recorded["ended"]).isoformat()}))
        return entries
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return []


def newest_entries(outputs: str) -> dict[str, tuple[Entry, Path]]:
    """What was found last of every figure under `outputs`, and the folder of its picture."""
    runs = all_runs(runs_of(outputs, "reproduce"), "reproduce")
    return newest_of((entry, directory / "figures") for directory, _ in runs for entry in read_entries(directory))


def newest_of(entries: Iterable[tuple[Entry, Path]]) -> dict[str, tuple[Entry, Path]]:
    """The last entry of every figure. What was made of the paper's own model comes before what was made of another, and
    what could not be made replaces nothing.
    """
    found: dict[str, tuple[Entry, Path]] = {}
    for entry, figures in sorted(entries, key=lambda pair: time_of(pair[0].ended)):
        before = found.get(entry.name)
        if before is None or (
            entry.is_the_papers >= before[0].is_the_papers
            and (entry.verdict != NOT_RUN or before[0].verdict == NOT_RUN)
        ):
            found[entry.name] = entry, figures
    return found
