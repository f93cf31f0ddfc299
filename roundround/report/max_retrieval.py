"""The results of a max-retrieval run: records, a table with the paper's numbers at the top, panels and the page.

The distance of the accuracies from the paper's is computed too. The files of a run and its page draw the same panels.
Shapes: S seeds, N sizes.

Tested by tests/papers/test_max_retrieval_command.py.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from roundround.analysis.intervals import half_width, paired_p
from roundround.analysis.past_run import is_number
from roundround.papers.max_retrieval import PAPER, SECOND_HAND, SLOPE, SPREAD
from roundround.report.drawing.tables import Record, Table, number, shown_p, tables_of
from roundround.report.page.view import RunFiles, Section, View, images_of
from roundround.report.train_panels import logged
from roundround.support.panels import Curve, Drawing, HeatMap, Mark, Panel

Array = NDArray[np.float64]

MARK = "*"  # marks numbers of SECOND_HAND
FEWEST_TO_RESAMPLE = 5  # seeds; a bootstrap interval of fewer means nothing
BASELINE, ADAPTIVE = "softmax", "adaptive_temperature"
OF_HEADS = ("logit_slope", "class_offset_spread")
FROM_PAPER = ("baseline_from_paper", "gains_from_paper")
BY_WEIGHT = "heaviest_class_is_right"
ROUNDED = {"true": "weights, items and every result in between", "factors": "the factors of matrix products"}
EQUAL = 5e-4  # absolute and relative tolerance; accuracies are printed in tenths of a per cent


@dataclass
class Measured:
    """The measurements of each seed and size. Accuracies lie between 0 and 1.

    `values[name][metric]` is [S, N], for the normaliser of this name. `of_logits[metric]` is [S, N]. `of_heads[metric]`
    is [S], because a seed has one attention head for all sizes.
    """

    seeds: list[int]
    sizes: list[int]
    values: dict[str, dict[str, Array]] = field(default_factory=dict)
    of_logits: dict[str, Array] = field(default_factory=dict)
    of_heads: dict[str, Array] = field(default_factory=dict)

    def put(self, seed: int, n: int, softmax: str | None, means: dict[str, float]) -> None:
        """Store {metric: mean} for a seed and a size. softmax: the normaliser that was measured; None for logits."""
        table = self.of_logits if softmax is None else self.values.setdefault(softmax, {})
        for metric, value in means.items():
            values_SN = table.setdefault(metric, np.full((len(self.seeds), len(self.sizes)), np.nan))
            values_SN[self.seeds.index(seed), self.sizes.index(n)] = value

    def accuracy(self, name: str, metric: str = "accuracy") -> Array:
        """The accuracy in per cent, [S, N]."""
        return 100 * self.values[name][metric]

    def mean_accuracy(self, name: str, n: int) -> float:
        """The mean accuracy over seeds, in per cent."""
        return float(self.accuracy(name)[:, self.sizes.index(n)].mean())

    def distinct(self) -> dict[str, list[str]]:
        """{first normaliser of a group: all normalisers of the group}.

        The normalisers of a group agree in every measure at every seed and size, within the tolerance EQUAL. Learnable
        normalisers are measured with their initial parameters, which make some of them equal to another normaliser:
        SSMax starts as ln n scaling.
        """
        found: dict[str, list[str]] = {}
        for name, own in self.values.items():
            for first, names in found.items():
                other = self.values[first]
                if all(np.allclose(own[metric], other[metric], rtol=EQUAL, atol=EQUAL) for metric in own):
                    names.append(name)
                    break
            else:
                found[name] = [name]
        return found

    def records(self) -> list[dict[str, Any]]:
        """A record for each metric, normaliser, seed and size, then the records of each seed.

        The records of a seed are the measures of its attention head, and the distances of its accuracies from the
        paper's.
        """
        found = []
        for name, metrics in [*self.values.items(), (None, self.of_logits)]:
            which = {} if name is None else {"softmax": name}
            for metric, values in metrics.items():
                found += [
                    {"metric": metric, **which, "seed": seed, "n": n, "value": value}
                    for seed, values_N in zip(self.seeds, values.tolist(), strict=True)
                    for n, value in zip(self.sizes, values_N, strict=True)
                ]
        apart = zip(FROM_PAPER, from_paper(self) or (), strict=False)
        by_seed = self.of_heads | {metric: np.sqrt(np.mean(values_SN**2, 1)) for metric, values_SN in apart}
        for metric, of_seeds in by_seed.items():
            found += [
                {"metric": metric, "seed": s, "value": float(x)} for s, x in zip(self.seeds, of_seeds, strict=True)
            ]
        return found


def measured_of(records: Sequence[Record]) -> Measured:
    """The `Measured` that the records of a run describe; missing values are NaN."""
    sized = [record for record in records if number(record.get("n")) is not None and "seed" in record]
    there = [record for record in sized if is_number(record["value"])]
    found = Measured(sorted({r["seed"] for r in there}), sorted({r["n"] for r in there}))
    for record in there:
        found.put(record["seed"], record["n"], record.get("softmax"), {record["metric"]: record["value"]})
    for record in records:
        if record["metric"] in OF_HEADS and record.get("seed") in found.seeds and is_number(record["value"]):
            of_seeds = found.of_heads.setdefault(record["metric"], np.full(len(found.seeds), np.nan))
            of_seeds[found.seeds.index(record["seed"])] = record["value"]
    return found


class Distance(NamedTuple):
    """The distance from the paper in percentage points, as computed by `distance`, and its 95 % interval over seeds."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        interval = "" if np.isnan(self.low) else f" ({self.low:.1f} to {self.high:.1f})"
        return f"{self.value:.1f}{interval}"


