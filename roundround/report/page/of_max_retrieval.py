"""The page of max retrieval: accuracy and dispersion by the number of items, and the attention at every size."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roundround.report.numbers import number, scaled
from roundround.report.page.charts import Chart, Series
from roundround.report.page.of_train import thinned, values
from roundround.report.page.sources import Record, RunFiles
from roundround.report.page.view import Section, View
from roundround.report.tables import Table, tables_of

MEASURES = {  # metric: title, label, a factor that makes it per cent, the most it can be
    "accuracy": ("Accuracy", "accuracy (%)", 100.0, 100.0),
    "entropy": ("Entropy of the weights", "mean entropy (nats)", 1.0, None),
    "largest_weight": ("Largest weight", "mean largest weight", 1.0, 1.0),
}
MOST_WEIGHTS = 300_000  # of all maps, so that a page has up to two million bytes; ours have some thousands
Cells = dict[str, dict[float, list[float]]]  # by normaliser and number of items: a value for each seed


def view(files: RunFiles, records: list[Record]) -> View:
    """Charts with 95 % intervals over seeds, the table behind them, the maps, the training loss and all records."""
    cells = {metric: cells_of(records, metric, factor) for metric, (_, _, factor, _) in MEASURES.items()}
    charts = [chart_of(metric, found) for metric, found in cells.items() if found]
    sections = [
        Section("Accuracy and dispersion by the number of items", charts=charts, tables=[table_of(cells["accuracy"])]),
        maps_of(files),
        Section("Training", charts=[loss_of(files)]),
        Section("Every number", tables=every_number(records)),
    ]
    maps = sections[1].values.pop("data", None)
    return View(sections, scope(files), data=maps, scripts=("draw.js", "maps.js") if maps else ())


def cells_of(records: Sequence[Record], metric: str, factor: float) -> Cells:
    """The values of a metric by normaliser and number of items."""
    found: Cells = defaultdict(lambda: defaultdict(list))
    for record in records:
        n, value = number(record.get("n")), number(record["value"])
        if record["metric"] == metric and "softmax" in record and n and value is not None:
            found[str(record["softmax"])][n].append(factor * value)
    return found


def half_widths(columns: list[list[float]]) -> list[float]:
    """Half the 95 % interval of the mean over seeds for each number of items; NaN for one seed."""
    from roundround.analysis.intervals import half_width

    return [float(half_width(np.array(column)[:, None])[0]) for column in columns]


def chart_of(metric: str, cells: Cells) -> Chart:
    """Means over seeds with their intervals."""
    title, label, _, most = MEASURES[metric]
    series = []
    for style, (name, by_n) in enumerate(cells.items()):
        items = sorted(by_n.items())
        means = [sum(column) / len(column) for _, column in items]
        halves = half_widths([column for _, column in items])
        points = [(n, mean) for (n, _), mean in zip(items, means, strict=True)]
        band = [(m - h, m + h) if math.isfinite(h) else None for m, h in zip(means, halves, strict=True)]
        series.append(Series(name, points, band, style))
    sizes = sorted({n for by_n in cells.values() for n in by_n})
    if metric == "entropy":
        series.append(Series("uniform: ln n", [(n, math.log(n)) for n in sizes], reference=True))
    n_seeds = max(len(column) for by_n in cells.values() for column in by_n.values())
    note = f"Mean of {n_seeds} seeds; the band is the 95 % interval of the mean." if n_seeds > 1 else "One seed."
    return Chart(title, series, "items", label, log_x=True, limits=(0.0, most), x_ticks=sizes, note=note)


def table_of(cells: Cells) -> Table:
    """Accuracy in per cent by normaliser and number of items: mean and half the interval."""
    rows = []
    for name, by_n in cells.items():
        items = sorted(by_n.items())
        halves = half_widths([column for _, column in items])
        for (n, column), half in zip(items, halves, strict=True):
            mean = sum(column) / len(column)
            rows.append([name, int(n), mean, half if math.isfinite(half) else None, len(column)])
    return Table("accuracy in per cent", ["softmax", "n", "mean", "half of the 95 % interval", "seeds"], rows)


def maps_of(files: RunFiles) -> Section:
    """The attention maps: for each normaliser and size, sets by items of highest priority."""
    arrays, n_weights = files.arrays("attention.safetensors"), 0
    maps: dict[str, dict[str, Any]] = defaultdict(dict)
    for key, weights in arrays.items():
        name, _, n = key.rpartition(".")
        if n.isdecimal() and weights.ndim == 2:
            n_weights += weights.size
            if n_weights > MOST_WEIGHTS:
                files.remarks.append(f"attention.safetensors has more than {MOST_WEIGHTS:,} weights: no map is shown")
                return Section("Attention by size")
            maps[name][n] = map_of(weights)
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


def map_of(weights: NDArray[Any]) -> dict[str, Any]:
    return {"rows": weights.shape[0], "columns": weights.shape[1], **scaled(weights)}


def loss_of(files: RunFiles) -> Chart:
    """The training loss, mean over seeds, and of each seed."""
    lines = files.metrics()
    names = sorted({name for line in lines for name in line if name.startswith("loss_")}, key=lambda n: (len(n), n))
    series = [Series("mean over seeds", thinned(values(lines, "loss"))[0], style=0)]
    series += [Series("each seed", thinned(values(lines, n))[0], reference=True) for n in names]
    return Chart("Training loss", series[::-1], "step", "loss (nats)", limits=(0.0, None))


def every_number(records: list[Record]) -> list[Table]:
    tables = tables_of(records)
    for table in tables:
        table.folded = len(table.rows) > 20
    return tables


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
