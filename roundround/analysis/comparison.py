"""`rr.compare`: tables of means over seeds and of differences to a baseline, with remarks for the reader.

load.py gives the numbers as one long table. Here they are grouped by the settings that vary.

Tested by tests/analysis/test_compare.py.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from pandas import DataFrame, Series

from roundround.analysis.intervals import Array, error_widths, half_width, holm, paired_p
from roundround.analysis.load import GROUPS, LongTable, Model, load
from roundround.analysis.past_run import PastRun, direction, is_same, rank
from roundround.records.directories import METRICS
from roundround.support.errors import UserError, nearest

MEMORY = {"peak_resident_bytes": "resident_bytes", "peak_device_bytes": "device_bytes"}  # values: keys of a manifest
HELD_OUT = "held_out_nats_per_token"
POINTS = 200  # the largest number of points of a curve
PLAIN = {"pe": "rope", "softmax": "softmax"}  # the baseline if the user gives none
RATE = "optim.lr"
NAMED = 3  # the number of names that a message lists before "and N more"
FIELDS = {  # the fields of a record that are not coordinates; a coordinate says where the number was measured
    "metric", "verb", "settings", "mean", "low", "high", "n_seeds", "seeds", "values", "baseline", "n_pairs",
    "difference", "difference_low", "difference_high", "p", "p_holm", "p_is_bound", "tokens_per_second",
    "peak_resident_bytes", "peak_device_bytes", "value", "run",
}  # fmt: skip
Record = dict[str, Any]  # of results.json
Rows = dict[tuple[int, int], Record]  # by cell and group


def place_of(record: Record) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in FIELDS}


def order(value: Any) -> tuple[Any, ...]:
    """A sort key: first numbers by size, then texts, then None."""
    if value is None:
        return (2, "")
    return (0, value) if isinstance(value, int | float) else (1, str(value))


def counted(n: int, what: str) -> str:
    """A count and what it counts, such as `1 run` or `2 runs`."""
    return f"{n:,} {what}{'s' * (n != 1)}"


def format_settings(settings: Mapping[str, Any]) -> str:
    """Settings as text, such as `pe=rope, softmax=null`."""
    return ", ".join(f"{key}={format_setting(value)}" for key, value in settings.items()) or "all runs"


def format_setting(value: Any) -> str:
    return {"None": "null", "True": "true", "False": "false"}.get(str(value), str(value))


def some(items: Iterable[str]) -> str:
    """The first few items as text, and how many more there are."""
    names = list(items)
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED:,} more" if len(names) > NAMED else "")


def as_typed(where: Mapping[str, object] | None) -> dict[str, str]:
    """Filters as on the command line: {"seed": 1, "pe": ["rope", "nope"]} becomes seed=1 and pe=rope,nope."""
    return {
        key: ",".join(map(format_setting, value if isinstance(value, list | tuple) else [value]))
        for key, value in (where or {}).items()
    }


@dataclass(eq=False)
class Group:
    """The models that have the same settings and were measured by runs of the same verb (such as eval).

    settings: the settings that vary among all models of the verb, with their values in this group.
    """

    verb: str | None
    settings: dict[str, Any]
    models: list[Model] = field(default_factory=list)

    @cached_property
    def name(self) -> str:
        return format_settings(self.settings)

    @property
    def seeds(self) -> list[Any]:
        return sorted({model.seed for model in self.models}, key=order)

    @property
    def sources(self) -> list[PastRun]:
        """The runs in the field `source` of the models, without duplicates.

        If several models have the same seed, only the model that was measured last is used.
        """
        runs = {model.seed: model.source for model in sorted(self.models, key=start_of)}.values()
        return list({run.directory: run for run in runs if run is not None}.values())

    @cached_property
    def costs(self) -> dict[str, float | None]:
        """The mean training speed of the runs, and the largest peak of memory among them."""
        speeds = [run.tokens_per_second for run in self.sources if run.tokens_per_second is not None]
        peaks = [run.manifest.get("peak_memory") or {} for run in self.sources]
        memory = {name: max((p[key] for p in peaks if p.get(key)), default=None) for name, key in MEMORY.items()}
        return {"tokens_per_second": float(np.mean(speeds)) if speeds else None, **memory}


def start_of(model: Model) -> tuple[Any, ...]:
    return model.started is not None, model.started


def varying(models: Iterable[Model]) -> tuple[list[str], dict[str, list[str]]]:
    """A list of settings that together distinguish the models, and a dict of the other settings that vary.

    The dict maps each setting to the listed settings that determine it, such as {"pe.theta": ["pe"]}.
    """
    all_settings = [model.settings for model in models]

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
    """{setting: its distinct values, sorted} of the settings of the groups."""
    found: dict[str, set[Any]] = {}
    for group in groups:
        for key, value in group.settings.items():
            found.setdefault(key, set()).add(value)
    return {key: sorted(some, key=order) for key, some in found.items()}


def choices(groups: Iterable[Group]) -> str:
    """A clause for messages: the settings that vary among the groups, with their values."""
    listed = [f"{key} ({', '.join(map(format_setting, values))})" for key, values in values_of(groups).items()]
    return f"the settings that vary are {some(listed)}" if listed else "no setting varies among these runs"


@dataclass(eq=False, repr=False)
class Comparison:
    """The result of `compare`. settings: the settings that vary, each with its values.

    groups: the models, grouped by their settings. table: a record for each group, metric and combination of coordinates
    (what was measured where, such as length=512). baseline: the settings of the baseline, such as ["pe=rope"]; empty if
    there is no baseline. remarks: sentences that a reader of the table has to know. skipped: a pair (run directory,
    reason) for each run that was left out.
    """

    settings: dict[str, list[Any]]
    groups: list[Group]
    table: list[Record]
    baseline: list[str]
    remarks: list[str]
    skipped: Sequence[tuple[str, str]]

    def _repr_html_(self) -> str:
        """The table as HTML, for a notebook."""
        return str(self.data_frame().to_html(index=False, max_rows=20, float_format="{:.4g}".format, na_rep=""))

    def data_frame(self) -> DataFrame:
        """The rows as a DataFrame of pandas, with a column for each setting that varies and for each coordinate."""
        rows = []
        for record in self.table:
            baseline = None if record["baseline"] is None else format_settings(record["baseline"])
            settings = {f"settings.{key}" if key in record else key: v for key, v in record["settings"].items()}
            rows.append(settings | record | {"baseline": baseline})
        return DataFrame(rows).drop(columns="settings")


# -- how it is computed


def compare(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    baseline: str | Sequence[str] = (),
    metric: str | Sequence[str] = (),
    where: Mapping[str, object] | None = None,
    outputs: str = "outputs",
) -> Comparison:
    """Compare runs: means over seeds with 95 % t intervals, and differences to a baseline, paired by seed.

    paths: run directories, sweeps, folders of runs, patterns, `last` or `last~3` (under `outputs`), and csv files with
    columns for settings, seed, metric, length and value. baseline: the settings to compare with. `pe=rope` pairs each
    run with the run that has pe=rope and otherwise the same settings; `["pe=rope", "softmax=softmax"]` pairs each run
    with the run that has both settings; `none` computes no differences. The default is plain attention, if it is among
    the runs. metric: the metrics to compare; by default all. where: the filters of `roundround runs`, and filters on
    coordinates (length, task, layer, ...), such as {"verb": "eval", "pe": "rope,nope", "length": 512}.

    The result's `.table` has a row for each metric, context length (or task, ...) and combination of settings;
    `.data_frame()` gives the rows as a pandas DataFrame. Raises UserError if nothing can be compared.

        rr.compare("outputs", where={"verb": "eval"}, metric="perplexity", baseline="pe=rope").data_frame()
    """
    names = [os.fspath(path) for path in ([paths] if isinstance(paths, str | os.PathLike) else paths)]
    baseline, metric = ([given] if isinstance(given, str) else given for given in (baseline, metric))
    return comparison_of(load(names, as_typed(where), outputs), baseline, metric)


def comparison_of(table: LongTable, baseline: Sequence[str] = (), metrics: Sequence[str] = ()) -> Comparison:
    """Compare the numbers of a long table. Raises UserError if one of `metrics` was not measured.

    baseline: the settings to compare with, as typed, such as ["pe=rope"]; ["none"] for no baseline; if empty,
    `baselines_of` chooses. metrics: the metrics to compare; if empty, all.
    """
    groups, found, remarks = grouped(table)
    numbers, odd = found[~found["is_odd"]], found[found["is_odd"]]
    for name in metrics:
        if name not in {*numbers["metric"]}:
            raise UserError(f"metric={name} was not measured{nearest(name, numbers['metric'].unique())}")
    wanted = baselines_of(baseline, groups)
    partner = partners(wanted, groups)
    rows = rows_of(numbers[numbers["metric"].isin(metrics)] if metrics else numbers, groups, partner)
    correct(rows, partner, odd)
    if table.skipped:
        listed = some(f"{run} ({why})" for run, why in table.skipped)
        remarks.insert(0, f"{counted(len(table.skipped), 'run')} left out: {listed}")
    for name, here in odd.groupby("metric", sort=False):
        origins = dict.fromkeys(table.models[n].origin for n in here["model"])
        remarks.append(f"{name} of {some(origins)} has values that are not finite; they are left out")
    if list(baseline) != ["none"]:
        remarks += about_baseline(rows, groups, wanted, partner)
    remarks += remarks_of(groups, numbers)
    words = dict.fromkeys(f"{key}={value}" for keys in wanted.values() for key, value in keys.items())
    return Comparison(values_of(groups), groups, list(rows.values()), list(words), remarks, table.skipped)


# -- groups


def grouped(table: LongTable) -> tuple[list[Group], DataFrame, list[str]]:
    """The groups of all verbs; the numbers to compare, sorted by cell, group and seed; and remarks.

    A cell is one combination of verb, metric and coordinates. If several models have the same settings and seed, only
    the model that was measured last is used. Raises UserError if the numbers of such models differ and none of these
    models is from a run, because only runs have a start time.
    """
    models = table.models
    verbs = list(dict.fromkeys(model.verb for model in models))
    groups = [group for verb in verbs for group in groups_of([model for model in models if model.verb == verb])]
    group_of = {model: n for n, group in enumerate(groups) for model in group.models}
    seeds = sorted({model.seed for model in models}, key=order)
    about = DataFrame(
        {
            "verb": Series([model.verb for model in models], dtype=object),
            "seed": Series([model.seed for model in models], dtype=object),  # integers stay integers beside None
            "group": [group_of[model] for model in models],
            "nth_seed": [seeds.index(model.seed) for model in models],
            "nth_start": Series(range(len(models)), sorted(range(len(models)), key=lambda n: start_of(models[n]))),
        }
    )
    numbers = table.numbers.join(about, on="model").sort_values(["group", "nth_start"], kind="stable")
    cells = list(zip(numbers["verb"], numbers["metric"], numbers["coordinates"], strict=True))
    first_seen = {metric: n for n, metric in enumerate(dict.fromkeys(cell[:2] for cell in cells))}

    in_table: dict[
        Any, tuple[Any, ...]
    ] = {  # by verb, then by metric (the most informative first), then by coordinates
        (verb, metric, coordinates): (
            *(verbs.index(verb), rank(metric), first_seen[verb, metric], len(coordinates)),
            [(key, order(value)) for key, value in coordinates],
        )
        for verb, metric, coordinates in cells
    }
    nth_cell = {cell: n for n, cell in enumerate(sorted(in_table, key=in_table.__getitem__))}
    numbers["cell"] = [nth_cell[cell] for cell in cells]
    same, again = ["cell", "group", "nth_seed"], list[str]()
    torn = numbers[numbers.groupby(same)["value"].transform("nunique") > 1]
    for (group, nth_seed), here in torn.groupby(["group", "nth_seed"]):
        some_models = [models[n] for n in dict.fromkeys(here["model"])]
        origins = " and ".join(model.origin for model in some_models)
        what = f"different numbers for {groups[group].name}, seed {seeds[nth_seed]}, in {origins}"
        if all(model.started is None for model in some_models):
            raise UserError(f"{what}; leave out all but one of these numbers, or add a column that distinguishes them")
        again.append(what)
    numbers["is_odd"] = numbers["value"].isna()
    counting = numbers.drop_duplicates([*same, "is_odd"], keep="last").sort_values(same, ignore_index=True)
    return groups, counting, [f"{some(again)}: the numbers of the run that started last are used"] if again else []


def groups_of(models: Sequence[Model]) -> list[Group]:
    """The groups of the models of one verb, in the order of the values of their settings."""
    keys, _ = varying(models)
    groups: dict[tuple[Any, ...], Group] = {}
    for model in models:
        values = tuple(model.settings.get(key) for key in keys)
        groups.setdefault(values, Group(model.verb, dict(zip(keys, values, strict=True)))).models.append(model)
    return [groups[values] for values in sorted(groups, key=lambda values: [order(value) for value in values])]


# -- baseline

Wanted = Mapping[str | None, Mapping[str, str]]  # by verb: the settings of the verb's baseline, as they are typed


def baselines_of(given: Sequence[str], groups: Sequence[Group]) -> Wanted:
    """The baseline of each verb: the settings in `given` or, by default, plain attention if a group of the verb has it.

    ["none"] means no baseline. Raises UserError if no group has the given settings.
    """
    if list(given) == ["none"]:
        return {}
    wanted = {key: value for key, _, value in (word.partition("=") for word in given)}
    found: dict[str | None, Mapping[str, str]] = {}
    for verb in dict.fromkeys(group.verb for group in groups):
        vary = values_of(group for group in groups if group.verb == verb)
        found[verb] = wanted or {key: value for key, value in PLAIN.items() if value in vary.get(key, ())}
    if wanted and not any(is_met(wanted, group) for group in groups):
        raise UserError(f"baseline={','.join(given)} matches nothing; {choices(groups)}")
    return found


def is_met(wanted: Mapping[str, str], group: Group) -> bool:
    """Whether a group has all settings in `wanted`, whether or not they vary; False if `wanted` is empty."""
    return bool(wanted) and all(is_same(group.models[0].settings.get(key), value) for key, value in wanted.items())


def partners(baselines: Wanted, groups: Sequence[Group]) -> dict[int, int]:
    """The partner of a group has the baseline's settings, and all its other settings are the same as the group's.

    Returns a dict of indices of `groups`; a group without a partner is left out. Settings below a setting of the
    baseline, such as pe.theta below pe, need not be the same. Raises UserError if a group could have several partners.
    """

    def rest_of(group: Group) -> tuple[Any, ...]:
        free = {*baselines.get(group.verb, ())}
        return group.verb, *((k, v) for k, v in group.settings.items() if not {k, k.partition(".")[0]} & free)

    first: dict[tuple[Any, ...], int] = {}
    for n, group in enumerate(groups):
        wanted = baselines.get(group.verb, {})
        if is_met(wanted, group) and first.setdefault(rest_of(group), n) != n:
            several = [groups[first[rest_of(group)]], group]
            differ = [key for key, values in values_of(several).items() if len(values) > 1 and key not in wanted]
            raise UserError(
                f"baseline={format_settings(wanted)} matches both {several[0].name} and {group.name}; give "
                f"{' and '.join(differ)} too"
            )
    return {n: first[rest] for n, rest in enumerate(map(rest_of, groups)) if first.get(rest, n) != n}


# -- statistics


@np.errstate(over="ignore", invalid="ignore")
def rows_of(numbers: DataFrame, groups: Sequence[Group], partner: Mapping[int, int]) -> Rows:
    """A record for each cell and group, in order: the mean over seeds, and the difference to the group's partner.

    report/comparison.py explains the fields.
    """
    rows: Rows = {}
    for firsts, (values_SR, seeds_SR) in by_n_seeds(numbers, "value", "seed"):
        names = firsts[["cell", "group", "metric", "coordinates"]].itertuples(index=False)
        measured = zip(seeds_SR.T.tolist(), values_SR.T.tolist(), interval_of(values_SR), strict=True)
        for (cell, n, metric, coordinates), (seeds, values, (mean, low, high)) in zip(names, measured, strict=True):
            group = groups[n]
            rows[cell, n] = {
                "metric": metric,
                "verb": group.verb,
                **dict(coordinates),
                "settings": group.settings,
                "mean": mean,
                "low": low,
                "high": high,
                "n_seeds": len(values),
                "seeds": seeds,
                "values": values,
                "baseline": groups[partner[n]].settings if n in partner else None,
                "n_pairs": 0,
                **dict.fromkeys(["difference", "difference_low", "difference_high", "p", "p_holm"]),
                "p_is_bound": False,
                **group.costs,
            }
    mine = numbers[numbers["group"].isin(partner)]
    pairs = mine.assign(partner=[partner[group] for group in mine["group"]]).merge(
        numbers,
        left_on=["cell", "partner", "nth_seed"],
        right_on=["cell", "group", "nth_seed"],
        suffixes=("", "_there"),
    )
    for firsts, (mine_SR, theirs_SR) in by_n_seeds(pairs, "value", "value_there"):
        p_R, is_bound_R = paired_p(mine_SR, theirs_SR)
        keys = zip(firsts["cell"], firsts["group"], strict=True)
        tests = zip(keys, interval_of(mine_SR - theirs_SR), p_R, is_bound_R, strict=True)
        for key, (difference, low, high), p, is_bound in tests:
            rows[key] |= {
                "n_pairs": len(mine_SR),
                "difference": difference,
                "difference_low": low,
                "difference_high": high,
                "p": None if np.isnan(p) else float(p),
                "p_is_bound": bool(is_bound),
            }
    return dict(sorted(rows.items()))


def by_n_seeds(numbers: DataFrame, *columns: str) -> Iterator[tuple[DataFrame, list[Any]]]:
    """Yield, for each number of seeds S, the R pairs (cell, group) that have S seeds.

    Each yielded tuple has a table, with one row of `numbers` for each pair, and a list of arrays [S, R], one for each
    name in `columns`.
    """
    n_seeds = numbers.groupby(["cell", "group"])["value"].transform("size")
    for n, some in numbers.groupby(n_seeds):
        yield some.iloc[:: int(n)], [some[name].to_numpy().reshape(-1, int(n)).T for name in columns]


def interval_of(values_SR: Array) -> list[tuple[Any, Any, Any]]:
    """For each column of `values_SR`, the mean over the S seeds and the ends of its 95 % interval: (mean, low, high).

    A number that overflows is None. With one seed, low and high are None.
    """
    means, halves = values_SR.mean(0), half_width(values_SR)
    low, high = means - halves, means + halves
    found = np.array([means, low, high], dtype=object)
    found[~np.isfinite([means, high - low, high - low])] = None
    return list(zip(*found.tolist(), strict=True))


def correct(rows: Rows, partner: Mapping[int, int], odd: DataFrame) -> None:
    """Fill in the field `p_holm` of the rows, by Holm's correction.

    A family of tests consists of all groups that are compared with a baseline in one cell. The size of a family must
    not depend on the results. So a group counts even if it has too few seeds for a p-value, or if it has no row because
    none of its numbers is finite. odd: the numbers that are not finite.
    """
    for cell, keys in groupby((key for key, row in rows.items() if row["baseline"] is not None), key=itemgetter(0)):
        family = [rows[key] for key in keys]
        lost = [n for n in odd.loc[odd["cell"] == cell, "group"].unique() if n in partner and (cell, n) not in rows]
        p = [np.nan if row["p"] is None else row["p"] for row in family]
        for row, corrected in zip(family, holm(p + [np.nan] * len(lost)), strict=False):
            row["p_holm"] = None if np.isnan(corrected) else corrected


# -- remarks


def about_baseline(rows: Rows, groups: Sequence[Group], wanted: Wanted, partner: Mapping[int, int]) -> Iterator[str]:
    settings = values_of(groups)
    if not settings:
        yield "no setting varies among these runs: there is no difference to show"
    elif not any(wanted.values()):
        key, values = next(iter(settings.items()))
        yield (
            f"no differences are shown: name a baseline, such as baseline={key}={format_setting(values[0])}; "
            f"{choices(groups)}"
        )
    unpaired = {
        n for (cell, n), row in rows.items() if not row["n_pairs"] and (n not in partner or (cell, partner[n]) in rows)
    }
    alone = [groups[n].name for n in sorted(unpaired) if not is_met(wanted.get(groups[n].verb, {}), groups[n])]
    if alone and any(wanted.values()):
        yield f"no difference is shown for {some(alone)}: no baseline run has the same other settings and the same seed"


def remarks_of(groups: Sequence[Group], numbers: DataFrame) -> Iterator[str]:
    """The remarks on the numbers of each verb."""
    lost = [str(run.directory) for group in groups for run in group.sources if run.manifest.get("run") is not None]
    if lost:
        yield (
            f"{some(lost)} measured a training run that no longer exists: its settings are known only if they were "
            "typed"
        )
    for verb in dict.fromkeys(group.verb for group in groups):
        own = {n: group for n, group in enumerate(groups) if group.verb == verb}
        here = numbers[numbers["group"].isin(own)]
        models = [model for group in own.values() for model in group.models]
        for found in (about_seeds(own, here), about_facts(models), about_confounded(models), about_rates(own, here)):
            yield from (f"{verb}: {remark}" if verb else remark for remark in found)


def about_seeds(groups: Mapping[int, Group], numbers: DataFrame) -> Iterator[str]:
    """Remarks on settings with few seeds, and on numbers that only some seeds or settings have."""
    n_seeds = numbers.groupby(["group", "cell"]).size()
    most = n_seeds.groupby("group").max()
    for n, what in (
        (1, "only one seed, so there is no interval and no test"),
        (2, f"only two seeds, so the interval is very wide, {error_widths(2):.1f} standard errors each way"),
    ):
        if names := [groups[group].name for group in most.index[most == n]]:
            yield f"{what}: {some(names)}"
    first = numbers.drop_duplicates("cell").set_index("cell")
    torn = [(group, first.loc[cell]) for (group, cell), n in n_seeds.items() if n < len(groups[group].seeds)]
    if torn:
        names = [
            f"{row['metric']} at {format_settings(dict(row['coordinates']))} of {groups[group].name}"
            for group, row in torn
        ]
        yield f"measured with only some of the setting's seeds: {some(names)}"
    judged = numbers[numbers["metric"].map(direction) != 0]
    known = judged.groupby("cell")["group"].nunique()
    lacking = first.loc[known.index[known < judged["group"].nunique()]]
    if len(lacking):
        names = [f"{row['metric']} at {format_settings(dict(row['coordinates']))}" for _, row in lacking.iterrows()]
        yield f"measured for only some of the settings: {some(names)}"
    scored = numbers[numbers["metric"] == "scored_targets"].groupby("cell")["value"]
    if (scored.nunique() > 1).any():
        yield "the models were scored on different numbers of targets"


def about_facts(models: Sequence[Model]) -> Iterator[str]:
    """A remark on the facts that differ among the runs, but must be equal for a fair comparison."""
    facts = DataFrame({model.origin: model.facts for model in models}, dtype=object).T.fillna("unknown")
    found = [
        f"the {name}: {some(f'{value} ({n:,})' for value, n in facts[name].value_counts().items())}"
        for name in facts.columns[facts.nunique() > 1]
    ]
    if found:
        yield f"runs differ in {'; in '.join(found)}; the differences in their results may come from that"


def about_confounded(models: Sequence[Model]) -> Iterator[str]:
    """A remark on settings that change together, so that nobody can tell which of them made a difference."""
    kept, following = varying(models)
    names = {key: leaders for key, leaders in following.items() if key.partition(".")[0] not in kept}
    if names:
        together = some(f"{key} with {' and '.join(leaders)}" for key, leaders in names.items())
        yield f"some settings always change together, {together}: a difference may come from either"


def about_rates(groups: Mapping[int, Group], numbers: DataFrame) -> Iterator[str]:
    """A remark on settings whose best learning rate is the smallest or the largest that was tried.

    The best rate is the rate with the best mean. Only the table's first metric of quality is used, at the metric's
    first coordinates (such as length=128).
    """
    judged = numbers[numbers["metric"].map(direction) != 0]
    first = judged[judged["cell"] == judged["cell"].min()]
    rates: dict[str, dict[int, float]] = {}
    for n, group in groups.items():
        if isinstance(rate := group.settings.get(RATE), int | float):
            rest = format_settings({key: value for key, value in group.settings.items() if key != RATE})
            rates.setdefault(rest, {})[n] = rate
    at_edge = []
    for name, rate_of in rates.items():
        own = first[first["group"].isin(rate_of)]
        means = (own["value"] * own["metric"].map(direction)).groupby(own["group"].map(rate_of)).mean()
        best, tried = means.index[means == means.max()], sorted({*rate_of.values()})  # diverged rates count as tried
        if len(tried) > 1 and len(best) == 1 and best[0] in (tried[0], tried[-1]):
            at_edge.append(f"{name} ({best[0]:g})")
    if at_edge:
        yield (
            f"the best {RATE} is the smallest or the largest that was tried, so a better one may lie beyond it: "
            f"{some(at_edge)}"
        )


# -- training curves


def training_curves(groups: Sequence[Group]) -> tuple[list[dict[str, Any]], list[str]]:
    """The training curves of the groups, and a message for each run whose metrics cannot be read.

    A curve is a record in the format of comparison.json. For each number of training tokens, it has the mean over seeds
    of the held-out loss and the 95 % interval. If several groups share their training runs, only the first group has a
    curve.
    """
    curves: list[dict[str, Any]] = []
    damaged: list[str] = []
    drawn: set[Path] = set()
    for group in [group for group in groups if group.verb == "train"] or groups:
        losses: dict[Path, dict[int, float]] = {}
        for run in [run for run in group.sources if run.verb == "train"]:
            lines = run.metrics()
            if not lines:
                damaged.append(f"{run.directory / METRICS} is missing or empty: no training curve of this run")
            tokens = (run.tokens_seen or 1) // (run.settings.get("trainer.max_steps") or 1)  # per step
            known = [line for line in lines if isinstance(line.get(HELD_OUT), int | float)]
            losses[run.directory] = {line["step"] * tokens: float(line[HELD_OUT]) for line in known}
        by_seed = DataFrame({directory: loss for directory, loss in losses.items() if loss}).dropna().sort_index()
        if by_seed.empty or losses.keys() <= drawn:
            continue
        drawn |= losses.keys()
        steps = list(range(0, len(by_seed), -(-len(by_seed) // POINTS)))
        some_points = by_seed.iloc[steps if steps[-1] == len(by_seed) - 1 else [*steps, -1]]
        values_SP = some_points.to_numpy(np.float64).T
        mean, half = values_SP.mean(0), half_width(values_SP)
        sure = len(values_SP) > 1
        curves.append(
            {
                "settings": group.settings,
                "metric": HELD_OUT,
                "tokens": some_points.index.to_numpy(np.float64).tolist(),
                "mean": mean.tolist(),
                "low": (mean - half).tolist() if sure else None,
                "high": (mean + half).tolist() if sure else None,
                "n_seeds": len(values_SP),
            }
        )
    return curves, damaged