def distances(measured: Measured, metric: str = "accuracy") -> tuple[Distance, Distance] | None:
    """Distances from the paper's baseline accuracies, and from its gains by adaptive temperature.

    None if adaptive temperature or the paper's sizes were not measured. The intervals are bootstrap percentiles over
    seeds; they are NaN for fewer than five seeds.
    """
    apart = from_paper(measured, metric)
    return None if apart is None else (distance(apart[0]), distance(apart[1]))


def from_paper(measured: Measured, metric: str = "accuracy") -> tuple[Array, Array] | None:
    """(baseline - the paper's baseline, gains - the paper's gains), in percentage points: [S, N] each."""
    places = [j for j, n in enumerate(measured.sizes) if n in PAPER]
    if not places or metric not in measured.values.get(ADAPTIVE, {}):
        return None
    paper = np.array([PAPER[measured.sizes[j]] for j in places])
    baseline = measured.accuracy(BASELINE, metric)[:, places]
    gain = measured.accuracy(ADAPTIVE, metric)[:, places] - baseline
    return baseline - paper[:, 0], gain - (paper[:, 1] - paper[:, 0])


def distance(values: Array) -> Distance:
    """The `Distance` of values [S, N]: their mean over seeds, then the root mean square over sizes."""

    def of(chosen: NDArray[np.intp]) -> float:
        return float(np.sqrt(np.mean(values[chosen].mean(0) ** 2)))

    everyone = np.arange(len(values))
    if len(values) < FEWEST_TO_RESAMPLE:
        return Distance(of(everyone), np.nan, np.nan)
    interval = stats.bootstrap(
        (everyone,), of, vectorized=False, n_resamples=999, method="percentile", rng=np.random.default_rng(0)
    ).confidence_interval
    return Distance(of(everyone), float(interval.low), float(interval.high))


def table(measured: Measured) -> Table:
    """The paper's two rows, then each normaliser's mean accuracy in per cent, interval and p-values.

    Normalisers that are the same in every measure share a row: they are one result.
    """
    found = []
    for place, label in enumerate(("paper: softmax", "paper: adaptive")):
        marks = {n: MARK if n in SECOND_HAND else "" for n in PAPER}  # in front, so that points stay aligned
        cells = [f"{marks[n]}{PAPER[n][place]:.1f}" if n in PAPER else "" for n in measured.sizes]
        if any(cells):
            found.append([label, *cells])
    baseline = measured.accuracy(BASELINE)
    for name, names in measured.distinct().items():
        accuracy = measured.accuracy(name)
        found.append([" = ".join(names), *(f"{x:.1f}" for x in accuracy.mean(0))])
        if len(measured.seeds) > 1:
            found.append(["", *(f"±{x:.1f}" for x in half_width(accuracy))])
            if name != BASELINE:
                found.append(["  p", *map(shown_p, *paired_p(accuracy, baseline))])
    return Table("accuracy in per cent", ["items", *(f"{n:,}" for n in measured.sizes)], found, names=1)


