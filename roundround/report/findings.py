"""A comparison in sentences: which settings are better or worse, by how much, over how many seeds.

The number of seeds that would be needed is the smallest with which the paired t-test has 80 % power for a difference
of the measured size and spread (noncentral t distribution). The level of the test is the strictest level in Holm's
correction: 0.05 divided by the number of comparisons that were measured at the same place, such as the same context
length. Size and spread are estimated from few seeds, so the number of seeds is a rough estimate too.

Tested by tests/report/test_findings.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from scipy import special

from roundround.analysis.comparison import counted, format_settings, place_of, some
from roundround.analysis.intervals import error_widths
from roundround.analysis.past_run import direction
from roundround.analysis.standings import BETTER, NO_CLEAR, SIGNIFICANT, WORSE
from roundround.report.drawing.tables import Record, decimals_of, fixed, in_words, number, shown_p

POWER, MOST_SEEDS = 0.8, 1000
NAMED = 3  # at most so many baselines have a sentence


def findings(telling: Mapping[str, Sequence[Record]]) -> list[str]:
    """A sentence for each metric and baseline. telling: {title of a metric: the records of its comparisons}."""
    found: list[str] = []
    for title, rows in telling.items():
        pairs: dict[str, list[Record]] = {}
        compared = [row for row in rows if isinstance(row.get("baseline"), dict)]
        for row in compared:
            if number(row.get("difference")) is not None:
                pairs.setdefault(format_settings(row["baseline"]), []).append(row)
        found += [sentence(title, baseline, own, compared) for baseline, own in list(pairs.items())[:NAMED]]
        if len(pairs) > NAMED:
            found.append(f"{title}: {len(pairs) - NAMED:,} more baselines are in the table.")
    return found


def sentence(title: str, baseline: str, rows: Sequence[Record], compared: Sequence[Record]) -> str:
    """`eval: perplexity against pe=rope at length=512, 3 seeds: worse: pe=nope +15 (+3 to +27, p 0.033).`

    A place is the set of fields, such as the length, that say where a number was measured. The sentence is about one
    place: among the places with the fewest fields (`length=512` rather than `length=512 depth=0.5`), the last. It also
    names the other places where a verdict differs from the verdict at this place. compared: the rows of all baselines;
    Holm's correction covers all of these rows that have the same place.
    """
    least = min(len(place_of(row)) for row in rows)
    where = [place for place in map(place_of, rows) if len(place) == least][-1]
    here = [row for row in rows if place_of(row) == where]
    groups: dict[str, list[Record]] = {}
    for row in here:
        groups.setdefault(verdict(row), []).append(row)
    seeds = sorted({n_pairs(row) for row in here})
    n = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    at = f" at {format_settings(where)}" if where else ""
    head = f"{in_words(title)} against {baseline}{at}, {n} seed{'s' * (seeds[-1] > 1)}"
    n_compared = sum(place_of(row) == where for row in compared)
    parts = [part_of(kind, groups[kind], n_compared) for kind in (BETTER, WORSE, NO_CLEAR) if kind in groups]
    return f"{head}: {'; '.join(parts)}.{elsewhere(rows, here)}"


def n_pairs(row: Record) -> int:
    """The number of seeds that the row's setting and its baseline both have."""
    return int(number(row.get("n_pairs")) or 0)


def verdict(row: Record) -> str:
    """BETTER or WORSE if p after Holm's correction is below SIGNIFICANT; else NO_CLEAR."""
    p, difference = number(row.get("p_holm")), number(row["difference"])
    if p is None or difference is None or p >= SIGNIFICANT:
        return NO_CLEAR
    return BETTER if difference * direction(row["metric"]) > 0 else WORSE


def part_of(kind: str, rows: Sequence[Record], n_compared: int) -> str:
    """The text about the settings with the verdict `kind`, the largest difference first.

    For NO_CLEAR it also says how many seeds would be needed. n_compared: the number of settings that are compared
    with a baseline at the place of the rows, whatever their verdict.
    """
    rows = sorted(rows, key=lambda row: -abs(row["difference"]))
    highs = [(number(row.get("difference_high")), row["difference"]) for row in rows]
    halves = [high - difference for high, difference in highs if high is not None]
    decimals = decimals_of([row["difference"] for row in rows], halves)
    named = []
    for row in rows:
        ends = [number(row.get(f"difference_{end}")) for end in ("low", "high")]
        between = " to ".join(fixed(end, decimals, "+") for end in ends if end is not None)
        p = number(row.get("p_holm"))
        beside = ", ".join(
            filter(None, [between, "" if p is None else f"p {shown_p(p, row.get('p_is_bound') is True)}"])
        )
        by = f"{fixed(row['difference'], decimals, '+')}{f' ({beside})' if beside else ''}"
        named.append(f"{format_settings(row['settings'])} {by}")
    text = f"{kind}: {some(named)}"
    if kind != NO_CLEAR:
        return text
    needed = max((seeds_to_tell(row, n_compared) or 0 for row in rows), default=0)
    if not needed:
        return f"{text}; a test needs three seeds or more" if any(n_pairs(row) < 2 for row in rows) else text
    seeds = f"about {needed:,}" if needed <= MOST_SEEDS else f"more than {MOST_SEEDS:,}"
    several = "a difference of this size" if len(rows) == 1 else "differences of these sizes"
    return f"{text}; {seeds} seeds would be needed to detect {several} (80 % power)"


def seeds_to_tell(row: Record, n_compared: int) -> int | None:
    """The smallest number of seeds, larger than the present number, at which the paired t-test has the power POWER.

    The level of the test is SIGNIFICANT / n_compared. MOST_SEEDS + 1 if even MOST_SEEDS are too few; None if the spread
    is not known.
    """
    n, difference, high = n_pairs(row), number(row["difference"]), number(row.get("difference_high"))
    if n < 2 or high is None or not difference or high <= difference or row.get("p_is_bound") is True:
        return None
    effect = abs(difference) * error_widths(n) / ((high - difference) * np.sqrt(n))  # in standard deviations
    counts = np.arange(n + 1, MOST_SEEDS + 2)
    critical = special.stdtrit(counts - 1, 1 - SIGNIFICANT / n_compared / 2)
    power = 1 - special.nctdtr(counts - 1, effect * np.sqrt(counts), critical)
    return int(counts[np.argmax(power >= POWER)]) if (power[:-1] >= POWER).any() else MOST_SEEDS + 1


def elsewhere(rows: Sequence[Record], here: Sequence[Record]) -> str:
    """A sentence that compares the verdicts at other places with those in `here`; "" if there are no other places.

    here: the rows at one place. If a setting has no row in `here`, all its verdicts count as different.
    """
    others = [row for row in rows if all(row is not one for one in here)]
    if not others:
        return ""
    at_last = {format_settings(row["settings"]): verdict(row) for row in here}
    odd = [row for row in others if verdict(row) != at_last.get(format_settings(row["settings"]))]
    if not odd:
        n_places = len({format_settings(place_of(row)) for row in others})
        return f" The same at the {counted(n_places, 'other place')}, as far as measured."
    listed = (f"{format_settings(row['settings'])}: {verdict(row)} at {format_settings(place_of(row))}" for row in odd)
    return f" Elsewhere: {some(listed)}."
