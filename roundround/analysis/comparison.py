"""A comparison: settings with the replicates behind them, a row for each number, and training curves.

A long table of numbers (load.py) is grouped by the settings that vary, and turned into means over seeds, with
differences to a baseline paired by seed.

Tested by tests/analysis/test_compare.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from pandas import DataFrame, Series

from roundround.analysis.intervals import Array, half_width, holm, paired_p
from roundround.analysis.load import GROUPS, Coordinates, LongTable, Replicate
from roundround.analysis.past_run import PastRun, is_same, rank
from roundround.records.directories import METRICS
from roundround.support.errors import UserError, nearest

MEMORY = {"peak_resident_bytes": "resident_bytes", "peak_device_bytes": "device_bytes"}  # by the name in a manifest
HELD_OUT = "held_out_nats_per_token"
POINTS = 200  # of a curve; a figure shows no more
PLAIN = {"pe": "rope", "softmax": "softmax"}  # the baseline where none is asked for
ROWS_SHOWN = 20  # in a notebook
NOT_SHOWN = ["verb", "values", "seeds", "n_pairs", "p_is_bound", "tokens_per_second", *MEMORY]  # there


def order(value: Any) -> tuple[Any, ...]:
    """A key that sorts numbers by size, then texts, then what is not there."""
    if value is None:
        return (2, "")
    return (0, value) if isinstance(value, int | float) else (1, str(value))


def counted(n: int, what: str) -> str:
    """A number of things, such as `1 run` or `2 runs`."""
    return f"{n:,} {what}{'s' * (n != 1)}"


def format_settings(settings: Mapping[str, Any]) -> str:
    """Settings as one reads them: pe=rope, softmax=null."""
    return ", ".join(f"{key}={format_setting(value)}" for key, value in settings.items()) or "all runs"


def format_setting(value: Any) -> str:
    return {"None": "null", "True": "true", "False": "false"}.get(str(value), str(value))


def as_typed(where: Mapping[str, object] | None) -> dict[str, str]:
    """Filters as they are typed: {"seed": 1, "pe": ["rope", "nope"]} is seed=1 and pe=rope,nope."""
    if not isinstance(where, Mapping | None):
        raise UserError(f'where={where!r} must be filters by name, such as {{"pe": "rope"}}')
    given = {key: value if isinstance(value, list | tuple) else [value] for key, value in (where or {}).items()}
    return {key: ",".join(map(format_setting, values)) for key, values in given.items()}


@dataclass(eq=False, repr=False)
class Group:
    """The replicates of one setting. settings: the ones that vary among the replicates of its verb.

    replaced: (earlier replicate, later replicate) of the same seed whose numbers differ; the later one's are taken.
    """

    verb: str | None
    settings: dict[str, Any]
    replicates: list[Replicate] = field(default_factory=list)
    replaced: list[tuple[Replicate, Replicate]] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"{self.verb} of {self.name}: {len(self.replicates)} runs"

    @cached_property
    def name(self) -> str:
        return format_settings(self.settings)

    @property
    def seeds(self) -> list[Any]:
        return sorted({replicate.seed for replicate in self.replicates}, key=order)

    @property
    def sources(self) -> list[PastRun]:
        """The runs that made the models, each once; the last one where several have the same seed."""
        by_start = sorted(self.replicates, key=lambda one: (one.started is not None, one.started))
        runs = {one.seed: one.source for one in by_start}.values()
        return list({run.directory: run for run in runs if run is not None}.values())

    @cached_property
    def tokens_per_second(self) -> float | None:
        """The speed of training, the mean over the models."""
        speeds = [run.tokens_per_second for run in self.sources if run.tokens_per_second is not None]
        return float(np.mean(speeds)) if speeds else None

    @cached_property
    def peak_memory(self) -> dict[str, int | None]:
        """The most memory that one of the runs took, in bytes, by the names of MEMORY."""
        peaks = [run.manifest.get("peak_memory") or {} for run in self.sources]
        known = {name: [peak[key] for peak in peaks if peak.get(key) is not None] for name, key in MEMORY.items()}
        return {name: max(some, default=None) for name, some in known.items()}


def varying(replicates: Iterable[Replicate]) -> tuple[list[str], dict[str, list[str]]]:
    """The settings that distinguish replicates, and the ones that determine each other setting: pe for pe.theta."""
    all_settings = [replicate.settings for replicate in replicates]

    def n_distinct(*keys: str) -> int:
        return len({tuple(settings.get(key) for key in keys) for settings in all_settings})

    keys = [key for key in {key for settings in all_settings for key in settings} if n_distinct(key) > 1]
    kept: list[str] = []
    following: dict[str, list[str]] = {}
    for key in sorted(keys, key=lambda key: (GROUPS.index(key) if key in GROUPS else len(GROUPS), key)):
        if not kept or n_distinct(*kept, key) > n_distinct(*kept):
            kept.append(key)
        else:
            following[key] = [name for name in kept if n_distinct(name, key) == n_distinct(name)] or list(kept)
    return kept, following


def values_of(groups: Iterable[Group]) -> dict[str, list[Any]]:
    """The settings that vary, each with its values in order."""
    found: dict[str, set[Any]] = {}
    for group in groups:
        for key, value in group.settings.items():
            found.setdefault(key, set()).add(value)
    return {key: sorted(some, key=order) for key, some in found.items()}


def choices(groups: Iterable[Group]) -> str:
    """What varies among groups, with the values, in words."""
    listed = [f"{key} ({', '.join(map(format_setting, values))})" for key, values in values_of(groups).items()]
    return f"the settings that vary are {', '.join(listed)}" if listed else "no setting varies among these runs"


@dataclass(eq=False, repr=False)
class Row:
    """A metric for one setting: mean over its seeds, and the difference to the baseline, paired by seed.

    coordinates: where it was measured, such as {"length": 512}. low, high and their like bound 95 % t intervals. None:
    there is no such number.
    """

    metric: str
    coordinates: dict[str, Any]
    group: Group
    seeds: list[Any]
    values: list[float]
    baseline: Group | None
    mean: float
    low: float | None
    high: float | None
    pairs: list[tuple[float, float]] = field(default_factory=list)  # this setting's number and the baseline's, by seed
    difference: float | None = None
    difference_low: float | None = None
    difference_high: float | None = None
    p: float | None = None
    p_holm: float | None = None
    p_is_bound: bool = False  # p and p_holm are upper bounds

    def __repr__(self) -> str:
        coordinates = format_settings({**self.coordinates, **self.settings})
        return f"{self.metric} at {coordinates}: {self.mean:.6g} over {self.n_seeds} seeds"

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
        """The row as `results.json` has it; report/comparison_tables.py explains the fields."""
        return {
            "metric": self.metric,
            "verb": self.verb,
            **self.coordinates,
            "settings": self.settings,
            "mean": self.mean,
            "low": self.low,
            "high": self.high,
            "n_seeds": self.n_seeds,
            "seeds": self.seeds,
            "values": self.values,
            "baseline": None if self.baseline is None else self.baseline.settings,
            "n_pairs": len(self.pairs),
            "difference": self.difference,
            "difference_low": self.difference_low,
            "difference_high": self.difference_high,
            "p": self.p,
            "p_holm": self.p_holm,
            "p_is_bound": self.p_is_bound,
            "tokens_per_second": self.group.tokens_per_second,
            **self.group.peak_memory,
        }


@dataclass(frozen=True)
class Baseline:
    """The settings of a baseline as they were typed. of_verb: which of them a group of each verb must have.

    taken: nobody asked for it.
    """

    wanted: Mapping[str, str]
    of_verb: Mapping[str | None, Collection[str]]
    taken: bool

    def __str__(self) -> str:
        return ", ".join(self.words)

    @property
    def words(self) -> list[str]:
        return [f"{key}={value}" for key, value in self.wanted.items()]

    def is_met(self, group: Group) -> bool:
        """Whether a group has all of its settings, including settings that do not vary."""
        settings, keys = group.replicates[0].settings, self.of_verb[group.verb]
        return bool(keys) and all(is_same(settings.get(key), self.wanted[key]) for key in keys)


@dataclass(eq=False, repr=False)
class Comparison:
    """Runs compared. settings: the ones that vary, each with its values.

    table: a row for each metric, length and setting. groups: the settings with the runs behind them. numbers: the ones
    that count, with the columns group (which of the groups), metric, coordinates, seed, value. baseline: what was asked
    for, or taken; None for none. remarks: what a reader has to know. skipped: (run directory, why) of runs that are not
    in the numbers.
    """

    settings: dict[str, list[Any]]
    groups: list[Group]
    numbers: DataFrame
    table: list[Row]
    baseline: Baseline | None
    remarks: list[str] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)

    @property
    def of_tasks(self) -> bool:
        """Whether a length is that of a task, which counts what its paper counts, and not tokens."""
        return any(run.learns_a_task for group in self.groups for run in group.sources)

    def records(self) -> list[dict[str, Any]]:
        """The rows as `results.json` has them."""
        return [row.record() for row in self.table]

    def __repr__(self) -> str:
        runs = {replicate.origin for group in self.groups for replicate in group.replicates}
        sizes = {"run": runs, "setting": self.groups, "metric": {row.metric for row in self.table}, "row": self.table}
        baseline = "no baseline" if self.baseline is None else f"baseline {self.baseline}"
        counts = ", ".join(counted(len(some), what) for what, some in sizes.items())
        return f"comparison of {counts}; {choices(self.groups)}; {baseline}"

    def _repr_html_(self) -> str:
        """What it is about and its first rows, as a notebook shows it; `data_frame()` has all."""
        frame = self.data_frame().drop(columns=NOT_SHOWN, errors="ignore").dropna(axis="columns", how="all")
        left = len(frame) - ROWS_SHOWN
        lines = [repr(self), *([f"{counted(left, 'more row')} in .data_frame()"] if left > 0 else [])]
        lines += [f"{counted(len(self.remarks), 'remark')} in .remarks"] if self.remarks else []
        table = frame.head(ROWS_SHOWN).to_html(index=False, float_format=lambda value: f"{value:.4g}", na_rep="")
        return f"<p>{escape(lines[0])}</p>{table}<p>{escape('; '.join(lines[1:]))}</p>"

    def data_frame(self) -> DataFrame:
        """The rows as a DataFrame of pandas, with a column for each setting that varies and for each coordinate."""
        rows = []
        for row in self.table:
            record = row.record() | {"baseline": None if row.baseline is None else row.baseline.name}
            settings = {f"settings.{key}" if key in record else key: value for key, value in row.settings.items()}
            rows.append(settings | record)
        return DataFrame(rows).drop(columns="settings")


# -- how it is computed


def comparison_of(table: LongTable, baseline: Sequence[str] = (), metrics: Sequence[str] = ()) -> Comparison:
    """The comparison of the numbers of a long table, without remarks.

    baseline: as it is typed, such as ["pe=rope"]; none for what `baseline_of` takes, ["none"] for none. metrics: the
    ones to compare, none for all. UserError for a metric that was not measured, or a baseline that matches nothing.
    """
    groups, numbers = grouped(table)
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


def grouped(table: LongTable) -> tuple[list[Group], DataFrame]:
    """The settings, verb by verb; and the numbers that count, in the order of the rows: by cell, group and seed.

    A cell is a verb, a metric and its coordinates. The last that started counts where one setting and seed has several
    replicates.
    """
    replicates = table.replicates
    verbs = list(dict.fromkeys(one.verb for one in replicates))
    groups = [group for verb in verbs for group in groups_of([one for one in replicates if one.verb == verb])]
    group_of = {replicate: n for n, group in enumerate(groups) for replicate in group.replicates}
    starts = [(one.started is not None, one.started) for one in replicates]
    by_start = sorted(range(len(replicates)), key=starts.__getitem__)
    seeds = sorted({one.seed for one in replicates}, key=order)
    models = DataFrame(
        {
            "verb": Series([one.verb for one in replicates], dtype=object),
            "seed": Series([one.seed for one in replicates], dtype=object),  # integers stay such beside what is none
            "group": [group_of[one] for one in replicates],
            "nth_seed": [seeds.index(one.seed) for one in replicates],
            "nth_start": Series(range(len(replicates)), index=by_start),
        }
    )
    numbers = table.numbers.join(models, on="replicate").sort_values(["group", "nth_start"], kind="stable")
    cells = list(zip(numbers["verb"], numbers["metric"], numbers["coordinates"], strict=True))
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
        pair = replicates[int(before)], replicates[after]
        if {one.started for one in pair} == {None}:
            files = " and ".join(one.origin for one in pair)
            raise UserError(
                f"{files} have different numbers of {groups[group].name}, seed {pair[1].seed}; leave one out"
            )
        groups[group].replaced.append(pair)
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
    verbs = dict.fromkeys(group.verb for group in groups)
    if not given:
        vary = {verb: values_of(group for group in groups if group.verb == verb) for verb in verbs}
        of_verb = {verb: [key for key in PLAIN if PLAIN[key] in vary[verb].get(key, ())] for verb in verbs}
        every = {key for keys in of_verb.values() for key in keys}
        plain = Baseline({key: value for key, value in PLAIN.items() if key in every}, of_verb, taken=True)
        return plain if every else None
    wanted: dict[str, str] = {}
    for word in given:
        key, equals, value = word.partition("=")
        if not key or not equals:
            raise UserError(f"baseline={word}: give a setting and its value, such as baseline=pe=rope, or none")
        if key in wanted:
            raise UserError(f"baseline={','.join(given)}: {key} is given twice, and a baseline has one value of it")
        wanted[key] = value
    asked = Baseline(wanted, dict.fromkeys(verbs, wanted.keys()), taken=False)
    if not any(map(asked.is_met, groups)):
        raise UserError(f"baseline={asked} matches nothing; {choices(groups)}")
    return asked


def partners(baseline: Baseline, groups: Sequence[Group]) -> dict[int, int]:
    """For each group the one that meets the baseline and equals it in all else, where there is one.

    What belongs to a replaced node, as pe.theta to pe, need not be equal. UserError where several do.
    """
    frees = [{*baseline.of_verb[group.verb]} for group in groups]
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

    A setting with too few seeds for a p is a member. So is a setting without a row because its number is finite in no
    seed (not_finite: the runs with such a number, by metric and coordinates), since the outcome must not make a family
    smaller. partner: the baseline of each setting that is compared.
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


# -- training curves


def training_curves(groups: Sequence[Group]) -> tuple[list[dict[str, Any]], list[str]]:
    """The training curves of the settings, and what could not be read.

    A curve is a record as comparison.json has it: held-out loss by training tokens, the mean over the seeds with its
    95 % interval. Where several settings share their training runs, only the first has its curve.
    """
    curves: list[dict[str, Any]] = []
    damaged: list[str] = []
    drawn: set[Path] = set()
    for group in [group for group in groups if group.verb == "train"] or groups:
        runs = [run for run in group.sources if run.verb == "train"]
        if {run.directory for run in runs} <= drawn:
            continue
        drawn |= {run.directory for run in runs}
        losses = [held_out_loss(run, damaged) for run in runs]
        by_seed = DataFrame({n: loss for n, loss in enumerate(losses) if loss}).dropna().sort_index()  # what all have
        if len(by_seed):
            steps = list(range(0, len(by_seed), -(-len(by_seed) // POINTS)))
            some = by_seed.iloc[steps if steps[-1] == len(by_seed) - 1 else [*steps, -1]]
            values_SP = some.to_numpy(np.float64).T
            mean, half = values_SP.mean(0), half_width(values_SP)
            sure = len(values_SP) > 1
            curves.append(
                {
                    "settings": group.settings,
                    "metric": HELD_OUT,
                    "tokens": some.index.to_numpy(np.float64).tolist(),
                    "mean": mean.tolist(),
                    "low": (mean - half).tolist() if sure else None,
                    "high": (mean + half).tolist() if sure else None,
                    "n_seeds": len(values_SP),
                }
            )
    return curves, damaged


def held_out_loss(run: PastRun, damaged: list[str]) -> dict[int, float]:
    """Held-out loss by tokens of training. What is wrong with the file is added to `damaged`."""
    path = run.directory / METRICS
    try:
        lines = run.metrics()
    except UserError as error:
        damaged.append(f"{error}: no training curve of this run")
        return {}
    if not lines and not path.exists():
        damaged.append(f"{path} is not there: no training curve of this run")
    per_step = [run.settings.get(key) for key in ("batch_size", "model.train_length")]
    tokens = int(np.prod(per_step)) if all(isinstance(n, int) for n in per_step) else 1  # type: ignore[arg-type]
    return {line["step"] * tokens: float(loss) for line in lines if isinstance(loss := line.get(HELD_OUT), int | float)}