def scope(measured: Measured, config: Mapping[str, Any]) -> list[str]:
    """Lines below the table: what was averaged, how it was tested, and the distance from the paper's table."""
    n, marked = len(measured.seeds), " and ".join(f"{n:,}" for n in measured.sizes if n in SECOND_HAND)
    apart, rounded = distances(measured), ROUNDED.get(str(config.get("bfloat16")).lower())
    lines = [
        f"Mean of {n} seeds in per cent, ± its 95 % interval; p: paired t-test against the plain softmax."
        if n > 1
        else "Per cent, one seed; intervals and p-values need two seeds.",
        f"Each accuracy is over {config['test_sets']:,} sets of a size and a seed, apart from the training sets.",
        f"{MARK}: known only second-hand; the paper's numbers for {marked} items are less certain than the others."
        if marked
        else "",
        f"Root mean square distance from the paper's table: baseline {apart[0]} points, gains {apart[1]} points."
        if apart is not None
        else "",
        f"Evaluated with {rounded} rounded to bfloat16." if rounded else "",
        "Adaptive temperatures depend on the mean entropy of all sets of a seed and size, not on each set's own "
        "entropy."
        if config.get("one_temperature")
        else "",
    ]
    return list(filter(None, lines))


# -- panels


def drawings(measured: Measured) -> list[Drawing]:
    """Drawings of the accuracy beside the paper's, of the heads, and of the dispersion.

    The dispersion is drawn beside the bounds of Lemma 2.1 for the plain softmax.
    """
    found = [Drawing("accuracy", "Accuracy", [accuracy(measured)])]
    found += [Drawing("heads", "Heads", [heads(measured)])] if measured.of_heads else []
    spread, note = measured.of_logits.get("logit_spread"), ""
    if spread is not None:
        mean = spread.mean(0)
        note = f"Logit spread {mean[0]:.0f} at {measured.sizes[0]:,} items, {mean[-1]:.0f} at {measured.sizes[-1]:,}."
    panels = [dispersion(measured, name) for name in DISPERSION if any(name in of for of in measured.values.values())]
    return [*found, Drawing("dispersion", "Dispersion", panels, note=note)] if panels else found


def accuracy(measured: Measured) -> Panel:
    """A panel of means over seeds with 95 % intervals, and of the paper's numbers; second-hand numbers are marked."""
    curves = curves_of(measured, "accuracy", 100.0)
    for place, name in enumerate(("paper: softmax", "paper: adaptive")):
        own = [n for n in measured.sizes if n in PAPER]
        curves.append(Curve(name, own, [PAPER[n][place] for n in own], points=True, style=place))
    twice = [(n, value) for n in measured.sizes if n in SECOND_HAND for value in PAPER[n]]
    curves.append(Curve("paper: second-hand", [n for n, _ in twice], [v for _, v in twice], points=True, style=6))
    return over_items(measured, "accuracy (%)", curves, "Accuracy", possible=(0.0, 100.0))


def heads(measured: Measured) -> Panel:
    """Each seed's head as a point (slope, spread), beside the point whose accuracies match the paper's table."""
    slope, spread = (measured.of_heads[name] for name in OF_HEADS)
    curves = [
        Curve("a seed's head", slope, spread, points=True, style=0),
        Curve("gives the paper's table", [SLOPE], [SPREAD], points=True, style=1),
    ]
    return Panel(
        "slope of the logit (nats a unit of priority)", "classes apart (priority)", curves,
        title="Slope and spread of the heads", possible=(0.0, None), whole=True,
    )  # fmt: skip


DISPERSION: dict[str, dict[str, Any]] = {
    "entropy": {"y_label": "mean entropy of the weights (nats)", "title": "Entropy of the weights"},
    "largest_weight": {"y_label": "mean largest weight", "title": "Largest weight", "possible": (0.0, 1.0)},
}


def dispersion(measured: Measured, metric: str) -> Panel:
    """A panel of a measure of dispersion, its value for equal weights, and its bound for the softmax (Lemma 2.1)."""
    curves = curves_of(measured, metric)
    alike = [math.log(n) if metric == "entropy" else 1 / n for n in measured.sizes]
    curves.append(Curve("uniform: ln n, 1 / n", measured.sizes, alike, reference=True))
    if f"{metric}_bound" in measured.of_logits:
        bound = measured.of_logits[f"{metric}_bound"].mean(0)
        curves.append(Curve("Lemma 2.1, for the plain softmax", measured.sizes, bound, points=True))
    options = {"possible": (0.0, None), **DISPERSION[metric]}
    return over_items(measured, options.pop("y_label"), curves, options.pop("title"), **options)


