"""A comparison: which settings vary, the mean over seeds of each, and differences to a baseline paired by seed."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from roundround.analysis.baseline import Baseline, baseline_of, values_of
from roundround.analysis.groups import Group, groups_of, order
from roundround.analysis.intervals import half_width, holm, mean_of, paired_p
from roundround.analysis.quality import rank
from roundround.analysis.trials import Cell, LongTable, Trial
from roundround.support.errors import UserError, nearest

STATISTICS = ("mean", "low", "high")
OF_THE_DIFFERENCE = ("difference", "difference_low", "difference_high", "p", "p_holm", "p_is_bound")


@dataclass(eq=False)
class Row:
    """A metric at a place for one setting: mean over its seeds, and the difference to the baseline, paired by seed.

    low, high and their like bound 95 % t intervals. None: there is no such number.
    """

    metric: str
    place: dict[str, Any]
    group: Group
    seeds: list[Any]
    values: list[float]
    baseline: Group | None
    pairs: list[tuple[float, float]]  # of this setting and of the baseline, by seed
    mean: float = np.nan
    low: float | None = None
    high: float | None = None
    difference: float | None = None
    difference_low: float | None = None
    difference_high: float | None = None
    p: float | None = None
    p_holm: float | None = None
    p_is_bound: bool = False  # of both

    @property
    def verb(self) -> str | None:
        return self.group.verb

    @property
    def settings(self) -> dict[str, Any]:
        return self.group.settings

    @property
    def n_seeds(self) -> int:
        return len(self.values)

    def record(self) -> dict[str, Any]:
        """The row as `results.json` has it; report/comparison_records.py explains the fields."""
        return {
            "metric": self.metric,
            "verb": self.verb,
            **self.place,
            "settings": self.settings,
            **{name: getattr(self, name) for name in STATISTICS},
            "n_seeds": self.n_seeds,
            "seeds": self.seeds,
            "values": self.values,
            "baseline": None if self.baseline is None else self.baseline.settings,
            "n_pairs": len(self.pairs),
            **{name: getattr(self, name) for name in OF_THE_DIFFERENCE},
            "tokens_per_second": self.group.tokens_per_second,
            **self.group.peak_memory,
        }


@dataclass(eq=False)
class Comparison:
    """Runs compared. settings: those that vary, each with its values. table: a row for each metric, place and setting.

    groups: the settings with the runs behind them. baseline: what was asked for, or taken; None for none. remarks: what
    a reader has to know. skipped: (run directory, why) of runs that are not in the numbers.
    """

    settings: dict[str, list[Any]]
    groups: list[Group]
    table: list[Row]
    baseline: Baseline | None
    remarks: list[str] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)

    @property
    def of_tasks(self) -> bool:
        """Whether a length is that of a task, which counts what its paper counts, and not tokens."""
        return any(group.learns_a_task for group in self.groups)

    def records(self) -> list[dict[str, Any]]:
        """The rows as `results.json` has them."""
        return [row.record() for row in self.table]

    def data_frame(self) -> Any:
        """The rows as a DataFrame of pandas, with a column for each setting that varies and for each place."""
        import pandas

        flat = []
        for row in self.table:
            record = row.record()
            baseline = None if row.baseline is None else row.baseline.name
            flat.append({**record.pop("settings"), **record, "baseline": baseline})
        return pandas.DataFrame(flat)


def comparison_of(table: LongTable, baseline: Sequence[str] = (), metrics: Sequence[str] = ()) -> Comparison:
    """The comparison of the trials of a long table, without remarks.

    baseline: as it is typed, such as ["pe=rope"]; none for what `baseline_of` takes, ["none"] for none. metrics: those
    to compare, none for all. Raises UserError for a metric that was not measured, or a baseline that matches nothing.
    """
    by_verb: dict[str | None, list[Trial]] = defaultdict(list)
    for trial in table.trials:
        by_verb[trial.verb].append(trial)
    groups = {verb: groups_of(trials) for verb, trials in by_verb.items()}
    everyone = [group for some in groups.values() for group in some]
    measured = {metric for group in everyone for metric, _ in group.numbers}
    for metric in metrics:
        if metric not in measured:
            raise UserError(f"metric={metric} was not measured{nearest(metric, measured)}")
    chosen = baseline_of(baseline, groups)
    rows = [row for some in groups.values() for row in rows_of(some, chosen, metrics)]
    fill(rows)
    correct(rows, groups, table.not_finite)
    return Comparison(values_of(everyone), everyone, rows, chosen, skipped=table.skipped)


def rows_of(groups: Sequence[Group], baseline: Baseline | None, metrics: Sequence[str]) -> Iterable[Row]:
    """The rows of the groups of one verb, without statistics: by metric, then by place, then by setting."""
    met = [group for group in groups if baseline is not None and baseline.is_met(group)]
    partner = {id(group): baseline.of(group, met) if baseline is not None else None for group in groups}
    for metric, place in cells_of(groups, metrics):
        for group in groups:
            by_seed = group.numbers.get((metric, place))
            if by_seed is None:
                continue
            other = partner[id(group)]
            other = None if other is group else other
            of_other = {} if other is None else other.numbers.get((metric, place), {})
            seeds = sorted(by_seed, key=order)
            pairs = [(by_seed[seed], of_other[seed]) for seed in seeds if seed in of_other]
            yield Row(metric, dict(place), group, seeds, [by_seed[seed] for seed in seeds], other, pairs)


def cells_of(groups: Sequence[Group], metrics: Sequence[str]) -> list[Cell]:
    """What was measured, the most telling metrics first, places in order."""
    cells = dict.fromkeys(cell for group in groups for cell in group.numbers if not metrics or cell[0] in metrics)
    first_seen = {metric: n for n, metric in enumerate(dict.fromkeys(metric for metric, _ in cells))}

    def place_in_table(cell: Cell) -> tuple[Any, ...]:
        metric, place = cell
        return rank(metric), first_seen[metric], len(place), [(key, order(value)) for key, value in place]

    return sorted(cells, key=place_in_table)


def fill(rows: Sequence[Row]) -> None:
    """Give rows their statistics, all those with equally many seeds at once."""
    for some in alike(rows, lambda row: len(row.values)):
        values_SR = np.array([row.values for row in some]).T
        for row, mean, half in zip(some, mean_of(values_SR), half_width(values_SR), strict=True):
            row.mean = float(mean)
            row.low, row.high = bounds(mean, half)
    for some in alike([row for row in rows if row.pairs], lambda row: len(row.pairs)):
        pairs_SR2 = np.array([row.pairs for row in some]).transpose(1, 0, 2)
        mine_SR, theirs_SR = pairs_SR2[..., 0], pairs_SR2[..., 1]
        with np.errstate(over="ignore", invalid="ignore"):
            difference_SR = mine_SR - theirs_SR
            means, halves = mean_of(difference_SR), half_width(difference_SR)
        tests = zip(*paired_p(mine_SR, theirs_SR), strict=True)
        for row, mean, half, (p, is_bound) in zip(some, means, halves, tests, strict=True):
            row.difference = float(mean) if np.isfinite(mean) else None
            row.difference_low, row.difference_high = bounds(mean, half)
            row.p, row.p_is_bound = None if np.isnan(p) else float(p), bool(is_bound)


def correct(
    rows: Sequence[Row], groups: Mapping[str | None, Sequence[Group]], not_finite: Mapping[str, Sequence[Path]]
) -> None:
    """Holm's correction over a family: all settings that are compared with a baseline at one metric and place.

    Those that have too few seeds for a p are members, and so are those whose number is finite in no seed and that have
    no row therefore (not_finite: the runs with such a number, by metric): what came out does not make a family smaller.
    """
    for some in alike([row for row in rows if row.baseline], lambda row: (row.verb, row.metric, *row.place.items())):
        cell = some[0].metric, tuple(some[0].place.items())
        odd = {str(directory) for directory in not_finite.get(some[0].metric, ())}
        lost = [group for group in groups[some[0].verb] if cell not in group.numbers]
        n_lost = sum(any(trial.origin in odd for trial in group.trials) for group in lost)
        corrected = holm([np.nan if row.p is None else row.p for row in some] + [np.nan] * n_lost)
        for row, p in zip(some, corrected, strict=False):
            row.p_holm = None if np.isnan(p) else p


def bounds(mean: float, half: float) -> tuple[float, float] | tuple[None, None]:
    """The ends of an interval; None where there is none, or where an end is larger than every float."""
    low, high = float(mean) - float(half), float(mean) + float(half)
    return (low, high) if math.isfinite(high - low) else (None, None)


def alike(rows: Sequence[Row], key: Callable[[Row], Any]) -> Iterable[list[Row]]:
    """The rows by their key."""
    found: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        found[key(row)].append(row)
    return found.values()
