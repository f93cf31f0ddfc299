"""What a reader of a comparison has to know: few seeds, what makes runs incomparable, what is missing.

Tested by tests/analysis/test_compare.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from pandas import DataFrame

from roundround.analysis.comparison import Comparison, Group, choices, format_setting, format_settings, order, varying
from roundround.analysis.intervals import error_widths
from roundround.analysis.past_run import direction

NAMED = 3  # of many
ENOUGH = 3  # seeds
RATE = "optim.lr"


def remarks_of(comparison: Comparison) -> list[str]:
    """All that a reader has to know, one sentence an item."""
    found = [*about_skipped(comparison.skipped), *about_baseline(comparison), *about_size(comparison)]
    for verb in dict.fromkeys(group.verb for group in comparison.groups):
        own = [n for n, group in enumerate(comparison.groups) if group.verb == verb]  # they stand together
        groups = [comparison.groups[n] for n in own]
        numbers = comparison.numbers[comparison.numbers["group"].isin(own)]
        numbers = numbers.assign(group=numbers["group"] - own[0])
        found += [*about_seeds(groups, numbers), *about_repeats(groups), *about_facts(groups, numbers)]
        found += [*about_confounded(groups), *about_gaps(groups, numbers), *about_rates(groups, numbers)]
    return list(dict.fromkeys(found))


def about_skipped(skipped: Sequence[tuple[str, str]]) -> Iterator[str]:
    if skipped:
        listed = some([f"{run} ({why})" for run, why in skipped])
        yield f"{n_of(len(skipped), 'run')} left out: {listed}"


def about_baseline(comparison: Comparison) -> Iterator[str]:
    if not comparison.settings:
        yield "nothing varies among these runs but the seed: there is no difference to show"
        return
    baseline = comparison.baseline
    if baseline is None:
        key, values = next(iter(comparison.settings.items()))
        example = f"baseline={key}={format_setting(values[0])}"
        yield f"no differences: name a baseline, such as {example}; {choices(comparison.groups)}"
        return
    rows = [row for row in comparison.table if row.baseline is None and not baseline.is_met(row.group)]
    alone = dict.fromkeys(row.group.name for row in rows)
    if alone:
        yield f"no run with {baseline} that is else the same as {some(list(alone))}: no difference there"
    apart = {row.group.name: row for row in comparison.table if row.baseline and 0 < len(row.pairs) < row.n_seeds}
    for name, row in apart.items():
        seeds = n_of(row.n_seeds, "seed")
        yield f"{name} has {seeds} and its baseline {len(row.pairs)} of them: the difference is of these"
    measured = {(row.group, row.metric, *row.place.items()) for row in comparison.table}
    unpaired = [row for row in comparison.table if row.baseline and not row.pairs]
    there = [row for row in unpaired if (row.baseline, row.metric, *row.place.items()) in measured]
    without = dict.fromkeys(row.group.name for row in there)
    if without:
        yield f"{some(list(without))} and the baseline have no seed in common at some place: no difference there"


def about_size(comparison: Comparison) -> Iterator[str]:
    """Numbers of diverged runs: their spread is larger than every float."""
    rows = [row for row in comparison.table if row.n_seeds > 1 and row.low is None]
    if rows:
        named = dict.fromkeys(f"{row.metric} of {row.group.name}" for row in rows)
        yield f"{some(list(named))}: the numbers are too large for an interval (a run diverged?)"


def about_seeds(groups: Sequence[Group], numbers: DataFrame) -> Iterator[str]:
    most = numbers.groupby(["group", "cell"]).size().groupby("group").max()
    wide = f"{error_widths(2):.1f} standard errors each way"
    for few, what in (
        (most == 1, "one seed: no interval and no test; three seeds or more give them"),
        ((most > 1) & (most < ENOUGH), f"two seeds: an interval of {wide}, which is very wide"),
    ):
        names = [groups[n].name for n in most.index[few]]
        if names:
            have = "every setting has" if few.all() else f"{some(names)} ha{'s' if len(names) == 1 else 've'}"
            yield f"{label(groups, ':')}{have} {what}"


def about_repeats(groups: Sequence[Group]) -> Iterator[str]:
    pairs = [(group, *pair) for group in groups for pair in group.replaced]
    if pairs:
        group, earlier, later = pairs[0]
        same = f"{group.name}, seed {later.seed}"
        more = f", and so {n_of(len(pairs) - 1, 'more pair')}" if len(pairs) > 1 else ""
        yield (
            f"{earlier.origin} and {later.origin} have the same settings and seed ({same}) and "
            f"different numbers: the one that started last is taken{more}"
        )


def about_facts(groups: Sequence[Group], numbers: DataFrame) -> Iterator[str]:
    """What has to be equal for a fair comparison, and is not."""
    trials = [trial for group in groups for trial in group.trials]
    for name in dict.fromkeys(name for trial in trials for name in trial.facts):
        origins: dict[str, dict[str, None]] = defaultdict(dict)
        for trial in trials:
            origins[trial.facts.get(name, "unknown")][trial.origin] = None
        if len(origins) == 1:
            continue
        often, *rarer = sorted(origins, key=lambda value: -len(origins[value]))
        listed = [f"{often} ({n_of(len(origins[often]), 'run')})"]
        listed += [f"{v} ({n_of(len(origins[v]), 'run')}, such as {next(iter(origins[v]))})" for v in rarer]
        yield (f"{label(groups)}runs differ in the {name}: {some(listed)}; differences between them may come from that")
    for _, scored in numbers[numbers["metric"] == "scored_targets"].groupby("cell"):
        counts = sorted(scored["value"].unique())
        if len(counts) > 1:
            where = format_settings(dict(scored["coordinates"].iloc[0]))
            listed_counts = " and ".join(f"{count:,.0f}" for count in counts[:NAMED])
            yield f"{label(groups)}runs were scored on different targets at {where}: {listed_counts} of them"
            return


def about_confounded(groups: Sequence[Group]) -> Iterator[str]:
    """Settings that change together, so that nobody can tell which of them made a difference."""
    trials = [trial for group in groups for trial in group.trials]
    kept, following = varying(trials)
    heads = {key.partition(".")[0] for key in kept}
    for key, leaders in following.items():
        if key.partition(".")[0] in heads:
            continue
        lead = leaders[0]
        values = {trial.settings.get(lead): trial.settings.get(key) for trial in trials}
        listed = [f"{format_setting(values[v])} with {lead}={format_setting(v)}" for v in sorted(values, key=order)]
        yield f"{key} changes together with {' and '.join(leaders)} ({some(listed)}): a difference may come from either"


def about_gaps(groups: Sequence[Group], numbers: DataFrame) -> Iterator[str]:
    """Metrics and places that only some of the models have."""
    n_seeds = numbers.groupby(["cell", "group"]).size()
    torn = {cell for (cell, group), n in n_seeds.items() if n < len(groups[group].seeds)}
    if groups[0].verb == "max-retrieval":  # without a normaliser it has numbers of the logits, which none has changed
        numbers = numbers[[groups[n].trials[0].settings.get("softmax") is not None for n in numbers["group"]]]
    models = list(dict.fromkeys(zip(numbers["group"], numbers["seed"], strict=True)))
    gaps: dict[str, list[DataFrame]] = defaultdict(list)
    for _, here in numbers.groupby("cell"):
        if len(here) < len(models):
            gaps[here["metric"].iloc[0]].append(here)
    for metric, frames in gaps.items():
        # some seeds of a setting have it and others have not; facts of an encoding are not known of all
        telling = [here for here in frames if direction(metric) or here["cell"].iloc[0] in torn]
        if not telling:
            continue
        here, coordinates = telling[0], telling[0]["coordinates"].iloc[0]
        having = set(zip(here["group"], here["seed"], strict=True))
        group, seed = min((model for model in models if model not in having), key=lambda model: model[0])
        without = f"{groups[group].name}{'' if seed is None else f', seed {seed}'}"
        where = f" at {format_settings(dict(coordinates))}" if coordinates else ""
        more = f" (and so at {n_of(len(frames) - 1, 'more place')})" if len(frames) > 1 else ""
        share = f"{len(here)} of {len(models)} models"
        yield f"{label(groups, ':')}{metric}{where} is known of {share}, not of {without}{more}"


def about_rates(groups: Sequence[Group], numbers: DataFrame) -> Iterator[str]:
    """Whether the best learning rate lies on the edge of its grid, once for each setting of the rest."""
    cells = numbers.drop_duplicates("cell").set_index("cell")[["metric", "coordinates"]]
    cells = cells[cells["metric"].map(direction) != 0]
    if cells.empty or RATE not in groups[0].settings:
        return
    n_coordinates = cells["coordinates"].map(len)
    metric = cells["metric"][n_coordinates.idxmin()]  # the most telling of those that are measured in least detail
    chosen = cells.index[(cells["metric"] == metric) & (n_coordinates == n_coordinates.min())]
    families: dict[str, dict[int, float]] = defaultdict(dict)
    for n, group in enumerate(groups):
        if isinstance(rate := group.settings[RATE], int | float):
            families[format_settings({key: value for key, value in group.settings.items() if key != RATE})][n] = rate
    for name, rate_of in families.items():
        own = numbers[numbers["cell"].isin(chosen) & numbers["group"].isin(rate_of)]
        own = own.assign(rate=own["group"].map(rate_of), score=direction(metric) * own["value"])
        at_edge = []
        for _, here in own.groupby("cell"):
            scores = here.groupby("rate")["score"].mean()
            rates, best = list(scores.index), list(scores.index[scores == scores.max()])
            if len(rates) > 1 and len(best) == 1 and best[0] in (rates[0], rates[-1]):
                at_edge.append((here["coordinates"].iloc[0], best[0], rates))
        if at_edge:
            coordinates, best_rate, rates = at_edge[0]
            edge, beyond = ("largest", "larger") if best_rate == rates[-1] else ("smallest", "smaller")
            of = "" if name == "all runs" else f"{name}: "
            where = f" at {format_settings(dict(coordinates))}" if len(chosen) > 1 else ""
            more = f" (and so at {n_of(len(at_edge) - 1, 'more place')})" if len(at_edge) > 1 else ""
            yield (
                f"{of}the best {RATE} by {metric}{where}, {best_rate:g}, is the {edge} of "
                f"{', '.join(f'{r:g}' for r in rates)}: a {beyond} one may be better{more}"
            )


def label(groups: Sequence[Group], mark: str = "") -> str:
    """The verb that the groups are of, as a sentence begins with it; nothing for those of a file."""
    return f"{groups[0].verb}{mark} " if groups[0].verb else ""


def some(items: Sequence[str]) -> str:
    """The first few, and how many more."""
    more = len(items) - NAMED
    return ", ".join(items[:NAMED]) + (f" and {more:,} more" if more > 0 else "")


def n_of(n: int, name: str) -> str:
    return f"{n:,} {name}{'' if n == 1 else 's'}"
