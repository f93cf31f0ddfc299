"""How every figure is begun and saved: without pyplot, so that no screen, notebook or MPLBACKEND has a say."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from roundround.support.errors import escaped
from roundround.support.files import write_atomically

KINDS = ("svg", "pdf", "png")  # for a page, for a paper, for everything else
LETTER = 0.095  # inches: the mean width of a letter of a title
BLUE, RED, GREY, SHADE = "#1f5fa8", "#c0392b", "#8a8a8a", "#e8eef6"


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


def widen(axis: Any, least: float = 0.1) -> None:
    """Let the vertical axis show at least this share of its middle value: smaller differences are noise."""
    low, high = axis.get_ylim()
    middle = (low + high) / 2
    if high - low < least * abs(middle):
        axis.set_ylim(middle - least * abs(middle) / 2, middle + least * abs(middle) / 2)


def write(figure: Any, path: Path) -> None:
    """One file, in the format that its name says: the same picture gives the same bytes.

    Drawn in memory first: where a disk is full, matplotlib's PDF fails with another error than the system's.
    """
    import matplotlib

    drawn = io.BytesIO()
    undated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    with matplotlib.rc_context({"svg.hashsalt": path.stem}):  # else its identifiers are random
        figure.savefig(drawn, format=path.suffix[1:], dpi=150, metadata=undated.get(path.suffix))
    write_atomically(path, drawn.getvalue())


def save(figure: Any, folder: Path, name: str, kinds: Sequence[str] = KINDS) -> list[Path]:
    """Write `folder/name.<kind>` for each kind."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.{kind}" for kind in kinds]
    for path in paths:
        write(figure, path)
        figure.set_layout_engine("none")  # laid out once, the same in every format
    return paths
