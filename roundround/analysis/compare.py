"""Runs compared: `rr.compare`, and what `roundround compare` calls.

Numbers are loaded into a long table (load.py), grouped by the settings that vary, and turned into means over seeds,
with differences to a baseline paired by seed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from pandas import DataFrame, Series

from roundround.analysis.comparison import Baseline, Comparison, Group, Row, choices, order, values_of, varying
from roundround.analysis.intervals import half_width, holm, mean_of, paired_p
from roundround.analysis.load import LongTable, load
from roundround.analysis.past_run import rank
from roundround.analysis.remarks import remarks_of
from roundround.support.errors import UserError, nearest

PLAIN = {"pe": "rope", "softmax": "softmax"}  # the baseline where none is asked for


def compare(
    paths: str | Path | Sequence[str | Path],
    *,
    baseline: str | Sequence[str] = (),
    metric: str | Sequence[str] = (),
    where: Mapping[str, str] | None = None,
    outputs: str = "outputs",
) -> Comparison:
    """Compare runs: means over seeds with 95 % t intervals, and differences to a baseline, paired by seed.

    paths: run directories, sweeps, folders of runs, patterns, `last`, `last~3` (under `outputs`), and csv or jsonl
    files of settings, seed, metric, length, value. baseline: `pe=rope` pairs each run with the one that differs in pe
    alone; `["pe=rope", "softmax=softmax"]` is one cell for all; `none` for none; without one, the plain attention where
    it is among the runs. metric: those to compare; all without one. where: filters on the runs, as `roundround runs`
    takes them, and on places, such as {"verb": "eval", "pe": "rope,nope", "length": "512"}.

    `.table` has a row for each metric, place (context length, task) and setting, `.data_frame()` the same as a pandas
    DataFrame, `.remarks` what a reader has to know. Raises UserError where nothing can be compared.
    """
    names = [str(path) for path in ([paths] if isinstance(paths, str | Path) else paths)]
    baseline, metric = ([given] if isinstance(given, str) else given for given in (baseline, metric))
    table = load(names, where or {}, outputs)
    comparison = comparison_of(table, baseline, metric)
    comparison.remarks = [*table.remarks, *remarks_of(comparison)]
    return comparison


def comparison_of(table: LongTable, baseline: Sequence[str] = (), metrics: Sequence[str] = ()) -> Comparison:
    """The comparison of the numbers of a long table, without remarks.

    baseline: as it is typed, such as ["pe=rope"]; none for what `baseline_of` takes, ["none"] for none. metrics: those
    to compare, none for all. Raises UserError for a metric that was not measured, or a baseline that matches nothing.
    """
    groups, numbers = grouped(table.numbers)
    measured = set(numbers["metric"])
    for metric in metrics:
        if metric not in measured:
            raise UserError(f"metric={metric} was not measured{nearest(metric, measured)}")
    chosen = baseline_of(baseline, groups)
    partner = {} if chosen is None else partners(chosen, groups)
    shown = numbers[numbers["metric"].isin(metrics)] if metrics else numbers
    rows = rows_of(shown, groups, partner)
    correct(rows, groups, table.not_finite)
    return Comparison(values_of(groups), groups, numbers, list(rows.values()), chosen, skipped=table.skipped)


# -- groups


def grouped(numbers: DataFrame) -> tuple[list[Group], DataFrame]:
    """The settings, verb by verb; and the numbers that count, in the order of the rows: by cell, group and seed.

    A cell is a verb, a metric and its coordinates. Of trials of one setting and seed the one that started last counts.
    """
    by_verb: dict[str | None, list[Any]] = {}
    for trial in numbers["trial"].unique():
        by_verb.setdefault(trial.verb, []).append(trial)
    groups = [group for trials in by_verb.values() for group in groups_of(trials)]
    group_of = {trial: n for n, group in enumerate(groups) for trial in group.trials}
    by_start = sorted(group_of, key=lambda trial: (trial.started is not None, trial.started))
    started = {trial: n for n, trial in enumerate(by_start)}
    seeds = Series([trial.seed for trial in numbers["trial"]], dtype=object)  # integers stay such beside what is none
    numbers = numbers.assign(
        group=numbers["trial"].map(group_of), seed=seeds, started=numbers["trial"].map(started)
    ).sort_values(["group", "started"], kind="stable")
    verbs = list(by_verb)
    cells = list(
        zip((groups[n].verb for n in numbers["group"]), numbers["metric"], numbers["coordinates"], strict=True)
    )
    first_seen = {metric: n for n, metric in enumerate(dict.fromkeys(cell[:2] for cell in cells))}

    def place_in_table(cell: tuple[str | None, str, Any]) -> tuple[Any, ...]:
        """The most telling metrics first, coordinates in order."""
        verb, metric, coordinates = cell
        in_order = [(key, order(value)) for key, value in coordinates]
        return verbs.index(verb), rank(metric), first_seen[verb, metric], len(coordinates), in_order

    position = {cell: n for n, cell in enumerate(sorted(set(cells), key=place_in_table))}
    numbers["cell"] = [position[cell] for cell in cells]

    same = ["cell", "group", "seed"]
    again = numbers[numbers.duplicated(same, keep=False)]
    earlier = again.groupby(same, sort=False, dropna=False)[["trial", "value"]].shift()
    differs = earlier["value"].notna() & (earlier["value"] != again["value"])
    pairs = zip(again["group"][differs], earlier["trial"][differs], again["trial"][differs], strict=True)
    for group, before, after in dict.fromkeys(pairs):
        groups[group].replaced.append((before, after))
    numbers = numbers.drop_duplicates(same, keep="last")
    place = {seed: n for n, seed in enumerate(sorted(set(numbers["seed"]), key=order))}
    return groups, numbers.sort_values(
        same, key=lambda column: column.map(place.__getitem__) if column.name == "seed" else column, ignore_index=True
    )


def groups_of(trials: Sequence[Any]) -> list[Group]:
    """The groups of the trials of one verb, in the order of the values of their settings."""
    keys, _ = varying(trials)
    groups: dict[tuple[Any, ...], Group] = {}
    for trial in trials:
        values = tuple(trial.settings.get(key) for key in keys)
        group = groups.setdefault(values, Group(trial.verb, dict(zip(keys, values, strict=True))))
        group.trials.append(trial)
    return [groups[values] for values in sorted(groups, key=lambda values: [order(value) for value in values])]


# -- baseline


def baseline_of(given: Sequence[str], groups: Sequence[Group]) -> Baseline | None:
    """The baseline that is asked for; with nothing given the plain attention where it is among the groups of a verb.

    `none` asks for none. UserError for what is no setting, and for a baseline that no group meets.
    """
    if list(given) == ["none"]:
        return None
    if not given:
        vary = {key for group in groups for key in group.settings}
        plain = {key: value for key, value in PLAIN.items() if key in vary}
        taken = Baseline(plain, taken=True)
        return taken if plain and any(map(taken.is_met, groups)) else None
    wanted: dict[str, str] = {}
    for word in given:
        key, equals, value = word.partition("=")
        if not key or not equals:
            raise UserError(f"baseline={word}: give a setting and its value, such as baseline=pe=rope, or none")
        if key in wanted:
            raise UserError(f"baseline={','.join(given)}: {key} is given twice, and a baseline has one value of it")
        wanted[key] = value
    asked = Baseline(wanted)
    if not any(map(asked.is_met, groups)):
        raise UserError(f"baseline={asked} matches nothing; {choices(groups)}")
    return asked


def partners(baseline: Baseline, groups: Sequence[Group]) -> dict[int, int]:
    """For each group the one that meets the baseline and equals it in all else, where there is one.

    What belongs to a replaced node, as pe.theta to pe, need not be equal. UserError where several do.
    """
    free = {key.partition(".")[0] for key in baseline.wanted if "." not in key} | {*baseline.wanted}
    met = [n for n, group in enumerate(groups) if baseline.is_met(group)]
    found = {}
    for n, group in enumerate(groups):
        own = [key for key in group.settings if key not in free and key.partition(".")[0] not in free]
        alike = [
            other
            for other in met
            if groups[other].verb == group.verb
            and all(groups[other].settings[key] == group.settings[key] for key in own)
        ]
        if len(alike) > 1:
            several = [groups[other] for other in alike]
            values = values_of(several).items()
            differ = [key for key, some in values if len(some) > 1 and key not in baseline.wanted]
            raise UserError(
                f"baseline={baseline} is {len(several)} settings, such as {several[0].name} and {several[1].name}; "
                f"give {' and '.join(differ)} too: baseline=[{','.join(baseline.words)},{differ[0]}=...]"
            )
        if alike and alike[0] != n:
            found[n] = alike[0]
    return found


# -- statistics


def rows_of(numbers: DataFrame, groups: Sequence[Group], partner: Mapping[int, int]) -> dict[tuple[int, int], Row]:
    """A row for each cell and group, in order: the mean over seeds, and the difference to the partner of the group."""
    rows = {}
    for some, n_seeds in by_n_seeds(numbers):
        values_RS = some["value"].to_numpy().reshape(-1, n_seeds)
        seeds = some["seed"].to_numpy().reshape(-1, n_seeds).tolist()
        means, halves = mean_of(values_RS.T), half_width(values_RS.T)
        firsts = some.iloc[::n_seeds][["cell", "group", "metric", "coordinates"]].itertuples(index=False)
        for n, (cell, group, metric, coordinates) in enumerate(firsts):
            other = groups[partner[group]] if group in partner else None
            low, high = bounds(means[n], halves[n])
            rows[cell, group] = Row(
                metric,
                dict(coordinates),
                groups[group],
                seeds[n],
                values_RS[n].tolist(),
                other,
                float(means[n]),
                low,
                high,
            )
    mine = numbers[numbers["group"].isin(partner)]
    pairs = mine.assign(baseline=[partner[group] for group in mine["group"]]).merge(
        numbers, left_on=["cell", "baseline", "seed"], right_on=["cell", "group", "seed"], suffixes=("", "_of_baseline")
    )
    for some, n_seeds in by_n_seeds(pairs):
        mine_RS, theirs_RS = (some[name].to_numpy().reshape(-1, n_seeds) for name in ("value", "value_of_baseline"))
        with np.errstate(over="ignore", invalid="ignore"):
            difference_RS = mine_RS - theirs_RS
            means, halves = mean_of(difference_RS.T), half_width(difference_RS.T)
        p, is_bound = paired_p(mine_RS.T, theirs_RS.T)
        for n, (cell, group) in enumerate(some.iloc[::n_seeds][["cell", "group"]].itertuples(index=False)):
            row = rows[cell, group]
            row.pairs = list(zip(mine_RS[n].tolist(), theirs_RS[n].tolist(), strict=True))
            row.difference = float(means[n]) if np.isfinite(means[n]) else None
            row.difference_low, row.difference_high = bounds(means[n], halves[n])
            row.p, row.p_is_bound = None if np.isnan(p[n]) else float(p[n]), bool(is_bound[n])
    return dict(sorted(rows.items()))


def by_n_seeds(numbers: DataFrame) -> Iterator[tuple[DataFrame, int]]:
    """The numbers of the cells and groups that have equally many seeds."""
    n_seeds = numbers.groupby(["cell", "group"])["value"].transform("size")
    for n, some in numbers.groupby(n_seeds):
        yield some, int(n)


def bounds(mean: float, half: float) -> tuple[float, float] | tuple[None, None]:
    """The ends of an interval; None where there is none, or where an end is larger than every float."""
    low, high = float(mean) - float(half), float(mean) + float(half)
    return (low, high) if math.isfinite(high - low) else (None, None)


def correct(
    rows: Mapping[tuple[int, int], Row], groups: Sequence[Group], not_finite: Mapping[str, Sequence[str]]
) -> None:
    """Holm's correction over a family: all settings that are compared with a baseline at one metric and place.

    Those that have too few seeds for a p are members, and so are those whose number is finite in no seed and that have
    no row therefore (not_finite: the runs with such a number, by metric): what came out does not make a family smaller.
    """
    for cell, keys in groupby((key for key in rows if rows[key].baseline is not None), key=lambda key: key[0]):
        family = [rows[key] for key in keys]
        odd = set(not_finite.get(family[0].metric, ()))
        lost = [
            group
            for n, group in enumerate(groups)
            if group.verb == family[0].verb
            and (cell, n) not in rows
            and any(trial.origin in odd for trial in group.trials)
        ]
        corrected = holm([np.nan if row.p is None else row.p for row in family] + [np.nan] * len(lost))
        for row, p in zip(family, corrected, strict=False):
            row.p_holm = None if np.isnan(p) else p
