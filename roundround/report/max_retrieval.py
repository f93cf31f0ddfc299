"""The results of a max-retrieval run: records, the table beside the paper's, the distance between them, panels, page.

Files and page draw the same panels; maps of attention and the fit are drawn here as matplotlib has them.
Shapes: S seeds, N sizes.

Tested by tests/papers/test_max_retrieval_command.py.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import rich.table
from numpy.typing import NDArray
from rich import box
from scipy import stats

from roundround.analysis.intervals import half_width, paired_p
from roundround.analysis.past_run import is_number
from roundround.config.verb import FigureStyle
from roundround.papers.max_retrieval import PAPER, SECOND_HAND, SLOPE, SPREAD
from roundround.report.drawing.figures import HEAT, colour_map, finish, save, styled, subplots, tick_words
from roundround.report.drawing.tables import Record, Table, number, shown_p, tables_of
from roundround.report.page.view import RunFiles, Section, View, scaled
from roundround.report.train_panels import logged
from roundround.support.markdown import markdown_table
from roundround.support.panels import Curve, Drawing, Mark, Panel

Array = NDArray[np.float64]

MARK = "*"  # of SECOND_HAND
FEWEST_TO_RESAMPLE = 5  # seeds; a bootstrap interval of fewer means nothing
BASELINE, ADAPTIVE = "softmax", "adaptive_temperature"
OF_HEADS = ("logit_slope", "class_offset_spread")
FROM_PAPER = ("baseline_from_paper", "gains_from_paper")
BY_WEIGHT = "heaviest_class_is_right"
EQUAL = 5e-4  # of accuracy, which is printed in tenths of a per cent, and of the other measures' size


@dataclass
class Measured:
    """The measurements of each seed and size; `values[name][metric]` is [S, N], and accuracies lie between 0 and 1.

    `of_heads[metric]` is [S]: measurements of a seed's head, which have no size.
    """

    seeds: list[int]
    sizes: list[int]
    values: dict[str, dict[str, Array]] = field(default_factory=dict)
    of_logits: dict[str, Array] = field(default_factory=dict)
    of_heads: dict[str, Array] = field(default_factory=dict)

    def put(self, seed: int, n: int, softmax: str | None, means: dict[str, float]) -> None:
        """Store the means of a normaliser, or of the logits (None), for a seed and a size."""
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
        """Each normaliser, with itself and all that are the same in every measure, to EQUAL, at every seed and size.

        A normaliser that learns is measured as it starts, and may be another one there: SSMax starts as ln n scaling.
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
        """A record for each metric, normaliser, seed and size; then of each head, and its distance from the paper."""
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
    """The measurements that the records of a run hold; NaN for missing ones."""
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
    """The distance from 0 of the mean over seeds of `values` [S, N]."""

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
    for name, names in measured.distinct().items():
        accuracy = measured.accuracy(name)
        found.append([" = ".join(names), *(f"{x:.1f}" for x in accuracy.mean(0))])
        if len(measured.seeds) > 1:
            found.append(["", *(f"±{x:.1f}" for x in half_width(accuracy))])
            if name != BASELINE:
                found.append(["  p", *map(shown_p, *paired_p(accuracy, baseline))])
    return found


