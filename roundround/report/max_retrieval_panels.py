"""The panels of max retrieval, and its page: accuracy and dispersion by the number of items, attention at every size.

Files and page draw the same panels; maps of attention and the fit are drawn here as matplotlib has them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from roundround.analysis.intervals import half_width
from roundround.config.verb import FigureStyle
from roundround.papers.max_retrieval import PAPER, SECOND_HAND, SLOPE, SPREAD
from roundround.report.drawing.figures import colour_map, finish, save, subplots, tick_words
from roundround.report.drawing.style import HEAT, styled
from roundround.report.drawing.tables import Record, Table, tables_of
from roundround.report.max_retrieval_tables import OF_HEADS, Array, Measured, measured_of, shown_name
from roundround.report.page.view import RunFiles, Section, View, scaled
from roundround.report.train_panels import logged
from roundround.support.panels import Curve, Drawing, Mark, Panel

MOST_WEIGHTS = 300_000  # of all maps on a page; ours have some thousands


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
    """Means over seeds with 95 % intervals; the paper's numbers, with a mark on those that are second-hand."""
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
    """A measure of dispersion, what it is where all weights are alike, and Lemma 2.1 for the plain softmax."""
    curves = curves_of(measured, metric)
    alike = [math.log(n) if metric == "entropy" else 1 / n for n in measured.sizes]
    curves.append(Curve("uniform: ln n, 1 / n", measured.sizes, alike, reference=True))
    if f"{metric}_bound" in measured.of_logits:
        bound = measured.of_logits[f"{metric}_bound"].mean(0)
        curves.append(Curve("Lemma 2.1, for the plain softmax", measured.sizes, bound, points=True))
    options = {"possible": (0.0, None), **DISPERSION[metric]}
    return over_items(measured, options.pop("y_label"), curves, options.pop("title"), **options)


def curves_of(measured: Measured, metric: str, factor: float = 1.0) -> list[Curve]:
    """A line for each normaliser; one for those that are alike, because only the upper one would be seen."""
    curves = []
    for style, (name, repeated_by) in enumerate(measured.distinct().items()):
        if metric in measured.values[name]:
            values = factor * measured.values[name][metric]
            mean, half = values.mean(0), half_width(values)
            low, high = mean - half, mean + half
            curves.append(Curve(shown_name(name, repeated_by), measured.sizes, mean, low=low, high=high, style=style))
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
    lines = files.metrics()
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
    arrays = files.arrays("attention.safetensors")
    if sum(weights.size for weights in arrays.values()) > MOST_WEIGHTS:
        files.remarks.append(f"attention.safetensors has more than {MOST_WEIGHTS:,} weights: no map is shown")
        arrays = {}
    maps: dict[str, dict[str, Any]] = defaultdict(dict)
    for key, weights in arrays.items():
        name, _, n = key.rpartition(".")
        if n.isdecimal() and weights.ndim == 2:
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
    lines = [
        f"Each accuracy is over {config['test_sets']:,} sets of a size and a seed, drawn apart from training."
        if isinstance(config.get("test_sets"), int)
        else ""
    ]
    if config.get("bfloat16") == "factors":
        lines.append("Evaluated with the factors of matrix products rounded to bfloat16.")
    elif config.get("bfloat16"):
        lines.append("Evaluated with weights, items and every result in between rounded to bfloat16.")
    if config.get("one_temperature"):
        lines.append("Adaptive temperatures follow the mean entropy of all sets of a seed and size.")
    return [line for line in lines if line]