def curves_of(measured: Measured, metric: str, factor: float = 1.0) -> list[Curve]:
    """A line for each normaliser; normalisers with equal results share a line, because one would hide the other."""
    curves = []
    for style, (name, names) in enumerate(measured.distinct().items()):
        if metric in measured.values[name]:
            values = factor * measured.values[name][metric]
            mean, half = values.mean(0), half_width(values)
            curves.append(
                Curve(" = ".join(names), measured.sizes, mean, low=mean - half, high=mean + half, style=style)
            )
    return curves


def over_items(measured: Measured, label: str, curves: Sequence[Curve], title: str, **options: Any) -> Panel:
    n = len(measured.seeds)
    note = f"Mean of {n} seeds; the band is the 95 % interval of the mean." if n > 1 else "One seed."
    return Panel("items", label, curves, "x", title, note, whole=True, x_ticks=measured.sizes, **options)


def heat_maps(arrays: Mapping[str, Array]) -> list[Drawing]:
    """A drawing for each normaliser, with a heat map for each size.

    A row of a map is a set of items; the columns are the items with the highest priorities in the set. arrays:
    {`<normaliser>.<size>`, such as softmax.16: attention weights}.
    """
    maps: dict[str, list[HeatMap]] = defaultdict(list)
    for key in sorted(arrays, key=lambda key: int(key.rpartition(".")[2])):
        name, _, n = key.rpartition(".")
        maps[name].append(
            HeatMap(arrays[key], "items by priority", "sets", 1.0, "attention weight", f"{int(n):,} items")
        )
    note = "Weights of the items of highest priority, the highest on the right."
    return [Drawing(f"attention_{name}", name.replace("_", " "), panels, note=note) for name, panels in maps.items()]


def temperature_fit(points: Array, coefficients: Sequence[float], sizes: Sequence[int]) -> Drawing:
    """The points, the polynomial that was fitted to them, and the published polynomial.

    A mark shows the range of entropies in which the published polynomial sharpens.
    """
    import torch

    from roundround.softmax.adaptive_temperature import PUBLISHED, inverse_temperature

    entropy, beta = points.T
    grid = np.linspace(0, max(6.2, float(entropy.max())), 400)
    active = grid[inverse_temperature(torch.from_numpy(grid)).numpy() > 1]
    held = np.polyval(coefficients, grid.clip(entropy.min(), entropy.max()))  # constant beyond the points
    curves = [
        Curve("best for one input", entropy, beta, points=True),
        Curve("fitted here", grid, held, style=0),
        Curve("published polynomial", grid, np.polyval(PUBLISHED, grid), style=1),
        Curve("the plain softmax", [0, grid[-1]], [1, 1], reference=True),
    ]
    note = f"{len(points):,} misordered inputs of {sizes[0]:,} to {sizes[-1]:,} items."
    panel = Panel(
        "entropy at temperature 1 (nats)", "inverse temperature", curves, whole=True,
        possible=(0.0, float(np.quantile(beta, 0.98))),
        marks=[Mark("the published one sharpens", float(active[0]), float(active[-1]))],
    )  # fmt: skip
    return Drawing("temperature_fit", "Fit of the temperature", [panel], note=note)


# -- the page


def view(files: RunFiles, records: list[Record]) -> View:
    """The page: panels, the table of accuracies, heat maps of attention weights, the training loss and all records."""
    measured = measured_of(records)
    panels = [panel for drawing in drawings(measured) for panel in drawing.panels] if measured.values else []
    lines = files.run.metrics()
    names = sorted({name for line in lines for name in line if name.startswith("loss_")}, key=lambda n: (len(n), n))
    each = [logged(lines, name, "each seed", reference=True)[0] for name in names]
    loss = [*each, logged(lines, "loss", "mean over seeds", style=0)[0]]
    training = Panel("step", "loss (nats)", loss, title="Training loss", possible=(0.0, None), whole=True)
    accuracies = [table(measured)] if measured.values else []
    sections = [
        Section("Accuracy and dispersion by the number of items", panels=panels, tables=accuracies),
        Section("Attention by size", figures=images_of(files.run.directory, "attention_*")),
        Section("Training", panels=[training]),
        Section("Every number", tables=tables_of(records, folded=True)),
    ]
    return View(sections, scope(measured, files.run.manifest["config"]))
