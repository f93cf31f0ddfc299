"""How every figure is drawn, with matplotlib's own objects, so that no screen, notebook or MPLBACKEND has a say.

`save` writes files; `draw_panel` draws the curves and the cells that `support/panels.py` describes, the same in the
files of a run (`save_drawing`, panels on a grid) and in its page (`report/page/pictures.py`).
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roundround.support.errors import escaped
from roundround.support.files import write_atomically
from roundround.support.panels import Curve, Drawing, HeatMap, Panel

KINDS = ("svg", "pdf", "png")  # for a page, for a paper, for everything else
LETTER = 0.095  # inches: the mean width of a letter of a title
PANEL = (5.0, 3.5)  # inches
BLUE, RED, GREY, SHADE = "#1f5fa8", "#c0392b", "#767f89", "#dfe8f3"
INK, SOFT, LINE = "#1b1f24", "#57606a", "#d5d9de"
PALETTE = (BLUE, RED, "#2e7d4f", "#8e44ad", "#a05a00", "#00798c", "#b0307c", "#55606b")  # of files and of the page
PLACE_COLOURS = (
    "#c0392b",
    "#e08e45",
    "#7d6608",
    "#8e44ad",
    "#1f5fa8",
    "#2e8b57",
    "#d5d8dc",
)  # of the places that weight goes to
MARKERS = "os^DvPX*"
DASHES: tuple[tuple[float, ...], ...] = (
    (), (7, 3), (2, 2.5), (9, 3, 2, 3), (12, 4), (4, 4), (9, 3, 2, 3, 2, 3), (1, 4),
)  # fmt: skip
MOST_MARKERS = 40  # points of a line, each with a marker; a longer line has some, so that it is told apart in grey
MANY = 500  # points without a line, which are dots
MOST_TICKS = 7
MANY_LETTERS = 36  # of the names below a panel
NARROW = 100  # of a logarithmic axis, largest over smallest: powers of ten would be too few to read it by
Array = NDArray[np.float64]


def subplots(*shape: int, figsize: tuple[float, float] | None = None, **options: Any) -> tuple[Any, Any]:
    """A figure and its axes, laid out to fit."""
    from matplotlib.figure import Figure

    figure = Figure(figsize, layout="constrained")
    return figure, figure.subplots(*shape, **options)


def colour_map(name: str) -> Any:
    """Matplotlib's colour map of this name: a function of numbers from 0 to 1."""
    import matplotlib

    return matplotlib.colormaps[name]


def set_title(figure: Any, text: str) -> None:
    """The title above all panels, in as many lines as the width of the figure takes."""
    n_letters = int(figure.get_size_inches()[0] / LETTER)
    lines = textwrap.wrap(escaped(text), max(16, n_letters))  # names of somebody else's run may stand in it
    figure.suptitle("\n".join(lines), parse_math=False)


