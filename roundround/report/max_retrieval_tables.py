"""The results of a max-retrieval run: records, the table beside the paper's, and the distance between the two.

Shapes: S seeds, N sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.table import Table
from scipy import stats

from roundround.analysis.intervals import half_width, paired_p
from roundround.analysis.past_run import is_number
from roundround.papers.max_retrieval import PAPER, SECOND_HAND, SLOPE, SPREAD
from roundround.report.drawing.numbers import number, shown_p
from roundround.report.drawing.tables import Record
from roundround.support.markdown import markdown_table
from roundround.support.panels import MOST

Array = NDArray[np.float64]

MARK = "*"  # of SECOND_HAND
FEWEST_TO_RESAMPLE = 5  # seeds; a bootstrap interval of fewer means nothing
BASELINE, ADAPTIVE = "softmax", "adaptive_temperature"
OF_HEADS = ("logit_slope", "class_offset_spread")
BY_WEIGHT = "heaviest_class_is_right"
EQUAL = 5e-4  # of accuracy, which is printed in tenths of a per cent, and of the other measures' size


@dataclass
class Measured:
    """What was measured for each seed and size; `values[name][metric]` is [S, N], accuracies are shares of 1.

    `of_heads[metric]` is [S]: what belongs to a seed's head and no size.
    """

    seeds: list[int]
    sizes: list[int]
    values: dict[str, dict[str, Array]] = field(default_factory=dict)
    of_logits: dict[str, Array] = field(default_factory=dict)
    of_heads: dict[str, Array] = field(default_factory=dict)

    def put(self, seed: int, n: int, softmax: str | None, means: dict[str, float]) -> None:
        """Store what was measured of a normaliser, or of the logits (None), for a seed and a size."""
        table = self.of_logits if softmax is None else self.values.setdefault(softmax, {})
        for metric, value in means.items():
            values_SN = table.setdefault(metric, np.full((len(self.seeds), len(self.sizes)), np.nan))
            values_SN[self.seeds.index(seed), self.sizes.index(n)] = value

    def accuracy(self, name: str, metric: str = "accuracy") -> Array:
        """Per cent, [S, N]."""
        return 100 * self.values[name][metric]

    def mean_accuracy(self, name: str, n: int) -> float:
        """Per cent, over seeds."""
        return float(self.accuracy(name)[:, self.sizes.index(n)].mean())

    def distinct(self) -> dict[str, list[str]]:
        """Each normaliser with those that are the same in every measure at every seed and size.

        A normaliser that learns stands here as it starts, which is another one where it has not been trained: SSMax
        starts as ln n scaling.
        """
        found: dict[str, list[str]] = {}
        for name, metrics in self.values.items():
            same = next((other for other in found if alike(metrics, self.values[other])), None)
            if same is None:
                found[name] = []
            else:
                found[same].append(name)
        return found

    def records(self) -> list[dict[str, Any]]:
        """One for each metric, normaliser, seed and size; then those of heads, and how far each is from the paper."""
        found = []
        for name, metrics in [*self.values.items(), (None, self.of_logits)]:
            which = {} if name is None else {"softmax": name}
            for metric, values in metrics.items():
                for i, seed in enumerate(self.seeds):
                    for j, n in enumerate(self.sizes):
                        value = float(values[i, j])
                        found.append({"metric": metric, **which, "seed": seed, "n": n, "value": value})
        apart = zip(("baseline_from_paper", "gains_from_paper"), from_paper(self) or (), strict=False)
        by_seed = self.of_heads | {metric: np.sqrt(np.mean(values_SN**2, 1)) for metric, values_SN in apart}
        for metric, of_seeds in by_seed.items():
            found += [
                {"metric": metric, "seed": s, "value": float(x)} for s, x in zip(self.seeds, of_seeds, strict=True)
            ]
        return found


def measured_of(records: Sequence[Record]) -> Measured:
    """What the records of a run say; NaN where they say nothing."""
    sized = [record for record in records if number(record.get("n")) is not None and "seed" in record]
    there = [record for record in sized if abs(number(record["value"]) or 0.0) <= MOST and is_number(record["value"])]
    found = Measured(sorted({r["seed"] for r in there}), sorted({r["n"] for r in there}))
    for record in there:
        found.put(record["seed"], record["n"], record.get("softmax"), {record["metric"]: record["value"]})
    for record in records:
        if record["metric"] in OF_HEADS and record.get("seed") in found.seeds and is_number(record["value"]):
            of_seeds = found.of_heads.setdefault(record["metric"], np.full(len(found.seeds), np.nan))
            of_seeds[found.seeds.index(record["seed"])] = record["value"]
    return found


def alike(one: dict[str, Array], other: dict[str, Array]) -> bool:
    """Whether two normalisers are the same in every measure, to EQUAL; their weights are not compared."""
    return all(np.allclose(one[metric], other[metric], rtol=EQUAL, atol=EQUAL) for metric in one)


def shown_name(name: str, repeated_by: Sequence[str]) -> str:
    """A normaliser and those that repeat it, as one row or line."""
    return " = ".join([name, *repeated_by])


@dataclass(frozen=True)
class Distance:
    """Root mean square distance from the paper over the sizes, in percentage points; a 95 % interval over seeds."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        interval = "" if np.isnan(self.low) else f" ({self.low:.1f} to {self.high:.1f})"
        return f"{self.value:.1f}{interval}"


