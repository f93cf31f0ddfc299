"""What an evaluation of a task says: how many examples are right at each length, as records and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from roundround.analysis.intervals import error_widths, wilson
from roundround.model.answers import AnswerScores

Interval = tuple[float, float]


def values(marks: AnswerScores) -> dict[str, float]:
    """The numbers of a measurement by name, and the share of scored targets that are wrong."""
    found = marks.values()
    return found if marks.written else {**found, "error_rate": 1 - found["token_accuracy"]}


def intervals(marks: AnswerScores) -> dict[str, Interval]:
    """95 %, Wilson's: of whole examples, and of as many tokens as tell as much as these, which go right together."""
    low, high = token_interval(marks)
    found, n = marks.values(), independent_examples(marks)
    names = [name for name in ("exact_match", "output_match") if name in found]
    wholes: dict[str, Interval] = {name: wilson(found[name] * n, n) for name in names}
    if marks.written:
        return {**wholes, "string_match": (low, high)}
    return {**wholes, "token_accuracy": (low, high), "error_rate": (1 - high, 1 - low)}


def independent_examples(marks: AnswerScores) -> float:
    """As many as tell as much as those that were drawn: all where none was drawn twice, never more than differ.

    Kish 1965, Survey Sampling, section 11.7: (sum of weights)^2 / sum of their squares.
    """
    return marks["examples"] ** 2 / marks["times_squared"]


def token_interval(marks: AnswerScores) -> Interval:
    """Of the share of right targets: Wilson's, with as many independent ones as would vary as this ratio does.

    How a ratio over different examples varies: Cochran 1977, Sampling Techniques, section 2.11. Few examples tell
    little of that: Korn and Graubard 1998, Survey Methodology 24:193. Where all are right, or none, nothing is seen of
    how they go together, and each example counts once; and no target counts more than once.
    """
    rate, n, n_distinct = marks["hits"] / marks["targets"], independent_examples(marks), marks.n_distinct
    squares = marks["hits_squared"] - 2 * rate * marks["hits_by_targets"] + rate**2 * marks["targets_squared"]
    if n_distinct < 2 or squares <= 1e-9 * marks["targets_squared"]:
        return wilson(rate * n, n)
    variance = squares * n_distinct / (n_distinct - 1) / marks["targets"] ** 2
    surely = (error_widths(10**6) / error_widths(n_distinct)) ** 2
    independent = min(surely * rate * (1 - rate) / variance, n * marks["targets"] / marks["examples"])
    return wilson(rate * independent, independent)


def records(
    by_length: Mapping[int, AnswerScores], contexts: Mapping[int, int], common: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """A record for each number and length, with its interval where it is a share; `context` counts tokens."""
    found = []
    for length, marks in by_length.items():
        where = {
            **common,
            "length": length,
            "context": contexts[length],
            "examples": marks.n_examples,
            "distinct": marks.n_distinct,
        }
        between = intervals(marks)
        for name, value in values(marks).items():
            low_high = dict(zip(("low", "high"), between[name], strict=True)) if name in between else {}
            found.append({"metric": name, **where, "value": value, **low_high})
    return found


def table(
    by_length: Mapping[int, AnswerScores], contexts: Mapping[int, int], trained: Interval, *, title: str
) -> Table:
    """A row for each length; those in training have a star. Examples are counted that differ."""
    written = any(marks.written for marks in by_length.values())
    names = ["exact_match", "string_match" if written else "token_accuracy"]
    if any("output_match" in values(marks) for marks in by_length.values()):
        names.insert(1, "output_match")
    labels = (name.replace("_", " ") for name in names)
    loss = [] if written else ["nats per target"]
    shown = Table("length", "tokens", "distinct examples", *labels, *loss, title=title)
    for length, marks in by_length.items():
        mark = " *" if trained[0] <= length <= trained[1] else ""
        between, found = intervals(marks), values(marks)
        shares = [f"{found[n]:.3f} [{between[n][0]:.3f}, {between[n][1]:.3f}]" for n in names]
        counts = (f"{length:,}{mark}", f"{contexts[length]:,}", f"{marks.n_distinct:,}")
        shown.add_row(*counts, *shares, *(f"{found['nats_per_token']:.4f}" for _ in loss))
    return shown


def table_of_parts(
    by_part: Mapping[str, Mapping[int, AnswerScores]], lengths: Sequence[int], *, part: str, title: str
) -> Table:
    """The exact match of each part of a task, such as an algorithm or a depth, at each length that it has."""
    shown = Table("exact match" if part == "task" else f"exact match by {part}", *map(str, lengths), title=title)
    for name, by_length in by_part.items():
        cells = [f"{by_length[n].values()['exact_match']:.2f}" if n in by_length else "" for n in lengths]
        shown.add_row(name, *cells)
    return shown