def number_columns(axis: Any, n: int, label: str) -> None:
    """Whole numbers along the horizontal axis of a picture with n columns."""
    axis.set(xticks=range(0, n, 1 + n // 17), xlabel=label)


# -- panels


def save_drawing(drawing: Drawing, folder: Path, kinds: Sequence[str] = KINDS, *, alike: bool = False) -> list[Path]:
    """`figure_of` as files."""
    return save(figure_of(drawing, alike=alike), folder, drawing.name, kinds)


def figure_of(drawing: Drawing, *, alike: bool = False) -> Any:
    """The panels on a grid with one legend below. alike: all have the same vertical axis, that of the first."""
    panels = drawing.panels
    n_columns = 2 if len(panels) == 4 else min(len(panels), 3)
    n_rows = -(-len(panels) // n_columns)
    figsize = (PANEL[0] * n_columns, 0.6 + PANEL[1] * n_rows)
    figure, grid = subplots(n_rows, n_columns, figsize=figsize, squeeze=False)
    axes = list(grid.flat)
    ends = y_ends([panel for panel in panels if isinstance(panel, Panel)]) if alike else None
    for axis, panel in zip(axes, panels, strict=False):
        draw_panel(axis, panel, ends)
        if len(panels) > 1 or drawing.title != panel.title:
            axis.set_title(escaped(panel.title), fontsize="medium", parse_math=False)
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    handles: dict[str, Any] = {}
    for axis in axes:
        handles |= dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
    if len(handles) > 1 or (handles and any(isinstance(panel, Panel) and panel.marks for panel in panels)):
        n_letters = max(map(len, handles)) + 7  # and the sign in front
        n_side_by_side = min(len(handles), max(1, int(figsize[0] / (0.85 * LETTER * n_letters))))
        figure.set_size_inches(figsize[0], figsize[1] + 0.2 * -(-len(handles) // n_side_by_side))
        legend = figure.legend(
            handles.values(), handles, loc="outside lower center", ncols=n_side_by_side,
            frameon=False, fontsize="small",
        )  # fmt: skip
        for text in legend.get_texts():
            text.set_parse_math(False)
    notes = dict.fromkeys(panel.note for panel in panels if panel.note)
    set_title(figure, f"{drawing.title}. {' '.join(notes)}" if notes else drawing.title)
    return figure


def draw_panel(axis: Any, panel: Panel | HeatMap, ends: tuple[float, float] | None = None) -> None:
    """Curves or cells. ends: of the vertical axis, where several panels share one."""
    if isinstance(panel, HeatMap):
        draw_cells(axis, panel)
    else:
        draw_curves(axis, panel, ends or y_ends([panel]))
    axis.set_xlabel(escaped(panel.x_label), parse_math=False)
    axis.set_ylabel(escaped(panel.y_label), parse_math=False)
    axis.spines[["top", "right"]].set_visible(False)


def look_of(curve: Curve, place: int) -> dict[str, Any]:
    """Colour, dashes and marker of the curve at this place of its panel: told apart without colour too."""
    number = (place if curve.style is None else curve.style) % len(PALETTE)
    if curve.reference:
        return {"color": GREY, "linewidth": 1.2, "zorder": 1}
    if curve.points and np.asarray(curve.x).size > MANY:
        return {"color": GREY, "linestyle": "none", "marker": ".", "markersize": 2, "alpha": 0.35, "rasterized": True}
    if curve.points:
        return {"color": INK, "linestyle": "none", "marker": MARKERS[number], "fillstyle": "none", "markersize": 5}
    dashes = {"linestyle": (0, tuple(part / 2 for part in DASHES[number]))} if DASHES[number] else {}  # of two points
    return {"color": PALETTE[number], "linewidth": 1.6, "marker": MARKERS[number], "markersize": 4.5, **dashes}


def draw_curves(axis: Any, panel: Panel, ends: tuple[float, float]) -> None:
    """Bands and lines, each called after the number of its curve; marks below them."""
    seen = [(place, curve, panel.visible(curve)) for place, curve in enumerate(panel.curves)]
    seen = [(place, curve, visible) for place, curve, visible in seen if np.isfinite(visible[1]).any()]
    at = [mark.low for mark in panel.marks if mark.axis == "x" and mark.low == mark.high]
    x_ends = ends_of(
        np.concatenate([x[np.isfinite(y)] for _, _, (x, y, _, _) in seen] + [np.array(at)]), "x" in panel.log
    )
    for place, curve, (x, y, low, high) in seen:
        look = look_of(curve, place)
        if np.isfinite(low).any() and "color" in look:
            there = np.isfinite(low) & np.isfinite(high)
            low, high = np.fmax(low[there], ends[0]), np.fmin(high[there], ends[1])
            outline = np.concatenate([x[there], x[there][::-1]]), np.concatenate([low, high[::-1]])
            axis.fill(*outline, color=look["color"], alpha=0.16, linewidth=0, gid=f"band-{place}")
        if "marker" in look and len(x) > MOST_MARKERS and not curve.points:
            every = len(x) // 8
            look["markevery"] = (place % every, every)
        axis.plot(x, y, **look, label=escaped(curve.name), gid=f"line-{place}")
    for mark in panel.marks:
        line, span = (axis.axvline, axis.axvspan) if mark.axis == "x" else (axis.axhline, axis.axhspan)
        room = x_ends if mark.axis == "x" else ends
        edges = max(mark.low, room[0]), min(mark.high, room[1])
        if mark.low == mark.high:
            line(mark.low, color=GREY, linestyle=":", linewidth=1.4, zorder=0, label=escaped(mark.name))
        elif edges[0] < edges[1]:
            span(*edges, color=SHADE, linewidth=0, zorder=0, label=escaped(mark.name))
    scale(axis.xaxis, x_ends, "x" in panel.log, panel.x_ticks)
    scale(axis.yaxis, ends, "y" in panel.log)
    if panel.reversed_x:
        axis.invert_xaxis()
    axis.grid(axis="y", color=LINE, linewidth=0.8)
    axis.set_axisbelow(True)


def y_ends(panels: Sequence[Panel]) -> tuple[float, float]:
    """Where the vertical axis of these panels begins and ends: at all that is drawn, with room around it."""
    panel = panels[0]
    parts = [np.concatenate(one.visible(curve)[1:]) for one in panels for curve in one.curves]
    at = [mark.low for one in panels for mark in one.marks if mark.axis == "y" and mark.low == mark.high]
    low, high = ends_of(np.concatenate([*parts, at]), "y" in panel.log)
    if panel.whole:
        least, most = panel.possible
        room = 0.0 if least is None or most is None else 0.04 * (most - least)
        low, high = low if least is None else least - room, high if most is None else most + room
    middle = (low + high) / 2
    if panel.widened and high - low < 0.1 * abs(middle):
        low, high = middle - 0.05 * abs(middle), middle + 0.05 * abs(middle)
    return low, high


def ends_of(values: Array, log: bool) -> tuple[float, float]:
    known = values[np.isfinite(values)]
    low, high = (float(known.min()), float(known.max())) if len(known) else (1.0, 1.0)
    if log:
        margin = (high / low) ** 0.04 if high > low else 1.5
        return low / margin, high * margin
    margin = 0.05 * (high - low) or 0.1 * abs(low) or 1.0
    return low - margin, high + margin


def scale(axis: Any, ends: tuple[float, float], log: bool, wanted: Sequence[float] = ()) -> None:
    """Limits, and few ticks: those that are wanted, thinned out, or round ones, written as numbers."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

    name = axis.axis_name
    axis.axes.set(**{f"{name}scale": "log" if log else "linear", f"{name}lim": ends})
    if wanted:
        ticks: Sequence[float] = sorted(wanted)[:: -1 * -(-len(wanted) // MOST_TICKS)]
    elif log and ends[1] > 5 * ends[0]:
        digits = (1, 2, 5) if ends[1] < NARROW * ends[0] else (1,)
        ticks = LogLocator(subs=digits, numticks=MOST_TICKS).tick_values(*ends)
    else:
        ticks = MaxNLocator(MOST_TICKS - 1, steps=[1, 2, 5, 10]).tick_values(*ends)
    axis.set_major_locator(FixedLocator([tick for tick in ticks if ends[0] <= tick <= ends[1]]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: tick_label(value)))


def tick_label(value: float) -> str:
    if value == 0:
        return "0"
    for size, unit in ((1e9, "G"), (1e6, "M")):
        if abs(value) >= size:
            return f"{value / size:.4g}{unit}" if abs(value) < 1e15 else f"{value:.0e}".replace("e+", "e")
    if abs(value) < 1e-3:
        return f"{value:.0e}".replace("e-0", "e-")
    return f"{value:,.6g}" if abs(value) >= 1 else f"{value:.4g}"


def slanted(names: Sequence[str]) -> bool:
    """Whether the names below a panel would run into each other."""
    return sum(map(len, names)) > MANY_LETTERS


def draw_cells(axis: Any, panel: HeatMap) -> None:
    """Light to dark, so that grey paper shows the same order; with texts in the page's blue, else with a colour bar."""
    from matplotlib.patches import Rectangle

    values = np.asarray(panel.values, dtype=float)
    if panel.texts:
        for (row, column), value in np.ndenumerate(values):
            place = (column - 0.5, row - 0.5)
            alpha = 0.0 if np.isnan(value) else 0.08 + 0.5 * value
            axis.add_patch(Rectangle(place, 1, 1, facecolor=BLUE, alpha=alpha, linewidth=0))
            text = {"ha": "center", "va": "center", "fontsize": "small", "color": INK, "parse_math": False}
            axis.text(column, row, panel.texts[row][column], **text).set_in_layout(False)
        axis.set(xlim=(-0.5, values.shape[1] - 0.5), ylim=(values.shape[0] - 0.5, -0.5))
    else:
        image = axis.imshow(
            values, aspect="auto", interpolation="nearest", cmap=colour_map("YlGnBu"), vmin=min(0.0, np.nanmin(values)),
            vmax=panel.most,
        )  # fmt: skip
        axis.figure.colorbar(image, ax=axis, fraction=0.05)
        axis.locator_params(integer=True)
    slant = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"}
    for names, set_ticks, options in (
        (panel.y_names, axis.set_yticks, {}),
        (panel.x_names, axis.set_xticks, slant if slanted(panel.x_names) else {}),
    ):
        if names:
            words = [escaped(name) for name in names]
            set_ticks(range(len(words)), words, fontsize="small", parse_math=False, **options)


# -- files


def write(figure: Any, path: Path) -> None:
    """One file, in the format that its name says: the same picture gives the same bytes.

    Drawn in memory first: where a disk is full, matplotlib's PDF fails with another error than the system's. Laid out
    with the first file, the same in every format: matplotlib itself would draw every file twice for it.
    """
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    drawn = io.BytesIO()
    undated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    own = {"svg.hashsalt": path.stem, "figure.autolayout": False, "figure.constrained_layout.use": False}
    with matplotlib.rc_context(own):  # without the salt its identifiers are random
        if (layout := figure.get_layout_engine()) is not None:
            FigureCanvasSVG(figure)  # letters are as wide as in this format
            layout.execute(figure)
            figure.set_layout_engine(None)
        figure.savefig(drawn, format=path.suffix[1:], dpi=150, metadata=undated.get(path.suffix))
    write_atomically(path, drawn.getvalue())


def save(figure: Any, folder: Path, name: str, kinds: Sequence[str] = KINDS) -> list[Path]:
    """Write `folder/name.<kind>` for each kind."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.{kind}" for kind in kinds]
    for path in paths:
        write(figure, path)
    return paths
