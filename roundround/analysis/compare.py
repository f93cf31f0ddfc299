"""Runs compared: `rr.compare`, and what `roundround compare` calls.

Numbers are loaded into a long table (load.py), grouped by the settings that vary, and turned into means over seeds,
with differences to a baseline paired by seed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
from pandas import DataFrame

from roundround.analysis.comparison import (
    Baseline,
    Comparison,
    Group,
    Row,
    as_typed,
    choices,
    order,
    values_of,
    varying,
)
from roundround.analysis.intervals import Array, half_width, holm, paired_p
from roundround.analysis.load import Coordinates, LongTable, Replicate, load
from roundround.analysis.past_run import rank
from roundround.analysis.remarks import remarks_of
from roundround.support.errors import UserError, nearest

OWN = {"paths", "baseline", "metric", "outputs"}  # arguments, which are no filters
PLAIN = {"pe": "rope", "softmax": "softmax"}  # the baseline where none is asked for


def compare(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    baseline: str | Sequence[str] = (),
    metric: str | Sequence[str] = (),
    where: Mapping[str, object] | None = None,
    outputs: str = "outputs",
) -> Comparison:
    """Compare runs: means over seeds with 95 % t intervals, and differences to a baseline, paired by seed.

    paths: run directories, sweeps, folders of runs, patterns, `last`, `last~3` (under `outputs`), and csv or jsonl
    files of settings, seed, metric, length, value. baseline: `pe=rope` pairs each run with the one that differs in pe
    alone; `["pe=rope", "softmax=softmax"]` is one cell for all; `none` for none; without one, the plain attention where
    it is among the runs. metric: those to compare; all without one. where: filters on the runs, as `roundround runs`
    takes them, and on coordinates, such as {"verb": "eval", "pe": "rope,nope", "length": 512}.

    `.table` has a row for each metric, context length (task, ...) and setting, `.data_frame()` the same as a pandas
    DataFrame, `.remarks` what a reader has to know. Raises UserError where nothing can be compared.

        rr.compare("outputs", where={"verb": "eval"}, metric="perplexity", baseline="pe=rope").data_frame()
    """
    for key in OWN & {*(where or {})}:
        raise UserError(f"where= has {key}, which is an argument of its own: give {key}=...")
    names = [os.fspath(path) for path in ([paths] if isinstance(paths, str | os.PathLike) else paths)]
    baseline, metric = ([given] if isinstance(given, str) else given for given in (baseline, metric))
    table = load(names, as_typed(where), outputs)
    comparison = comparison_of(table, baseline, metric)
    comparison.remarks = [*table.remarks, *remarks_of(comparison, without_baseline=list(baseline) == ["none"])]
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
    rows = rows_of(numbers[numbers["metric"].isin(metrics)] if metrics else numbers, groups, partner)
    correct(rows, groups, partner, table.not_finite)
    return Comparison(values_of(groups), groups, numbers, list(rows.values()), chosen, skipped=table.skipped)


# -- groups


def grouped(numbers: DataFrame) -> tuple[list[Group], DataFrame]:
    """The settings, verb by verb; and the numbers that count, in the order of the rows: by cell, group and seed.

    A cell is a verb, a metric and its coordinates. Of replicates of one setting and seed the last that started counts.
    """
    replicates = list(numbers["replicate"].unique())
    verbs = list(dict.fromkeys(replicate.verb for replicate in replicates))
    groups = [group for verb in verbs for group in groups_of([one for one in replicates if one.verb == verb])]
    group_of = {replicate: n for n, group in enumerate(groups) for replicate in group.replicates}
    by_start = sorted(group_of, key=lambda replicate: (replicate.started is not None, replicate.started))
    seeds = {seed: n for n, seed in enumerate(sorted({replicate.seed for replicate in replicates}, key=order))}
    replicate = numbers["replicate"]
    numbers = numbers.assign(
        group=replicate.map(group_of),
        seed=np.array([one.seed for one in replicate], dtype=object),  # integers stay such beside what is none
        nth_seed=[seeds[one.seed] for one in replicate],
        nth_start=replicate.map({one: n for n, one in enumerate(by_start)}),
    ).sort_values(["group", "nth_start"], kind="stable")
    measured = zip(numbers["replicate"], numbers["metric"], numbers["coordinates"], strict=True)
    cells = [(one.verb, metric, coordinates) for one, metric, coordinates in measured]
    first_seen = {metric: n for n, metric in enumerate(dict.fromkeys(cell[:2] for cell in cells))}

    def in_table(cell: tuple[str | None, str, Any]) -> tuple[Any, ...]:
        """The most telling metrics first, coordinates in order."""
        verb, metric, coordinates = cell
        in_order = [(key, order(value)) for key, value in coordinates]
        return verbs.index(verb), rank(metric), first_seen[verb, metric], len(coordinates), in_order

    nth_cell = {cell: n for n, cell in enumerate(sorted(set(cells), key=in_table))}
    numbers["cell"] = [nth_cell[cell] for cell in cells]
    same = ["cell", "group", "nth_seed"]
    earlier = numbers.groupby(same, sort=False)[["replicate", "value"]].shift()
    differs = earlier["value"].notna() & (earlier["value"] != numbers["value"])
    again = zip(numbers["group"][differs], earlier["replicate"][differs], numbers["replicate"][differs], strict=True)
    for group, before, after in dict.fromkeys(again):
        if before.started is None and after.started is None:
            raise UserError(
                f"{before.origin} and {after.origin} have different numbers of {groups[group].name}, seed "
                f"{after.seed}; leave one out"
            )
        groups[group].replaced.append((before, after))
    return groups, numbers.drop_duplicates(same, keep="last").sort_values(same, ignore_index=True)


def groups_of(replicates: Sequence[Replicate]) -> list[Group]:
    """The groups of the replicates of one verb, in the order of the values of their settings."""
    keys, _ = varying(replicates)
    groups: dict[tuple[Any, ...], Group] = {}
    for replicate in replicates:
        values = tuple(replicate.settings.get(key) for key in keys)
        group = groups.setdefault(values, Group(replicate.verb, dict(zip(keys, values, strict=True))))
        group.replicates.append(replicate)
    return [groups[values] for values in sorted(groups, key=lambda values: [order(value) for value in values])]


# -- baseline


def baseline_of(given: Sequence[str], groups: Sequence[Group]) -> Baseline | None:
    """The baseline that is asked for; with nothing given the plain attention where it is among the groups of a verb.

    `none` asks for none. UserError for what is no setting, and for a baseline that no group meets.
    """
    if list(given) == ["none"]:
        return None
    if not given:
        of_verb: dict[str | None, list[str]] = {}
        for verb in dict.fromkeys(group.verb for group in groups):
            vary = values_of(group for group in groups if group.verb == verb)
            of_verb[verb] = [key for key, value in PLAIN.items() if value in vary.get(key, ())]
        every = {key for keys in of_verb.values() for key in keys}
        taken = Baseline({key: value for key, value in PLAIN.items() if key in every}, of_verb)
        return taken if any(map(taken.is_met, groups)) else None
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
    frees = [{*baseline.keys(group.verb)} for group in groups]
    others = [
        (group.verb, *((k, v) for k, v in group.settings.items() if not {k, k.partition(".")[0]} & free))
        for group, free in zip(groups, frees, strict=True)
    ]
    found = {}
    for n, rest in enumerate(others):
        alike = [m for m, other in enumerate(others) if other == rest and baseline.is_met(groups[m])]
        if len(alike) > 1:
            several = [groups[m] for m in alike]
            differ = [key for key, some in values_of(several).items() if len(some) > 1 and key not in frees[n]]
            raise UserError(
                f"baseline={baseline} is {len(several)} settings, such as {several[0].name} and {several[1].name}; "
                f"give {' and '.join(differ)} too: baseline=[{','.join(baseline.words)},{differ[0]}=...]"
            )
        if alike and alike[0] != n:
            found[n] = alike[0]
    return found


# -- statistics


@np.errstate(over="ignore", invalid="ignore")
def rows_of(numbers: DataFrame, groups: Sequence[Group], partner: Mapping[int, int]) -> dict[tuple[int, int], Row]:
    """A row for each cell and group, in order: the mean over seeds, and the difference to the partner of the group."""
    rows = {}
    for firsts, (values_SR, seeds_SR) in by_n_seeds(numbers, "value", "seed"):
        names = firsts[["cell", "group", "metric", "coordinates"]].itertuples(index=False)
        measured = zip(seeds_SR.T.tolist(), values_SR.T.tolist(), interval_of(values_SR), strict=True)
        for (cell, group, metric, coordinates), (seeds, values, interval) in zip(names, measured, strict=True):
            other = groups[partner[group]] if group in partner else None
            rows[cell, group] = Row(metric, dict(coordinates), groups[group], seeds, values, other, *interval)
    mine = numbers[numbers["group"].isin(partner)]
    pairs = mine.assign(partner=[partner[group] for group in mine["group"]]).merge(
        numbers,
        left_on=["cell", "partner", "nth_seed"],
        right_on=["cell", "group", "nth_seed"],
        suffixes=("", "_there"),
    )
    for firsts, (mine_SR, theirs_SR) in by_n_seeds(pairs, "value", "value_there"):
        intervals = interval_of(mine_SR - theirs_SR)
        p, is_bound = paired_p(mine_SR, theirs_SR)
        for n, (cell, group) in enumerate(firsts[["cell", "group"]].itertuples(index=False)):
            row = rows[cell, group]
            row.pairs = list(zip(mine_SR[:, n].tolist(), theirs_SR[:, n].tolist(), strict=True))
            row.difference, row.difference_low, row.difference_high = intervals[n]
            row.p, row.p_is_bound = None if np.isnan(p[n]) else float(p[n]), bool(is_bound[n])
    return dict(sorted(rows.items()))


def by_n_seeds(numbers: DataFrame, *columns: str) -> Iterator[tuple[DataFrame, list[Any]]]:
    """For the cells and groups with equally many seeds: the first row of each, [R], and some columns, each [S, R]."""
    n_seeds = numbers.groupby(["cell", "group"])["value"].transform("size")
    for n, some in numbers.groupby(n_seeds):
        yield some.iloc[:: int(n)], [some[name].to_numpy().reshape(-1, int(n)).T for name in columns]


def interval_of(values_SR: Array) -> list[tuple[Any, Any, Any]]:
    """(mean, low, high) over the first axis; None for what is larger than every float, and for bounds of one seed."""
    means, halves = values_SR.mean(0), half_width(values_SR)
    low, high = means - halves, means + halves
    found = np.array([means, low, high], dtype=object)
    found[~np.isfinite([means, high - low, high - low])] = None
    return list(zip(*found.tolist(), strict=True))


def correct(
    rows: Mapping[tuple[int, int], Row],
    groups: Sequence[Group],
    partner: Mapping[int, int],
    not_finite: Mapping[tuple[str, Coordinates], Sequence[str]],
) -> None:
    """Holm's correction over a family: all settings that are compared with a baseline at one metric and coordinates.

    Those that have too few seeds for a p are members, and so are those whose number is finite in no seed and that have
    no row therefore (not_finite: the runs with such a number, by metric and place): what came out does not make a
    family smaller. partner: of each setting that is compared the baseline.
    """
    for cell, keys in groupby((key for key in rows if rows[key].baseline is not None), key=itemgetter(0)):
        family = [rows[key] for key in keys]
        first = family[0]
        odd = {*not_finite.get((first.metric, tuple(first.coordinates.items())), ())}
        without = [groups[n] for n in partner if groups[n].verb == first.verb and (cell, n) not in rows]
        n_lost = sum(any(replicate.origin in odd for replicate in group.replicates) for group in without)
        corrected = holm([np.nan if row.p is None else row.p for row in family] + [np.nan] * n_lost)
        for row, p in zip(family, corrected, strict=False):
            row.p_holm = None if np.isnan(p) else p