def table(measured: Measured, *, title: str) -> rich.table.Table:
    """`rows`, for a terminal."""
    head, *others = rows(measured)
    shown = rich.table.Table(head[0], title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
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
    marked = " and ".join(f"{n:,}" for n in measured.sizes if n in SECOND_HAND)
    second_hand = f"{MARK}: second-hand; the paper's numbers of {marked} items are less certain than its others"
    seeds = f"mean of {len(measured.seeds)} seeds in per cent, ± its 95 % interval; p: paired t-test against the plain"
    apart, by_weight = distances(measured), distances(measured, BY_WEIGHT)
    lines = [
        f"{seeds} softmax" if len(measured.seeds) > 1 else "per cent, one seed; intervals and p-values need two",
        second_hand if marked else "",
        *(
            f"{' = '.join(names)}: the same in every measure at every size, so one result and not {len(names)}; what a "
            "normaliser learns is as it starts, because only the plain softmax is trained"
            for names in measured.distinct().values()
            if len(names) > 1
        ),
        f"root mean square distance from the paper's table: baseline {apart[0]} points, gains {apart[1]} points"
        if apart is not None
        else "",
        f"were the class with the most weight the answer, without the layers that read it: baseline {by_weight[0]} "
        f"points, gains {by_weight[1]} points"
        if by_weight is not None
        else "",
    ]
    if measured.of_heads:
        slope, spread = (measured.of_heads[name].mean() for name in OF_HEADS)
        lines.append(
            f"near the largest priorities the logits rise by {slope:.0f} nats a unit of priority, and the classes are "
            f"{spread:.4f} of it apart (standard deviation); {SLOPE:g} and {SPREAD:g} give the paper's table"
        )
    unseen = [j for j, n in enumerate(measured.sizes) if n not in fit_sizes]
    if "fitted" in measured.values and unseen:
        means = {name: measured.accuracy(name)[:, unseen].mean() for name in ("fitted", ADAPTIVE, BASELINE)}
        lines.append(
            f"on sizes not fitted on ({', '.join(f'{measured.sizes[j]:,}' for j in unseen)}): fitted "
            f"{means['fitted']:.1f}, published {means[ADAPTIVE]:.1f}, plain {means[BASELINE]:.1f} per cent"
        )
    return list(filter(None, lines))


# -- panels


def drawings(measured: Measured) -> list[Drawing]:
    """Accuracy and the paper's, and how the weights disperse beside the bounds of Lemma 2.1 at temperature 1."""
    found = [Drawing("accuracy", "Accuracy", [accuracy(measured)])]
    found += [Drawing("heads", "Heads", [heads(measured)])] if measured.of_heads else []
    spread, note = measured.of_logits.get("logit_spread"), ""
    if spread is not None:
        mean = spread.mean(0)
        note = f"Logit spread {mean[0]:.0f} at {measured.sizes[0]:,} items, {mean[-1]:.0f} at {measured.sizes[-1]:,}."
    panels = [dispersion(measured, name) for name in DISPERSION if any(name in of for of in measured.values.values())]
    return [*found, Drawing("dispersion", "Dispersion", panels, note=note)] if panels else found


def accuracy(measured: Measured) -> Panel:
    """Means over seeds with 95 % intervals, and the paper's numbers, with a mark on the second-hand ones."""
    curves = curves_of(measured, "accuracy", 100.0)
    for place, name in enumerate(("paper: softmax", "paper: adaptive")):
        own = [n for n in measured.sizes if n in PAPER]
        curves.append(Curve(name, own, [PAPER[n][place] for n in own], points=True, style=place))
    twice = [(n, value) for n in measured.sizes if n in SECOND_HAND for value in PAPER[n]]
    curves.append(Curve("paper: second-hand", [n for n, _ in twice], [v for _, v in twice], points=True, style=6))
    return over_items(measured, "accuracy (%)", curves, "Accuracy", possible=(0.0, 100.0))


def heads(measured: Measured) -> Panel:
    """Each seed's head as a point, beside the two numbers that give the paper's table."""
    slope, spread = (measured.of_heads[name] for name in OF_HEADS)
    curves = [
        Curve("a seed's head", slope, spread, points=True, style=0),
        Curve("gives the paper's table", [SLOPE], [SPREAD], points=True, style=1),
    ]
    x = "slope of the logit (nats a unit of priority)"
    return Panel(
        x, "classes apart (priority)", curves, title="Slope and spread of the heads", possible=(0.0, None), whole=True
    )


DISPERSION: dict[str, dict[str, Any]] = {
    "entropy": {"y_label": "mean entropy of the weights (nats)", "title": "Entropy of the weights"},
    "largest_weight": {"y_label": "mean largest weight", "title": "Largest weight", "possible": (0.0, 1.0)},
}


def dispersion(measured: Measured, metric: str) -> Panel:
    """A measure of dispersion, its value for equal weights, and Lemma 2.1 for the plain softmax."""
    curves = curves_of(measured, metric)
    alike = [math.log(n) if metric == "entropy" else 1 / n for n in measured.sizes]
    curves.append(Curve("uniform: ln n, 1 / n", measured.sizes, alike, reference=True))
    if f"{metric}_bound" in measured.of_logits:
        bound = measured.of_logits[f"{metric}_bound"].mean(0)
        curves.append(Curve("Lemma 2.1, for the plain softmax", measured.sizes, bound, points=True))
    options = {"possible": (0.0, None), **DISPERSION[metric]}
    return over_items(measured, options.pop("y_label"), curves, options.pop("title"), **options)


def curves_of(measured: Measured, metric: str, factor: float = 1.0) -> list[Curve]:
    """A line for each normaliser; equal ones share a line, because they would hide each other."""
    curves = []
    for style, (name, names) in enumerate(measured.distinct().items()):
        if metric in measured.values[name]:
            values = factor * measured.values[name][metric]
            mean, half = values.mean(0), half_width(values)
            low, high = mean - half, mean + half
            curves.append(Curve(" = ".join(names), measured.sizes, mean, low=low, high=high, style=style))
    return curves


def over_items(measured: Measured, label: str, curves: Sequence[Curve], title: str, **options: Any) -> Panel:
    n = len(measured.seeds)
    note = f"Mean of {n} seeds; the band is the 95 % interval of the mean." if n > 1 else "One seed."
    return Panel("items", label, curves, "x", title, note, whole=True, x_ticks=measured.sizes, **options)


def heat_maps(by_size: Mapping[int, Array], name: str, folder: Path, style: FigureStyle) -> list[Path]:
    """A frame for each size: rows are sets, columns their items of highest priority, the highest on the right."""
    n_columns = min(6, len(by_size))
    n_rows = -(-len(by_size) // n_columns)
    with styled(style) as sizes:
        size = sizes.widths[-1], 0.8 * sizes.height * n_rows
        figure, axes = subplots(n_rows, n_columns, figsize=size, squeeze=False)
        for axis in axes.flat[len(by_size) :]:
            axis.set_visible(False)
        image: Any = None
        for axis, (n, weights) in zip(axes.flat, by_size.items(), strict=False):
            image = axis.imshow(weights, vmin=0, vmax=1, cmap=colour_map(HEAT), aspect="auto", interpolation="nearest")
            axis.set_title(f"{n:,} items")
            axis.set(xticks=[], yticks=[])
        for row in axes:
            row[0].set_ylabel("sets")
        for axis in axes[-1]:
            axis.set_xlabel("items by priority")
        figure.colorbar(image, ax=axes, label="attention weight", shrink=0.6, format=tick_words)
        finish(figure, sizes, f"{name}: weights of the items of highest priority", "The highest is on the right.")
        return save(figure, folder, f"attention_{name}")


def temperature_fit(points: Array, coefficients: Sequence[float], sizes: Sequence[int]) -> Drawing:
    """The points, the polynomial fitted to them, the published one and where that sharpens."""
    import torch

    from roundround.softmax.adaptive_temperature import PUBLISHED, inverse_temperature

    entropy, beta = points.T
    grid = np.linspace(0, max(6.2, float(entropy.max())), 400)
    active = grid[inverse_temperature(torch.from_numpy(grid)).numpy() > 1]
    held = np.polyval(coefficients, grid.clip(entropy.min(), entropy.max()))  # at its ends beyond the points
    curves = [
        Curve("best for one input", entropy, beta, points=True),
        Curve("fitted here", grid, held, style=0),
        Curve("published polynomial", grid, np.polyval(PUBLISHED, grid), style=1),
        Curve("the plain softmax", [0, grid[-1]], [1, 1], reference=True),
    ]
    note = f"{len(points):,} misordered inputs of {sizes[0]:,} to {sizes[-1]:,} items."
    most = float(np.quantile(beta, 0.98))
    panel = Panel(
        "entropy at temperature 1 (nats)", "inverse temperature", curves, possible=(0.0, most), whole=True,
        marks=[Mark("the published one sharpens", float(active[0]), float(active[-1]))],
    )  # fmt: skip
    return Drawing("temperature_fit", "Fit of the temperature", [panel], note=note)


# -- the page


def view(files: RunFiles, records: list[Record]) -> View:
    """Panels, the table behind the accuracies, the maps, the training loss and all records."""
    measured = measured_of(records)
    panels = [panel for drawing in drawings(measured) for panel in drawing.panels] if measured.values else []
    lines = files.run.metrics()
    names = sorted({name for line in lines for name in line if name.startswith("loss_")}, key=lambda n: (len(n), n))
    each = [logged(lines, name, "each seed", reference=True)[0] for name in names]
    loss = [*each, logged(lines, "loss", "mean over seeds", style=0)[0]]
    training = Panel("step", "loss (nats)", loss, title="Training loss", possible=(0.0, None), whole=True)
    maps = maps_of(files)
    data = maps.values.pop("data", None)
    sections = [
        Section("Accuracy and dispersion by the number of items", panels=panels, tables=[table_of(measured)]),
        maps,
        Section("Training", panels=[training]),
        Section("Every number", tables=tables_of(records, folded=True)),
    ]
    return View(sections, scope(files), data=data, scripts=("draw.js", "maps.js") if data else ())


def table_of(measured: Measured) -> Table:
    """Accuracy in per cent by normaliser and number of items: mean and half the interval."""
    rows: list[list[Any]] = []
    for name in measured.values:
        values = measured.accuracy(name)
        for n, mean, half in zip(measured.sizes, values.mean(0), half_width(values), strict=True):
            sure = float(half) if math.isfinite(half) else None
            rows.append([name, n, float(mean), sure, len(measured.seeds)])
    return Table("accuracy in per cent", ["softmax", "n", "mean", "half of the 95 % interval", "seeds"], rows)


def maps_of(files: RunFiles) -> Section:
    """The attention maps: for each normaliser and size, sets by items of highest priority."""
    maps: dict[str, dict[str, Any]] = defaultdict(dict)
    for key, weights in files.arrays("attention.safetensors").items():
        name, _, n = key.rpartition(".")
        maps[name][n] = {"rows": weights.shape[0], "columns": weights.shape[1], **scaled(weights)}
    if not maps:
        return Section("Attention by size")
    sizes = sorted({int(n) for by_n in maps.values() for n in by_n})
    note = (
        "Rows are sets, columns their items of highest priority, the highest on the right. The stronger a colour, the "
        "larger the weight, from none to 1: a row that ends strong on the right found the largest; a row that is faint "
        "everywhere has dispersed."
    )
    return Section(
        "Attention by size",
        part="maps.html.j2",
        note=note,
        values={
            "sizes": sizes,
            "names": sorted(maps, key=lambda name: (name != "softmax", name)),
            "data": {"maps": dict(maps), "sizes": sizes},
        },
    )


def scope(files: RunFiles) -> list[str]:
    """Over how many sets and seeds."""
    config = files.run.manifest["config"]
    n_sets, rounded = config.get("test_sets"), config.get("bfloat16")
    lines = [
        f"Each accuracy is over {n_sets:,} sets of a size and a seed, drawn apart from training." if n_sets else "",
        "Evaluated with the factors of matrix products rounded to bfloat16." if rounded == "factors" else "",
        "Evaluated with weights, items and every result in between rounded to bfloat16."
        if rounded and rounded != "factors"
        else "",
        "Adaptive temperatures follow the mean entropy of all sets of a seed and size."
        if config.get("one_temperature")
        else "",
    ]
    return list(filter(None, lines))
