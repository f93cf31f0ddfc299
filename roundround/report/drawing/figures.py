"""Draws every figure with matplotlib's objects in one style, independent of the screen, the notebook and MPLBACKEND.

Whatever differs in colour also differs in dashes, markers, hatches, letters or lightness.

`save` writes files. `draw_panel` draws the curves and cells that `support/panels.py` describes, both for the files of a
run (`save_drawing`, panels on a grid) and for its page (`report/page/view.py`).
"""

from __future__ import annotations

import io
import logging
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roundround.config.verb import FigureStyle
from roundround.distributed.interruption import signals_held
from roundround.support.errors import escaped
from roundround.support.files import write_atomically
from roundround.support.panels import Curve, Drawing, HeatMap, Panel

BLUE, ORANGE, GREY, SHADE = "#1f5fa8", "#d4500c", "#767f89", "#dfe8f3"
INK, SOFT, LINE = "#1b1f24", "#57606a", "#d5d9de"
# colours of files and of the page; for colour-blind eyes as far apart as the required contrast on white allows
PALETTE = (BLUE, ORANGE, "#0f9d77", "#701c5e", "#7a5400", "#2f9ac8", "#d84fa0", "#55606b")
PLACE_COLOURS = (
    "#c0392b",
    "#e08e45",
    "#7d6608",
    "#8e44ad",
    "#1f5fa8",
    "#2e8b57",
    "#d5d8dc",
)  # of the places that weight goes to
HEAT = ("#ffffff", "#b9d0e8", "#6f9fd0", BLUE, "#0c2a4d")  # light to dark, so that grey paper shows the same order
SIGNED = ("#f6c9a4", "#c99a78", "#8f8b92", "#46668f", "#0c2a4d")  # orange below 0, blue above: lighter is less
MARKERS = "os^DvPX*"
DASHES: tuple[tuple[float, ...], ...] = (
    (), (7, 3), (2, 2.5), (9, 3, 2, 3), (12, 4), (4, 4), (9, 3, 2, 3, 2, 3), (1, 4),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The sizes of a style, in inches and points.

    widths: the widths of figures with one, two and three panels side by side. height: the height of a panel with its
    axes. text: the font size of titles and axis labels. small: the font size of all other text. titled: whether the
    title and the note are drawn; in a paper the caption has them.
    """

    widths: tuple[float, float, float]
    height: float
    text: float
    small: float
    line: float
    marker: float
    titled: bool

    def letters(self, width: float, points: float) -> int:
        """The number of letters of the font size `points` that fit into `width` inches."""
        return max(12, int(width / (0.56 * points / 72)))


SIZES = {
    "screen": Sizes(widths=(5.0, 8.8, 11.4), height=3.4, text=10, small=8.5, line=1.6, marker=4.5, titled=True),
    "paper": Sizes(widths=(3.25, 6.75, 6.75), height=2.2, text=8, small=7, line=1.1, marker=3.2, titled=False),
}
FONTS = {  # fonts that come with matplotlib; a glyph that is missing in the first is taken from the next
    "sans": (["DejaVu Sans"], "dejavusans"),
    "times": (["STIXGeneral", "serif"], "stix"),
}


SCREEN = FigureStyle()


@contextmanager
def styled(style: FigureStyle) -> Iterator[Sizes]:
    """Set matplotlib's defaults and a style while figures are made and saved; a user's matplotlibrc is ignored.

    Text stays text in svg and pdf (TrueType), so that it can be edited and searched.
    """
    import matplotlib

    sizes = SIZES[style.style]
    family, mathtext = FONTS[style.font]
    own = {
        "font.family": family,
        "font.serif": ["Times New Roman", "Times", "DejaVu Serif"],  # fallbacks for a reader of an svg
        "font.size": sizes.text,
        "mathtext.fontset": mathtext,
        **dict.fromkeys(("axes.titlesize", "axes.labelsize", "figure.titlesize"), sizes.text),
        **dict.fromkeys(("xtick.labelsize", "ytick.labelsize", "legend.fontsize"), sizes.small),
        "lines.linewidth": sizes.line,
        "lines.markersize": sizes.marker,
        "axes.linewidth": sizes.line / 2,
        "grid.linewidth": sizes.line / 2,
        "hatch.linewidth": sizes.line / 2,
        "xtick.major.width": sizes.line / 2,
        "ytick.major.width": sizes.line / 2,
        "pdf.fonttype": 42,
        "svg.fonttype": "none",
        "savefig.dpi": 300 if style.style == "paper" else 150,
    }
    plain = {name: value for name, value in matplotlib.rcParamsDefault.items() if not name.startswith("backend")}
    with matplotlib.rc_context(plain | own):
        yield sizes


# -- figures

KINDS = ("svg", "pdf", "png")  # for a page, for a paper, for everything else
MOST_MARKERS = 40  # a line with at most this many points has a marker at each; a longer line has about eight markers
MANY = 500  # more points than this without a line are drawn as dots
MOST_TICKS = 7
TICK_LETTER = 0.03  # width of a letter as a fraction of an axis, in a paper's narrowest panel
MANY_LETTERS = 36  # names below a panel with more letters than this overlap
NARROW = 100  # a logarithmic axis whose largest / smallest is below this needs more ticks than powers of ten
Array = NDArray[np.float64]


def subplots(*shape: int, figsize: tuple[float, float] | None = None, **options: Any) -> tuple[Any, Any]:
    """A figure and its axes with constrained layout and one number format for all ticks."""
    from matplotlib.figure import Figure

    figure = Figure(figsize, layout="constrained")
    axes = figure.subplots(*shape, **options)
    for axis in figure.axes:
        axis.xaxis.set_major_formatter(tick_words)
        axis.yaxis.set_major_formatter(tick_words)
    return figure, axes


def colour_map(colours: Sequence[str]) -> Any:
    """A matplotlib colour map, which interpolates these colours over numbers from 0 to 1."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("", list(colours))


def finish(figure: Any, sizes: Sizes, title: str, note: str = "", handles: Mapping[str, Any] | None = None) -> None:
    """Add a title above all panels, and a legend and a note below them; the figure grows to make room.

    The files always carry the title and the note as metadata, even if the style does not draw them.
    """
    width, height = figure.get_size_inches()
    figure.set_label(f"{escaped(title)}\n{escaped(note)}")
    below = 0.0
    if note and sizes.titled:
        lines = textwrap.wrap(escaped(note), sizes.letters(width, sizes.small))
        below = 0.08 + len(lines) * 1.3 * sizes.small / 72
    above = 0.0
    if title and sizes.titled:
        lines_above = textwrap.wrap(escaped(title), sizes.letters(width, sizes.text))  # of somebody else's run
        above = 0.05 + len(lines_above) * 1.3 * sizes.text / 72
        figure.suptitle("\n".join(lines_above), parse_math=False)
    legend = None if not handles else add_legend(figure, sizes, handles)
    rows = 0.0 if legend is None else legend.get_window_extent().height / figure.dpi
    whole = height + above + rows + below
    figure.set_size_inches(width, whole)
    figure.get_layout_engine().set(rect=(0, (rows + below) / whole, 1, 1 - (rows + below) / whole))
    if legend is not None:
        legend.set_bbox_to_anchor((0, below / whole, 1, 1))
    if below:
        look = {"ha": "center", "va": "bottom", "fontsize": sizes.small, "color": SOFT}
        figure.text(0.5, 0.04 / whole, "\n".join(lines), **look, parse_math=False)


def add_legend(figure: Any, sizes: Sizes, handles: Mapping[str, Any]) -> Any:
    """Add a legend below all panels, in as many columns as fit into the width of the figure."""
    width = figure.get_size_inches()[0]
    names = [textwrap.fill(name, sizes.letters(width, sizes.small) - 6) for name in handles]
    for n_rows in range(1, len(names) + 1):
        n_columns = -(-len(names) // n_rows)
        legend = figure.legend(
            handles.values(), names, loc="lower center", ncols=n_columns, frameon=False, columnspacing=1.4,
            borderaxespad=0,
        )  # fmt: skip
        for text in legend.get_texts():
            text.set_parse_math(False)
        if legend.get_window_extent().width <= figure.bbox.width or n_columns == 1:
            break
        legend.remove()
    return legend


def number_columns(axis: Any, n: int, label: str) -> None:
    """Write whole numbers along the horizontal axis of a picture with n columns."""
    axis.set(xticks=range(0, n, 1 + n // 17), xlabel=label)


# -- panels


def save_drawing(
    drawing: Drawing,
    folder: Path,
    style: FigureStyle = SCREEN,
    *,
    kinds: Sequence[str] = KINDS,
    alike: bool = False,
) -> list[Path]:
    """Write the figure of a drawing to files; returns their paths. alike: as in `figure_of`."""
    with styled(style) as sizes:
        return save(figure_of(drawing, sizes, alike=alike), folder, drawing.name, kinds)


def figure_of(drawing: Drawing, sizes: Sizes, *, alike: bool = False) -> Any:
    """The panels on a grid with one legend below. alike: whether all panels have the same vertical axis."""
    panels = drawing.panels
    n_columns, width, height = grid_of(panels, sizes)
    n_rows = -(-len(panels) // n_columns)
    figure, grid = subplots(n_rows, n_columns, figsize=(width, height * n_rows), squeeze=False)
    axes = list(grid.flat)
    ends = y_ends([panel for panel in panels if isinstance(panel, Panel)]) if alike else None
    for axis, panel in zip(axes, panels, strict=False):
        draw_panel(axis, panel, ends)
        if len(panels) > 1 or (sizes.titled and drawing.title != panel.title):
            name = textwrap.fill(escaped(panel.title), sizes.letters(width / n_columns - 0.5, sizes.text))
            axis.set_title(name, parse_math=False)
        for one, inches in ((axis.xaxis, width / n_columns), (axis.yaxis, height)):
            one.set_label_text(textwrap.fill(one.label.get_text(), sizes.letters(inches - 0.4, sizes.text)))
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    handles: dict[str, Any] = {}
    for axis in axes:
        handles |= dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
    curves = [curve for panel in panels if isinstance(panel, Panel) for curve in panel.curves]
    styles = {escaped(curve.name): curve.style for curve in curves if curve.style is not None}
    handles = dict(sorted(handles.items(), key=lambda item: styles.get(item[0], len(styles))))
    if len(handles) < 2 and not any(isinstance(panel, Panel) and panel.marks for panel in panels):
        handles = {}
    notes = dict.fromkeys([drawing.note, *(panel.note for panel in panels)])
    finish(figure, sizes, drawing.title, " ".join(filter(None, notes)), handles)
    return figure


def grid_of(panels: Sequence[Panel | HeatMap], sizes: Sizes) -> tuple[int, float, float]:
    """The number of panels side by side; the width of the figure and the height of a row of panels, both in inches.

    A heat map with texts in its cells gets the room that the texts need.
    """
    letter, height, needed = 0.6 * sizes.small / 72, sizes.height, 0.0
    for panel in panels:
        if isinstance(panel, HeatMap) and panel.texts:
            texts = [text.split("\n") for row in panel.texts for text in row]
            longest, n_lines = max(len(line) for text in texts for line in text), max(map(len, texts))
            names = max(map(len, panel.y_names), default=0) * letter
            needed = max(needed, 0.5 + names + (longest + 1) * letter * len(panel.texts[0]))
            below = 0.55 * letter * max(map(len, panel.x_names), default=0) if slanted(panel.x_names) else 0.0
            rows = (0.6 + 1.3 * n_lines) * sizes.small / 72 * len(panel.texts)
            height = max(0.6 * sizes.height, 0.9 + below + rows)
    most = 2 if len(panels) == 4 else min(len(panels), 3)
    n_columns = max(n for n in range(1, most + 1) if n == 1 or needed <= sizes.widths[n - 1] / n)
    width = next((w for w in sizes.widths[n_columns - 1 :] if needed <= w), sizes.widths[-1])
    return n_columns, width, height


def draw_panel(axis: Any, panel: Panel | HeatMap, ends: tuple[float, float] | None = None) -> None:
    """Draw curves or cells. ends: the limits of the vertical axis if several panels share it."""
    if isinstance(panel, HeatMap):
        draw_cells(axis, panel)
    else:
        draw_curves(axis, panel, ends or y_ends([panel]))
    axis.set_xlabel(escaped(panel.x_label), parse_math=False)
    axis.set_ylabel(escaped(panel.y_label), parse_math=False)
    axis.spines[["top", "right"]].set_visible(False)


def look_of(curve: Curve, place: int) -> dict[str, Any]:
    """Colour, dashes and marker of the `place`-th curve of a panel; curves also differ if printed without colour."""
    whole, number = divmod(place if curve.style is None else curve.style, len(PALETTE))
    marker = MARKERS[(number + whole) % len(MARKERS)]  # from the ninth curve on, the same dashes get another marker
    if curve.reference:
        return {"color": GREY, "zorder": 1}
    if curve.points and np.asarray(curve.x).size > MANY:
        return {"color": GREY, "linestyle": "none", "marker": ".", "markersize": 2, "alpha": 0.35, "rasterized": True}
    if curve.points:
        return {"color": INK, "linestyle": "none", "marker": marker, "fillstyle": "none"}
    # DASHES are for lines that are two points wide; matplotlib multiplies dashes by the line width
    dashes = {"linestyle": (0, tuple(part / 2 for part in DASHES[number]))} if DASHES[number] else {}
    return {"color": PALETTE[number], "marker": marker, **dashes}


def draw_curves(axis: Any, panel: Panel, ends: tuple[float, float]) -> None:
    """Draw the bands and lines of the curves, and the panel's marks behind them.

    The SVG id of a band or line contains the number of its curve.
    """
    seen = [(place, curve, panel.visible(curve)) for place, curve in enumerate(panel.curves)]
    seen = [(place, curve, visible) for place, curve, visible in seen if np.isfinite(visible[1]).any()]
    at = [*panel.x_ticks, *(mark.low for mark in panel.marks if mark.axis == "x" and mark.low == mark.high)]
    x_ends = ends_of(
        np.concatenate([x[np.isfinite(y)] for _, _, (x, y, _, _) in seen] + [np.array(at)]), "x" in panel.log
    )
    for place, curve, (x, y, low, high) in seen:
        look = look_of(curve, place)
        if np.isfinite(low).any() and "color" in look:
            there = np.isfinite(low) & np.isfinite(high)
            low, high = np.fmax(low[there], ends[0]), np.fmin(high[there], ends[1])
            outline = np.concatenate([x[there], x[there][::-1]]), np.concatenate([low, high[::-1]])
            edge = {"edgecolor": (look["color"], 0.5), "linestyle": look.get("linestyle", "-"), "linewidth": 0.6}
            axis.fill(*outline, facecolor=(look["color"], 0.16), **edge, gid=f"band-{place}")
        if "marker" in look and len(x) > MOST_MARKERS and not curve.points:
            every = len(x) // 8
            look["markevery"] = (place % every, every)
        axis.plot(x, y, **look, label=escaped(curve.name), gid=f"line-{place}")
    for mark in panel.marks:
        line, span = (axis.axvline, axis.axvspan) if mark.axis == "x" else (axis.axhline, axis.axhspan)
        room = x_ends if mark.axis == "x" else ends
        edges = max(mark.low, room[0]), min(mark.high, room[1])
        if mark.low == mark.high:
            line(mark.low, color=GREY, linestyle=":", zorder=0, label=escaped(mark.name))
        elif edges[0] < edges[1]:
            span(*edges, color=SHADE, linewidth=0, zorder=0, label=escaped(mark.name))
    scale(axis.xaxis, x_ends, "x" in panel.log, panel.x_ticks)
    scale(axis.yaxis, ends, "y" in panel.log)
    if panel.reversed_x:
        axis.invert_xaxis()
    axis.grid(axis="y", color=LINE)
    axis.set_axisbelow(True)


def y_ends(panels: Sequence[Panel]) -> tuple[float, float]:
    """The limits of a vertical axis that shows everything drawn in these panels, with a margin."""
    panel = panels[0]
    parts = [np.concatenate(one.visible(curve)[1:]) for one in panels for curve in one.curves]
    at = [mark.low for one in panels for mark in one.marks if mark.axis == "y" and mark.low == mark.high]
    low, high = ends_of(np.concatenate([*parts, at]), "y" in panel.log)
    if panel.whole:
        least, most = panel.possible
        room = 0.0 if least is None or most is None else 0.04 * (most - least)
        low, high = low if least is None else least - room, high if most is None else most + room
        high += 0.05 * (high - low) if most is None else 0.0
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
    """Set the limits of an axis, and a few ticks on it: some of `wanted`, or round numbers if `wanted` is empty."""
    from matplotlib.ticker import FixedLocator, LogLocator, MaxNLocator, NullLocator

    name = axis.axis_name
    axis.axes.set(**{f"{name}scale": "log" if log else "linear", f"{name}lim": ends})
    if wanted:
        ticks: Sequence[float] = apart(sorted(wanted)[:: -1 * -(-len(wanted) // MOST_TICKS)], ends, log)
    elif log and ends[1] > 5 * ends[0]:
        digits = (1, 2, 5) if ends[1] < NARROW * ends[0] else (1,)
        ticks = LogLocator(subs=digits, numticks=MOST_TICKS).tick_values(*ends)
    else:
        ticks = MaxNLocator(MOST_TICKS - 1, steps=[1, 2, 5, 10]).tick_values(*ends)
    axis.set_major_locator(FixedLocator([tick for tick in ticks if ends[0] <= tick <= ends[1]]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(tick_words)


def apart(ticks: Sequence[float], ends: tuple[float, float], log: bool) -> list[float]:
    """Thin out ticks (given in descending order) so that their labels do not overlap on the narrowest panel."""
    places = np.log([*ends, *ticks]) if log else np.array([*ends, *ticks])
    low, high, *along = places.tolist()
    kept: list[int] = []
    for number, place in enumerate(along):
        room = 0.0 if not kept else (along[kept[-1]] - place) / (high - low)
        if not kept or room > TICK_LETTER * (len(tick_label(ticks[kept[-1]])) + len(tick_label(ticks[number])) + 1) / 2:
            kept.append(number)
    return sorted(ticks[number] for number in kept)


def tick_words(value: float, _: object = None) -> str:
    """The label of a tick, with the Unicode minus sign."""
    return tick_label(value).replace("-", "\N{MINUS SIGN}")


def tick_label(value: float) -> str:
    if value == 0:
        return "0"
    for size, unit in ((1e9, "G"), (1e6, "M")):
        if abs(value) >= size:
            return f"{value / size:.4g}{unit}" if abs(value) < 1e15 else f"{value:.0e}".replace("e+", "e")
    if abs(value) < 1e-4:
        return f"{value:.0e}".replace("e-0", "e-")
    return f"{value:,.6g}" if abs(value) >= 1 else f"{value:.4g}"


def slanted(names: Sequence[str]) -> bool:
    """Whether the names below a panel would overlap."""
    return sum(map(len, names)) > MANY_LETTERS


def draw_cells(axis: Any, panel: HeatMap) -> None:
    """Draw cells from light to dark. Cells with texts are in the page's blue; cells without texts have a colour bar."""
    from matplotlib import rcParams
    from matplotlib.patches import Rectangle

    values = np.asarray(panel.values, dtype=float)
    if panel.texts:
        for (row, column), value in np.ndenumerate(values):
            alpha = 0.0 if np.isnan(value) else 0.08 + 0.5 * value
            axis.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor=BLUE, alpha=alpha, linewidth=0))
            look = {"ha": "center", "va": "center", "fontsize": rcParams["xtick.labelsize"], "color": INK}
            axis.text(column, row, panel.texts[row][column], **look, parse_math=False).set_in_layout(False)
        axis.set(xlim=(-0.5, values.shape[1] - 0.5), ylim=(values.shape[0] - 0.5, -0.5))
    else:
        add_heat(axis, values, panel.label, vmin=min(0.0, np.nanmin(values)), vmax=panel.most)
        axis.locator_params(integer=True)
    slant = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"}
    for names, set_ticks, options in (
        (panel.y_names, axis.set_yticks, {}),
        (panel.x_names, axis.set_xticks, slant if slanted(panel.x_names) else {}),
    ):
        if names:
            words = [escaped(name) for name in names]
            set_ticks(range(len(words)), words, parse_math=False, **options)


def add_heat(axis: Any, values: Array, label: str, *, colours: Sequence[str] = HEAT, **options: Any) -> None:
    """Draw coloured cells, rows downwards, and a colour bar, which ends in a point if values exceed its maximum."""
    image = axis.imshow(values, aspect="auto", interpolation="nearest", cmap=colour_map(colours), **options)
    most = options.get("vmax")
    beyond = "neither" if most is None or not (values > most).any() else "max"
    bar = axis.figure.colorbar(image, ax=axis, label=label, fraction=0.06, pad=0.02, extend=beyond, format=tick_words)
    bar.outline.set_linewidth(0)


# -- files


def write(figure: Any, path: Path) -> None:
    """Write one file, in the format of its suffix; the same figure gives the same bytes.

    The file is drawn in memory first, because matplotlib's PDF writer hides the system's error if the disk is full. The
    layout is computed once for all formats, because matplotlib would otherwise draw every file twice.
    """
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    drawn = io.BytesIO()
    title, _, note = figure.get_label().partition("\n")
    about = {
        ".svg": {"Date": None, "Title": title, "Description": note},
        ".pdf": {"CreationDate": None, "Title": title, "Subject": note},
        ".png": {"Title": title, "Description": note},
    }
    logging.getLogger("fontTools").setLevel(logging.ERROR)  # it warns of the dates of matplotlib's own fonts
    with signals_held(), matplotlib.rc_context({"svg.hashsalt": path.stem}):  # otherwise its identifiers are random
        if (layout := figure.get_layout_engine()) is not None:
            FigureCanvasSVG(figure)  # letters are as wide as in this format
            layout.execute(figure)
            figure.set_layout_engine(None)
        figure.savefig(drawn, format=path.suffix[1:], metadata=about.get(path.suffix))
        write_atomically(path, drawn.getvalue())


def save(figure: Any, folder: Path, name: str, kinds: Sequence[str] = KINDS) -> list[Path]:
    """Write `folder/name.<kind>` for each kind."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.{kind}" for kind in kinds]
    for path in paths:
        write(figure, path)
    return paths
