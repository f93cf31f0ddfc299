"""The style of every figure, in files and on pages: one palette, sizes, fonts.

Whatever differs in colour also differs in dashes, markers, hatches, letters or lightness.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from roundround.config.verb import FigureStyle
from roundround.support.files import write_atomically

BLUE, ORANGE, GREY, SHADE = "#1f5fa8", "#d4500c", "#767f89", "#dfe8f3"
INK, SOFT, LINE = "#1b1f24", "#57606a", "#d5d9de"
# of files and of the page; as far apart as contrast on white allows for eyes without red or green cones
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
    """What a style decides, in inches and points.

    widths: of a figure with one, two, three panels side by side. height: of a panel with its axes. text: of titles and
    axes' names; small: of all else. titled: whether a title and a note stand in the figure; a paper has its caption.
    """

    widths: tuple[float, float, float]
    height: float
    text: float
    small: float
    line: float
    marker: float
    titled: bool

    def letters(self, width: float, points: float) -> int:
        """How many letters of this size fit into so many inches."""
        return max(12, int(width / (0.56 * points / 72)))


SIZES = {
    "screen": Sizes(widths=(5.0, 8.8, 11.4), height=3.4, text=10, small=8.5, line=1.6, marker=4.5, titled=True),
    "paper": Sizes(widths=(3.25, 6.75, 6.75), height=2.2, text=8, small=7, line=1.1, marker=3.2, titled=False),
}
COMPUTER_MODERN = "Computer Modern"
TEXS_OWN = '"<>\\^_`{|}~'  # where TeX's encoding has others: `_` would be a dot
FONTS = {  # of matplotlib's own; a letter that one lacks is taken from the next
    "sans": (["DejaVu Sans"], "dejavusans"),
    "times": (["STIXGeneral", "serif"], "stix"),
    "computer_modern": ([COMPUTER_MODERN, "STIXGeneral", "serif"], "cm"),
}


SCREEN = FigureStyle()


def add_computer_modern() -> None:
    """Matplotlib's cmr10 without the letters that it draws as others, which the next font of the list then draws."""
    from fontTools.ttLib import TTFont
    from matplotlib import get_cachedir, get_data_path
    from matplotlib.font_manager import fontManager

    if COMPUTER_MODERN in fontManager.get_font_names():
        return
    font = TTFont(Path(get_data_path(), "fonts", "ttf", "cmr10.ttf"), recalcTimestamp=False)
    for table in font["cmap"].tables:
        table.cmap = {code: glyph for code, glyph in table.cmap.items() if code not in map(ord, TEXS_OWN)}
    for name in font["name"].names:
        if name.nameID == 1:
            name.string = COMPUTER_MODERN
    whole, path = io.BytesIO(), Path(get_cachedir(), "roundround-cmr10.ttf")
    font.save(whole)
    write_atomically(path, whole.getvalue())
    fontManager.addfont(path)


@contextmanager
def styled(style: FigureStyle) -> Iterator[Sizes]:
    """Set matplotlib's defaults and a style while figures are made and saved, whatever a user's own file says.

    Text stays text in svg and pdf (TrueType), so that it can be edited and searched.
    """
    import matplotlib

    if style.font == "computer_modern":
        add_computer_modern()
    sizes = SIZES[style.style]
    family, mathtext = FONTS[style.font]
    own = {
        "font.family": family,
        "font.serif": ["Times New Roman", "Times", "DejaVu Serif"],  # of who reads an svg and has not the first
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
