"""What a reader of a comparison has to know: few seeds, what makes runs incomparable, what is missing."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from roundround.analysis.baseline import choices
from roundround.analysis.comparison import Comparison, Row
from roundround.analysis.groups import Group, order, shown, varying, words
from roundround.analysis.intervals import error_widths
from roundround.analysis.quality import direction
from roundround.analysis.trials import Cell, Trial

NAMED = 3  # of many
ENOUGH = 3  # seeds
RATE = "optim.lr"


def remarks_of(comparison: Comparison) -> list[str]:
    """All that is to be said, one sentence an item."""
    by_verb: dict[str | None, list[Group]] = defaultdict(list)
    for group in comparison.groups:
        by_verb[group.verb].append(group)
    found = [*about_skipped(comparison.skipped), *about_baseline(comparison), *about_size(comparison)]
    for groups in by_verb.values():
        for say in (about_seeds, about_repeats, about_facts, about_company, about_gaps, about_rates):
            found += say(groups)
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
        example = f"baseline={key}={shown(values[0])}"
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
    without = dict.fromkeys(row.group.name for row in comparison.table if row.baseline and has_other_seeds(row))
    if without:
        yield f"{some(list(without))} and the baseline have no seed in common at some place: no difference there"


def about_size(comparison: Comparison) -> Iterator[str]:
    """Numbers of diverged runs: their spread is larger than every float."""
    rows = [row for row in comparison.table if row.n_seeds > 1 and row.low is None]
    if rows:
        named = dict.fromkeys(f"{row.metric} of {row.group.name}" for row in rows)
        yield f"{some(list(named))}: the numbers are too large for an interval (a run diverged?)"


def has_other_seeds(row: Row) -> bool:
    """Whether the baseline was measured there, with none of the seeds of this setting."""
    there = (row.metric, tuple(row.place.items()))
    return row.baseline is not None and not row.pairs and there in row.baseline.numbers


def about_seeds(groups: Sequence[Group]) -> Iterator[str]:
    verb = f"{groups[0].verb}: " if groups[0].verb else ""
    counts = {group.name: max(map(len, group.numbers.values())) for group in groups}
    one = [name for name, n in counts.items() if n == 1]
    if one:
        which = "every setting has" if len(one) == len(groups) else f"{some(one)} ha{'s' if len(one) == 1 else 've'}"
        yield f"{verb}{which} one seed: no interval and no test; three seeds or more give them"
    few = [name for name, n in counts.items() if 1 < n < ENOUGH]
    if few:
        which = "every setting has" if len(few) == len(groups) else f"{some(few)} ha{'s' if len(few) == 1 else 've'}"
        wide = f"{error_widths(2):.1f} standard errors each way"
        yield f"{verb}{which} two seeds: an interval of {wide}, which is very wide"


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


def about_facts(groups: Sequence[Group]) -> Iterator[str]:
    """What has to be equal for a fair comparison, and is not."""
    trials = [trial for group in groups for trial in group.trials]
    verb = f"{groups[0].verb} " if groups[0].verb else ""
    for name in dict.fromkeys(name for trial in trials for name in trial.facts):
        values = distribution(trials, name)
        if len(values) > 1:
            yield f"{verb}runs differ in the {name}: {some(values)}; differences between them may come from that"
    targets = [cell for group in groups for cell in group.numbers if cell[0] == "scored_targets"]
    for cell in dict.fromkeys(targets):
        counts = {count for group in groups for count in group.numbers.get(cell, {}).values()}
        if len(counts) > 1:
            numbers = " and ".join(f"{count:,.0f}" for count in sorted(counts)[:NAMED])
            yield f"{verb}runs were scored on different targets at {words(dict(cell[1]))}: {numbers} of them"
            return


def distribution(trials: Iterable[Trial], name: str) -> list[str]:
    """The values of a fact with the number of runs, the rarest with an example."""
    origins: dict[str, dict[str, None]] = defaultdict(dict)
    for trial in trials:
        origins[trial.facts.get(name, "unknown")][trial.origin] = None
    by_count = sorted(origins, key=lambda value: -len(origins[value]))
    return [
        f"{value} ({n_of(len(origins[value]), 'run')}{'' if place == 0 else f', such as {next(iter(origins[value]))}'})"
        for place, value in enumerate(by_count)
    ]


def about_company(groups: Sequence[Group]) -> Iterator[str]:
    """Settings that change together, so that nobody can tell which of them made a difference."""
    trials = [trial for group in groups for trial in group.trials]
    kept, following = varying(trials)
    heads = {key.partition(".")[0] for key in kept}
    for key, leaders in following.items():
        if key.partition(".")[0] in heads:
            continue
        lead = leaders[0]
        values = {trial.settings.get(lead): trial.settings.get(key) for trial in trials}
        listed = [f"{shown(values[v])} with {lead}={shown(v)}" for v in sorted(values, key=order)]
        yield f"{key} changes together with {' and '.join(leaders)} ({some(listed)}): a difference may come from either"


def about_gaps(groups: Sequence[Group]) -> Iterator[str]:
    """Metrics and places that only some of the models have."""
    trials: dict[tuple[int, Any], set[Any]] = {}
    for n, group in enumerate(groups):
        if group.verb == "max-retrieval" and group.trials[0].settings.get("softmax") is None:
            continue  # numbers of the logits, which no normaliser has changed
        for cell, by_seed in group.numbers.items():
            for seed in by_seed:
                trials.setdefault((n, seed), set()).add(cell)
    counts = Counter(cell for cells in trials.values() for cell in cells)
    verb = f"{groups[0].verb}: " if groups[0].verb else ""
    told: set[str] = set()
    for cell, count in counts.items():
        metric, place = cell
        if count == len(trials) or metric in told or not (direction(metric) or lacks_seeds(groups, cell)):
            continue
        told.add(metric)
        n, seed = next(key for key, cells in trials.items() if cell not in cells)
        without = f"{groups[n].name}{'' if seed is None else f', seed {seed}'}"
        where = f" at {words(dict(place))}" if place else ""
        also = sum(other[0] == metric and c < len(trials) for other, c in counts.items()) - 1
        more = f" (and so at {n_of(also, 'more place')})" if also else ""
        yield f"{verb}{metric}{where} is known of {count} of {len(trials)} models, not of {without}{more}"


def lacks_seeds(groups: Sequence[Group], cell: Cell) -> bool:
    """Whether some seeds of a setting have a number that others have not. Facts of an encoding are not known of all."""
    return any(0 < len(group.numbers.get(cell, {})) < len(group.seeds) for group in groups)


def about_rates(groups: Sequence[Group]) -> Iterator[str]:
    """Whether the best learning rate lies on the edge of its grid, once for each setting of the rest."""
    cells = [cell for group in groups for cell in group.numbers if direction(cell[0])]
    if not cells or RATE not in groups[0].settings:
        return
    metric, first = min(dict.fromkeys(cells), key=lambda cell: (len(cell[1]), [order(value) for _, value in cell[1]]))
    alike = {place for name, place in cells if name == metric and len(place) == len(first)}
    places = sorted(alike, key=lambda place: [order(value) for _, value in place])
    families: dict[str, list[Group]] = defaultdict(list)
    for group in groups:
        if isinstance(group.settings[RATE], int | float):
            families[words({key: value for key, value in group.settings.items() if key != RATE})].append(group)
    for name, family in families.items():
        at_edge = [(place, rates) for place in places if (rates := rates_at_edge(family, (metric, place)))]
        if at_edge:
            place, (best, *rates) = at_edge[0]
            edge, beyond = ("largest", "larger") if best == rates[-1] else ("smallest", "smaller")
            of = "" if name == "all runs" else f"{name}: "
            where = f" at {words(dict(place))}" if len(places) > 1 else ""
            also = f" (and so at {n_of(len(at_edge) - 1, 'more place')})" if len(at_edge) > 1 else ""
            yield (
                f"{of}the best {RATE} by {metric}{where}, {best:g}, is the {edge} of "
                f"{', '.join(f'{r:g}' for r in rates)}: a {beyond} one may be better{also}"
            )


def rates_at_edge(family: Sequence[Group], cell: Cell) -> list[float]:
    """The best rate and all rates in order, where that is the first or the last; nothing where others are as good."""
    by_rate = {group.settings[RATE]: group.numbers[cell].values() for group in family if cell in group.numbers}
    score = {rate: direction(cell[0]) * sum(values) / len(values) for rate, values in by_rate.items()}
    best, rates = [rate for rate in score if score[rate] == max(score.values())], sorted(score)
    at_edge = len(rates) > 1 and len(best) == 1 and best[0] in (rates[0], rates[-1])
    return [best[0], *rates] if at_edge else []


def some(items: Sequence[str]) -> str:
    """The first few, and how many more."""
    more = len(items) - NAMED
    return ", ".join(items[:NAMED]) + (f" and {more:,} more" if more > 0 else "")


def n_of(n: int, name: str) -> str:
    return f"{n:,} {name}{'' if n == 1 else 's'}"
