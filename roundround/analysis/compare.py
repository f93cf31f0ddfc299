"""Runs compared: `rr.compare`, and what a reader has to know: few seeds, what makes runs incomparable, what is missing.

Tested by tests/analysis/test_compare.py.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from pandas import DataFrame

from roundround.analysis.comparison import (
    Comparison,
    Group,
    as_typed,
    choices,
    comparison_of,
    counted,
    format_setting,
    format_settings,
    order,
    varying,
)
from roundround.analysis.intervals import error_widths
from roundround.analysis.load import Coordinates, Replicate, load
from roundround.analysis.past_run import direction
from roundround.support.errors import UserError

OWN = {"paths", "baseline", "metric", "outputs"}  # arguments, which are no filters
NAMED = 3  # of many
ENOUGH = 3  # seeds
MANY = 4  # settings that vary
RATE = "optim.lr"


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
    it is among the runs. metric: the ones to compare; all without one. where: filters on the runs, as `roundround runs`
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


# -- remarks


def remarks_of(comparison: Comparison, *, without_baseline: bool = False) -> list[str]:
    """All that a reader has to know, one sentence an item. without_baseline: none was asked for."""
    found = [] if without_baseline else [*about_baseline(comparison)]
    if comparison.skipped:
        listed = some([f"{run} ({why})" for run, why in comparison.skipped])
        found.insert(0, f"{counted(len(comparison.skipped), 'run')} left out: {listed}")
    huge = [row for row in comparison.table if row.n_seeds > 1 and row.low is None]
    if huge:
        names = list(dict.fromkeys(f"{row.metric} of {row.group.name}" for row in huge))
        found.append(f"{some(names)}: the numbers are too large for an interval (a run diverged?)")
    for verb in dict.fromkeys(group.verb for group in comparison.groups):
        groups = {n: group for n, group in enumerate(comparison.groups) if group.verb == verb}
        replicates = [replicate for group in groups.values() for replicate in group.replicates]
        numbers = comparison.numbers[comparison.numbers["group"].isin(groups)]
        name = verb or ""
        found += [*about_seeds(name, groups, numbers), *about_repeats(groups.values()), *about_facts(name, replicates)]
        found += [*about_targets(name, numbers), *about_confounded(replicates), *about_gaps(name, groups, numbers)]
        found += about_rates(groups, numbers)
    return list(dict.fromkeys(found))


def about_baseline(comparison: Comparison) -> Iterator[str]:
    if not comparison.settings:
        yield "nothing varies among these runs but the seed: there is no difference to show"
        return
    baseline = comparison.baseline
    if baseline is None:
        key, values = next(iter(comparison.settings.items()))
        example = f"baseline={key}={format_setting(values[0])}"
        if len(comparison.settings) > MANY:
            listed = f"{len(comparison.settings):,} settings vary ({some([*comparison.settings])})"
            way_out = f"name a sweep, a filter such as verb=eval, or a baseline such as {example}"
            yield f"these runs share too little to be compared: {listed}; {way_out}"
            return
        yield f"no differences: name a baseline, such as {example}; {choices(comparison.groups)}"
        return
    unpaired = [row for row in comparison.table if not row.pairs]
    alone = {row.group.name: None for row in unpaired if row.baseline is None and not baseline.is_met(row.group)}
    if alone:
        yield f"no run with {baseline} that is else the same as {some(list(alone))}: no difference there"
    apart = {row.group.name: row for row in comparison.table if row.baseline and 0 < len(row.pairs) < row.n_seeds}
    for name, row in apart.items():
        seeds = counted(row.n_seeds, "seed")
        yield f"{name} has {seeds} and its baseline {len(row.pairs)} of them: the difference is of these"
    measured = {(row.group, row.metric, *row.coordinates.items()) for row in comparison.table}
    there = [row for row in unpaired if (row.baseline, row.metric, *row.coordinates.items()) in measured]
    without = dict.fromkeys(row.group.name for row in there)
    if without:
        yield f"{some(list(without))} and the baseline have no seed in common at some place: no difference there"


def about_seeds(verb: str, groups: Mapping[int, Group], numbers: DataFrame) -> Iterator[str]:
    most = numbers.groupby(["group", "cell"]).size().groupby("group").max()
    two = (most > 1) & (most < ENOUGH)
    wide = f"{error_widths(2):.1f} standard errors each way" if two.any() else ""
    for few, what in (
        (most == 1, "one seed: no interval and no test; three seeds or more give them"),
        (two, f"two seeds: an interval of {wide}, which is very wide"),
    ):
        names = [groups[n].name for n in most.index[few]]
        if names:
            have = "every setting has" if few.all() else f"{some(names)} ha{'s' if len(names) == 1 else 've'}"
            yield f"{label(verb, ':')}{have} {what}"


def about_repeats(groups: Iterable[Group]) -> Iterator[str]:
    pairs = [(group.name, *pair) for group in groups for pair in group.replaced]
    for name, earlier, later in pairs[:1]:
        more = f", and so {counted(len(pairs) - 1, 'more pair')}" if len(pairs) > 1 else ""
        yield (
            f"{earlier.origin} and {later.origin} have the same settings and seed ({name}, seed {later.seed}) and "
            f"different numbers: the one that started last is taken{more}"
        )


def about_facts(verb: str, replicates: Sequence[Replicate]) -> Iterator[str]:
    """What has to be equal for a fair comparison, and is not."""
    facts = DataFrame([replicate.facts for replicate in replicates], dtype=object).fillna("unknown")
    runs = facts.assign(origin=[replicate.origin for replicate in replicates])
    found = []
    for name in facts.columns[facts.nunique() > 1]:
        origins = runs.groupby(name, sort=False)["origin"].agg(["nunique", "first"])
        origins = origins.sort_values("nunique", ascending=False, kind="stable")
        often, *rarer = [(value, counted(n, "run"), first) for value, n, first in origins.itertuples()]
        listed = [f"{often[0]} ({often[1]})", *(f"{value} ({n}, such as {first})" for value, n, first in rarer)]
        found.append(f"the {name}: {some(listed)}")
    if found:
        yield f"{label(verb)}runs differ in {'; in '.join(found)}; differences between them may come from that"


def about_targets(verb: str, numbers: DataFrame) -> Iterator[str]:
    """Models that were scored on different targets."""
    scored = numbers[numbers["metric"] == "scored_targets"].groupby("cell")
    counts = {cell: sorted(here.unique()) for cell, here in scored["value"]}
    for cell in [cell for cell, some_counts in counts.items() if len(some_counts) > 1][:1]:
        where = format_settings(dict(scored["coordinates"].first()[cell]))
        listed = " and ".join(f"{count:,.0f}" for count in counts[cell][:NAMED])
        yield f"{label(verb)}runs were scored on different targets at {where}: {listed} of them"


def about_confounded(replicates: Sequence[Replicate]) -> Iterator[str]:
    """Settings that change together, so that nobody can tell which of them made a difference."""
    kept, following = varying(replicates)
    confounded = [(key, leaders) for key, leaders in following.items() if key.partition(".")[0] not in kept]
    for key, leaders in confounded[:1]:
        lead = leaders[0]
        values = {replicate.settings.get(lead): replicate.settings.get(key) for replicate in replicates}
        pairs = [f"{format_setting(values[v])} with {lead}={format_setting(v)}" for v in sorted(values, key=order)]
        together = f"{' and '.join(leaders)} ({some(pairs)})"
        others = f"; others that change together: {some([key for key, _ in confounded[1:]])}" if confounded[1:] else ""
        yield f"{key} changes together with {together}: a difference may come from either{others}"


def about_gaps(verb: str, groups: Mapping[int, Group], numbers: DataFrame) -> Iterator[str]:
    """Metrics and coordinates that only some of the models have."""
    n_seeds = numbers.groupby(["cell", "group"]).size()
    torn = {cell for (cell, group), n in n_seeds.items() if n < len(groups[group].seeds)}
    if verb == "max-retrieval":  # without a normaliser it has numbers of the logits, which none has changed
        numbers = numbers[[groups[n].replicates[0].settings.get("softmax") is not None for n in numbers["group"]]]
    models = list(dict.fromkeys(zip(numbers["group"], numbers["seed"], strict=True)))
    gaps: dict[str, list[DataFrame]] = defaultdict(list)
    for _, here in numbers.groupby("cell"):
        if len(here) < len(models):
            gaps[here["metric"].iloc[0]].append(here)
    # some seeds of a setting have it and others have not; facts of an encoding are not known of all
    odd = {
        metric: (here, frames)
        for metric, frames in gaps.items()
        for here in reversed(frames)
        if direction(metric) or here["cell"].iloc[0] in torn
    }
    for metric, (here, frames) in list(odd.items())[:1]:
        having, coordinates = set(zip(here["group"], here["seed"], strict=True)), here["coordinates"].iloc[0]
        group, seed = min((model for model in models if model not in having), key=itemgetter(0))
        without = f"{groups[group].name}{'' if seed is None else f', seed {seed}'}"
        where = f"{metric}{at(coordinates)} is known of {len(here)} of {len(models)} models"
        others = f"; the same of {some(list(odd)[1:])}" if len(odd) > 1 else ""
        yield f"{label(verb, ':')}{where}, not of {without}{and_more(frames)}{others}"


def about_rates(groups: Mapping[int, Group], numbers: DataFrame) -> Iterator[str]:
    """Whether the best learning rate lies on the edge of its grid, once for each setting of the rest."""
    cells = numbers.drop_duplicates("cell").set_index("cell")[["metric", "coordinates"]]
    cells = cells[cells["metric"].map(direction) != 0]
    n_coordinates = cells["coordinates"].map(len)
    if cells.empty or not all(RATE in group.settings for group in groups.values()):
        return
    metric = cells["metric"][n_coordinates.idxmin()]  # the first of the metrics with the fewest coordinates
    chosen = cells.index[(cells["metric"] == metric) & (n_coordinates == n_coordinates.min())]
    families: dict[str, dict[int, float]] = defaultdict(dict)
    for n, group in groups.items():
        if isinstance(rate := group.settings[RATE], int | float):
            families[format_settings({key: value for key, value in group.settings.items() if key != RATE})][n] = rate
    for name, rate_of in families.items():
        own = numbers[numbers["cell"].isin(chosen) & numbers["group"].isin(rate_of)]
        own = own.assign(rate=own["group"].map(rate_of), score=direction(metric) * own["value"])
        at_edge = []
        means = own.groupby(["cell", "rate"])["score"].mean()
        for cell, some_means in groupby(means.items(), key=lambda item: item[0][0]):
            scores = {rate: score for (_, rate), score in some_means}
            best = [rate for rate, score in scores.items() if score == max(scores.values())]
            rates = sorted({*rate_of.values()})  # with the rates that diverged
            if len(rates) > 1 and len(best) == 1 and best[0] in (rates[0], rates[-1]):
                at_edge.append((cells["coordinates"][cell], best[0], rates))
        for coordinates, rate, rates in at_edge[:1]:
            edge, beyond = ("largest", "larger") if rate == rates[-1] else ("smallest", "smaller")
            of = "" if name == "all runs" else f"{name}: "
            where = at(coordinates) if len(chosen) > 1 else ""
            yield (
                f"{of}the best {RATE} by {metric}{where}, {rate:g}, is the {edge} of "
                f"{', '.join(f'{r:g}' for r in rates)}: a {beyond} one may be better{and_more(at_edge)}"
            )


def label(verb: str, mark: str = "") -> str:
    """The verb as a sentence begins with it; nothing for the rows of a file."""
    return f"{verb}{mark} " if verb else ""


def at(coordinates: Coordinates) -> str:
    return f" at {format_settings(dict(coordinates))}" if coordinates else ""


def and_more(found: Sequence[Any]) -> str:
    return f" (and so at {counted(len(found) - 1, 'more place')})" if len(found) > 1 else ""


def some(items: Sequence[str]) -> str:
    """The first few, and how many more."""
    more = len(items) - NAMED
    return ", ".join(items[:NAMED]) + (f" and {more:,} more" if more > 0 else "")
