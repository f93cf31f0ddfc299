"""Figures of a comparison: quality against context length, two settings crossed, training curves.

Lines differ in marker and dashes as well as in colour, so that a print without colour can be read. Bands are 95 % t
intervals over seeds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roundround.analysis.comparison import Comparison, Row, format_setting, format_settings, order
from roundround.analysis.past_run import direction, is_share
from roundround.report.figures import GREY, SHADE, colour_map, save, set_title, subplots
from roundround.report.numbers import decimals_of, fixed
from roundround.support.errors import escaped

Array = NDArray[np.float64]

AXES = {"length": "context length (tokens)", "n": "items"}
LINES = 8  # of a panel
PANELS = 6  # as many as there are normalisers in the grids that ship, and one
FEW_PANELS = 2  # where there are more than PANELS
CROWDED = 5  # lines; more are split into panels where there is a second setting
CELLS = 8  # of a side of a matrix
MANY = 32  # cells of a matrix; of larger ones only the means are written, at the first and the last place
NARROW = 4  # times from the first tick to the last: more are on a logarithmic axis
MARKS, DASHES = (
    "osD^vPX*",
    ("-", "--", "-.", (0, (1, 1)), (0, (5, 1, 1, 1, 1, 1)), (0, (3, 3)), (0, (8, 2)), (0, (1, 3))),
)
SIGNIFICANT = 0.05
KINDS = ("svg", "pdf")


@dataclass(frozen=True, eq=False)
class Line:
    """A mean over seeds by x, [P]; half of the interval, NaN where there is none."""

    settings: dict[str, Any]
    x: Array
    mean: Array
    half: Array


@dataclass(frozen=True)
class Panel:
    """Lines that share a title; their names leave out what the title says."""

    title: str
    lines: dict[str, Line]


def draw(found: Comparison, curves: Sequence[Mapping[str, Any]], folder: Path) -> list[Path]:
    """Draw what the comparison has; the files."""
    paths = []
    for (verb, metric), rows in telling(found).items():
        name = re.sub(r"[^\w.-]+", "_", f"{verb}_{metric}" if verb else metric)
        title = f"{verb}: {metric}" if verb else metric
        paths += draw_by_length(rows, title, folder, name)
        differing = [row for row in rows if row.difference is not None]
        if differing and len({id(row.group) for row in differing}) <= PANELS * LINES:
            paths += draw_by_length(differing, title, folder, name, baseline=str(found.baseline))
        paths += draw_matrix(rows, title, folder, f"{name}_matrix")
    if any(len(curve["tokens"]) > 1 for curve in curves):
        paths += draw_curves(curves, folder)
    return paths


def telling(found: Comparison) -> dict[tuple[str | None, str], list[Row]]:
    """The rows of the first metric of each verb that says how good a model is; of a file those of every such metric.

    Not of training where models were evaluated: its held-out loss is in the training curves.
    """
    chosen: dict[tuple[str | None, str], list[Row]] = {}
    evaluated = any(row.verb == "eval" for row in found.table)
    for row in found.table:
        if row.verb == "train" and evaluated:
            continue
        others = [metric for verb, metric in chosen if verb == row.verb]
        first = not others or row.metric in others or row.verb is None
        if direction(row.metric) and first and set(row.coordinates) <= {*AXES, "task", "texts"}:
            chosen.setdefault((row.verb, row.metric), []).append(row)
    return chosen


# -- lines


def draw_by_length(rows: Sequence[Row], title: str, folder: Path, name: str, *, baseline: str = "") -> list[Path]:
    """Quality against context length (or the number of items), where several were measured.

    baseline: its words where the rows' differences to it are drawn, in place of their means.
    """
    axis_key = next((key for key in AXES if len({row.coordinates.get(key) for row in rows} - {None}) > 1), None)
    if axis_key is None:
        return []
    lines: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        if axis_key in row.coordinates:
            rest = {**row.settings, **{key: value for key, value in row.coordinates.items() if key != axis_key}}
            lines.setdefault(tuple(rest.items()), []).append(row)
    value = "difference" if baseline else "mean"
    panels, n_more = panels_of([line_of(dict(rest), some, axis_key, value) for rest, some in lines.items()])
    ticks = sorted({row.coordinates[axis_key] for row in rows if axis_key in row.coordinates})
    label = rows[0].metric.replace("_", " ")
    of_task = axis_key == "length" and any(row.group.learns_a_task for row in rows)
    xlabel = "length" if of_task else AXES[axis_key]
    figure, axes = lined(panels, ylabel=f"difference of {label}" if baseline else label, xlabel=xlabel)
    everywhere = {run.train_lengths for row in rows for run in row.group.sources}
    trained = next(iter(everywhere)) if axis_key == "length" and len(everywhere) == 1 else None
    for axis in axes:
        axis.set_xscale("linear" if ticks[-1] <= NARROW * ticks[0] else "log")
        shown_ticks = ticks[:: 1 + len(ticks) // 10]
        axis.set_xticks(shown_ticks, [f"{tick:,}" for tick in shown_ticks], rotation=45, fontsize="small")
        axis.minorticks_off()
        if trained is not None:
            mark_training(axis, trained)
        if baseline:
            axis.axhline(0, color="black", linewidth=0.8, zorder=0)
    what = (
        f"minus {baseline}, seed by seed; bands: 95 % intervals"
        if baseline
        else "over seeds; bands: 95 % intervals of the mean"
    )
    if trained is not None and trained[0] < trained[1]:
        what += f"; shaded: lengths in training, {trained[0]:,} to {trained[1]:,}"
    return finish(figure, n_more, f"{title} {what}", folder, f"{name}{'_difference' * bool(baseline)}_by_{axis_key}")


def mark_training(axis: Any, lengths: tuple[int, int]) -> None:
    """The lengths of training: a dotted line for one, a shaded range for several."""
    if lengths[0] == lengths[1]:
        axis.axvline(lengths[0], color=GREY, linestyle=":", linewidth=1, zorder=0)
    else:
        limits = axis.get_xlim()  # of what was measured: of the lengths in training their end matters
        axis.axvspan(*lengths, color=SHADE, zorder=0)
        axis.set_xlim(limits)


def draw_curves(curves: Sequence[Mapping[str, Any]], folder: Path) -> list[Path]:
    lines = []
    for curve in curves:
        tokens, mean = np.array(curve["tokens"]), np.array(curve["mean"])
        lines.append(Line(curve["settings"], tokens, mean, np.array(curve["high"] or np.nan) - mean))
    panels, n_more = panels_of(lines)
    figure, axes = lined(panels, ylabel="held-out loss (nats per token)", xlabel="training tokens", every=8)
    for axis in axes:
        axis.ticklabel_format(axis="x", style="sci", scilimits=(-3, 6))
    return finish(figure, n_more, "training; bands: 95 % intervals of the mean over seeds", folder, "training_curves")


def line_of(settings: dict[str, Any], rows: Sequence[Row], axis_key: str, value: str) -> Line:
    """The means (or the differences) of one setting along an axis."""
    rows = sorted(rows, key=lambda row: order(row.coordinates[axis_key]))
    highs = [row.difference_high if value == "difference" else row.high for row in rows]
    means = np.array([getattr(row, value) for row in rows], dtype=np.float64)
    half = np.array([np.nan if high is None else high for high in highs]) - means
    return Line(settings, np.array([row.coordinates[axis_key] for row in rows], dtype=np.float64), means, half)


def panels_of(lines: Sequence[Line]) -> tuple[list[Panel], int]:
    """One panel, or one for each value of all settings but the first where one would be crowded; and what is left out.

    Of more panels than can be read only the first few are drawn, of a panel the first lines.
    """
    keys = list(dict.fromkeys(key for line in lines for key in line.settings))
    apart = keys[1:] if len(lines) > CROWDED else []
    panels: dict[str, dict[str, Line]] = {}
    for line in lines:
        title = format_settings({key: line.settings.get(key) for key in apart}) if apart else ""
        own = {key: value for key, value in line.settings.items() if key not in apart}
        panels.setdefault(title, {})[format_settings(own)] = line
    chosen = list(panels.items())[: PANELS if len(panels) <= PANELS else FEW_PANELS]
    found = [Panel(title, dict(list(some.items())[:LINES])) for title, some in chosen]
    return found, len(lines) - sum(len(panel.lines) for panel in found)


def lined(panels: Sequence[Panel], *, ylabel: str, xlabel: str, every: int = 1) -> tuple[Any, list[Any]]:
    """A figure with the lines of the panels; a line of the same name looks the same in all."""
    n = len(panels)
    n_columns = 2 if n == 4 else min(n, 3)
    n_rows = -(-n // n_columns)
    figure, grid = subplots(
        n_rows, n_columns, figsize=(2.2 + 3.2 * n_columns, 0.8 + 2.9 * n_rows), sharey=True, squeeze=False
    )
    axes = list(grid.flat)
    names = list(dict.fromkeys(name for panel in panels for name in panel.lines))
    handles: dict[str, Any] = {}
    for axis, panel in zip(axes, panels, strict=False):
        for name, line in panel.lines.items():
            handles[name] = plot(axis, line, names.index(name), every)
        axis.set_title(escaped(panel.title), fontsize="small", parse_math=False)
        axis.spines[["top", "right"]].set_visible(False)
    for axis in axes[n:]:
        axis.set_visible(False)
    values = np.concatenate([line.mean for panel in panels for line in panel.lines.values()])
    if is_share(ylabel) and values.min() >= 0 and values.max() <= 1:
        axes[0].set_ylim(-0.04, 1.04)  # bands of few seeds reach beyond
    elif values.min() > 0 and values.max() > 8 * values.min():
        axes[0].set_yscale("log")
    for row in grid:
        row[0].set_ylabel(ylabel)
    for axis in axes[max(0, n - n_columns) : n]:
        axis.set_xlabel(xlabel)
    labels = [escaped(name) for name in handles]
    legend = figure.legend(handles.values(), labels, loc="outside right center", frameon=False, fontsize="small")
    for text in legend.get_texts():
        text.set_parse_math(False)
    return figure, axes[:n]


def plot(axis: Any, line: Line, place: int, every: int) -> Any:
    colour = colour_map("Dark2")(place % 8)
    look = {"marker": MARKS[place % len(MARKS)], "linestyle": DASHES[place % len(DASHES)], "color": colour}
    step = max(1, len(line.x) // every) if every > 1 else 1
    (drawn,) = axis.plot(line.x, line.mean, **look, markersize=4.5, linewidth=1.4, markevery=(place % step, step))
    if not np.isnan(line.half).all():
        axis.fill_between(line.x, line.mean - line.half, line.mean + line.half, color=colour, alpha=0.18, linewidth=0)
    return drawn


def finish(figure: Any, n_more: int, title: str, folder: Path, name: str) -> list[Path]:
    set_title(figure, title if not n_more else f"{title}; {n_more:,} more settings are not drawn")
    return save(figure, folder, name, KINDS)


# -- two settings crossed


def draw_matrix(rows: Sequence[Row], title: str, folder: Path, name: str) -> list[Path]:
    """The first setting that varies against the others: a matrix for each of a few places."""
    keys = list(rows[0].settings)
    if len(keys) < 2:
        return []
    places: dict[str, list[Row]] = {}
    for row in rows:
        places.setdefault(format_settings(row.coordinates) if row.coordinates else "", []).append(row)
    down = sorted({row.settings[keys[0]] for row in rows}, key=order)[:CELLS]
    across = list(dict.fromkeys(tuple(row.settings[key] for key in keys[1:]) for row in rows))[:CELLS]
    if len(down) < 2 or len(across) < 2:
        return []
    most = min(PANELS if len(down) * len(across) <= MANY else 2, len(places))
    chosen = [list(places)[n] for n in np.unique(np.linspace(0, len(places) - 1, most).round().astype(int))]
    width, height = 1.6 + 0.95 * len(across), 1.3 + 0.5 * len(down)
    n_columns = min(2, len(chosen))
    n_rows = -(-len(chosen) // n_columns)
    figure, grid = subplots(n_rows, n_columns, figsize=(width * n_columns, 0.4 + height * n_rows), squeeze=False)
    for axis in list(grid.flat)[len(chosen) :]:
        axis.set_visible(False)
    for axis, place in zip(grid.flat, chosen, strict=False):
        by_cell = {(row.settings[keys[0]], tuple(row.settings[key] for key in keys[1:])): row for row in places[place]}
        fill_matrix(axis, by_cell, down, across)
        axis.set_title(escaped(place), fontsize="small", parse_math=False)
        label(
            axis,
            [format_setting(value) for value in down],
            [", ".join(map(format_setting, values)) for values in across],
        )
        axis.set(ylabel=escaped(keys[0]), xlabel=escaped(", ".join(keys[1:])))
    marked = any(row.p_holm is not None and row.p_holm < SIGNIFICANT for row in rows)
    note = f"; * p (Holm) < {SIGNIFICANT} against the baseline" if marked else ""
    half = " and half of its 95 % interval" if len(down) * len(across) <= MANY else ""
    set_title(figure, f"{title}, mean{half} over seeds; darker is better{note}")
    return save(figure, folder, name, KINDS)


def label(axis: Any, down: Sequence[str], across: Sequence[str]) -> None:
    for ticks, set_ticks, options in (
        (down, axis.set_yticks, {}),
        (across, axis.set_xticks, {"rotation": 30, "ha": "right", "rotation_mode": "anchor"}),
    ):
        set_ticks(range(len(ticks)), [escaped(tick) for tick in ticks], fontsize="small", parse_math=False, **options)


def darkness(means: Array, metric: str) -> Array:
    """From 0 to 1, of a share the share itself, so that panels can be compared; NaN where there is no number."""
    if is_share(metric) and np.nanmin(means) >= 0 and np.nanmax(means) <= 1:
        return means if direction(metric) > 0 else 1 - means
    ranked = -direction(metric) * (np.log(means) if np.nanmin(means) > 0 else means)
    low, high = np.nanmin(ranked), np.nanmax(ranked)
    return np.where(np.isnan(ranked), np.nan, 1 - (ranked - low) / (high - low if high > low else 1))


def fill_matrix(axis: Any, by_cell: Mapping[Any, Row], down: Sequence[Any], across: Sequence[Any]) -> None:
    """Grey levels, dark for a better number, with the numbers inside."""
    cells = [[by_cell.get((a, b)) for b in across] for a in down]
    means = np.array([[np.nan if row is None else row.mean for row in line] for line in cells])
    known = [row for line in cells for row in line if row is not None]
    axis.imshow(darkness(means, known[0].metric), cmap="Greys", vmin=-0.1, vmax=2.4, aspect="auto")
    halves = [row.high - row.mean for row in known if row.high is not None]
    digits = decimals_of([row.mean for row in known], halves)
    for i, line in enumerate(cells):
        for j, row in enumerate(line):
            text = "-" if row is None else fixed(row.mean, digits)
            if row is not None and row.p_holm is not None and row.p_holm < SIGNIFICANT:
                text += "*"
            if row is not None and row.high is not None and len(down) * len(across) <= MANY:
                text += f"\n±{fixed(row.high - row.mean, digits)}"
            axis.text(j, i, text, ha="center", va="center", fontsize="x-small", parse_math=False).set_in_layout(False)