def distances(measured: Measured, metric: str = "accuracy") -> tuple[Distance, Distance] | None:
    """From the paper's baseline, and from its gains by the adaptive temperature; None unless both were measured.

    The intervals are bootstrap percentiles over seeds, none below five of them.
    """
    apart = from_paper(measured, metric)
    return None if apart is None else (distance(apart[0]), distance(apart[1]))


def from_paper(measured: Measured, metric: str = "accuracy") -> tuple[Array, Array] | None:
    """Baseline and gains minus the paper's, in percentage points: [S, N] each."""
    places = [j for j, n in enumerate(measured.sizes) if n in PAPER]
    if not places or metric not in measured.values.get(ADAPTIVE, {}):
        return None
    paper = np.array([PAPER[measured.sizes[j]] for j in places])
    baseline = measured.accuracy(BASELINE, metric)[:, places]
    gain = measured.accuracy(ADAPTIVE, metric)[:, places] - baseline
    return baseline - paper[:, 0], gain - (paper[:, 1] - paper[:, 0])


def distance(values: Array) -> Distance:
    """Of the mean over seeds of `values` [S, N] from 0."""

    def of(chosen: NDArray[np.intp]) -> float:
        return float(np.sqrt(np.mean(values[chosen].mean(0) ** 2)))

    everyone = np.arange(len(values))
    if len(values) < FEWEST_TO_RESAMPLE:
        return Distance(of(everyone), np.nan, np.nan)
    interval = stats.bootstrap(
        (everyone,), of, vectorized=False, n_resamples=999, method="percentile", rng=np.random.default_rng(0)
    ).confidence_interval
    return Distance(of(everyone), float(interval.low), float(interval.high))


def rows(measured: Measured) -> list[list[str]]:
    """The table as text: the paper's two rows, then each normaliser's mean, interval and p-values.

    Normalisers that are the same in every measure share a row: they are one result.
    """
    found = [["items", *(f"{n:,}" for n in measured.sizes)]]
    for place, label in enumerate(("paper: softmax", "paper: adaptive")):
        marks = {n: MARK if n in SECOND_HAND else "" for n in PAPER}  # in front, so that points stay aligned
        cells = [f"{marks[n]}{PAPER[n][place]:.1f}" if n in PAPER else "" for n in measured.sizes]
        if any(cells):
            found.append([label, *cells])
    baseline = measured.accuracy(BASELINE)
    for name, repeated_by in measured.distinct().items():
        accuracy = measured.accuracy(name)
        found.append([shown_name(name, repeated_by), *(f"{x:.1f}" for x in accuracy.mean(0))])
        if len(measured.seeds) > 1:
            found.append(["", *(f"±{x:.1f}" for x in half_width(accuracy))])
            if name != BASELINE:
                found.append(["  p", *map(shown_p, *paired_p(accuracy, baseline))])
    return found


def table(measured: Measured, *, title: str) -> Table:
    """`rows`, for a terminal."""
    head, *others = rows(measured)
    shown = Table(head[0], title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in head[1:]:
        shown.add_column(name, justify="right")
    for row in others:
        shown.add_row(*row, style="dim" if row[0].startswith("paper") else None)
    return shown


def markdown(measured: Measured) -> str:
    """`rows`, for a page."""
    head, *others = rows(measured)
    return markdown_table(head, others, right_from=1)


def notes(measured: Measured, fit_sizes: Sequence[int]) -> list[str]:
    """Lines below the table: how it was tested, the distance from the paper, what the fitted temperature gains."""
    lines = []
    if len(measured.seeds) > 1:
        lines.append(
            f"mean of {len(measured.seeds)} seeds in per cent, ± its 95 % interval; "
            "p: paired t-test against the plain softmax"
        )
    else:
        lines.append("per cent, one seed; intervals and p-values need two")
    marked = " and ".join(f"{n:,}" for n in measured.sizes if n in SECOND_HAND)
    if marked:
        lines.append(f"{MARK}: second-hand; the paper's numbers of {marked} items are less certain than its others")
    lines += [
        f"{shown_name(name, repeated_by)}: the same in every measure at every size, so one result and not "
        f"{1 + len(repeated_by)}; what a normaliser learns is as it starts, because only the plain softmax is trained"
        for name, repeated_by in measured.distinct().items()
        if repeated_by
    ]
    apart = distances(measured)
    if apart is not None:
        lines.append(
            f"root mean square distance from the paper's table: baseline {apart[0]} points, gains {apart[1]} points"
        )
    by_weight = distances(measured, BY_WEIGHT)
    if by_weight is not None:
        lines.append(
            f"were the class with the most weight the answer, without the layers that read it: baseline {by_weight[0]} "
            f"points, gains {by_weight[1]} points"
        )
    if measured.of_heads:
        slope, spread = (measured.of_heads[name].mean() for name in OF_HEADS)
        lines.append(
            f"near the largest priorities the logits rise by {slope:.0f} nats a unit of priority, and the classes are "
            f"{spread:.4f} of it apart (standard deviation); {SLOPE:g} and {SPREAD:g} give the paper's table"
        )
    if "fitted" in measured.values:
        unseen = [j for j, n in enumerate(measured.sizes) if n not in fit_sizes]
        if unseen:
            means = {name: measured.accuracy(name)[:, unseen].mean() for name in ("fitted", ADAPTIVE, BASELINE)}
            lines.append(
                f"on sizes not fitted on ({', '.join(f'{measured.sizes[j]:,}' for j in unseen)}): fitted "
                f"{means['fitted']:.1f}, published {means[ADAPTIVE]:.1f}, plain {means[BASELINE]:.1f} per cent"
            )
    return lines
