"""The content of a figure as numbers and words: panels of curves or of coloured cells. This module draws nothing.

`report/drawing/figures.py` draws panels into the files of a run and into its page.

Tested by tests/report/test_pictures.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

MOST = 1e100  # larger values, such as those of a run that diverged, are not drawn; tables show them
Ends = tuple[float | None, float | None]


def numbers(values: Iterable[float | None]) -> NDArray[np.float64]:
    """The values with NaN in place of None."""
    return np.array([math.nan if value is None else value for value in values], dtype=np.float64)


@dataclass(frozen=True, eq=False)
class Curve:
    """A line through points; an unknown number is NaN. points: whether only the points are drawn, without the line.

    low, high: the ends of an interval at each x, drawn as a band; empty for no band. style: the number that selects
    colour, dashes and marker; None to number the curves automatically. reference: whether the curve is a thin grey line
    for comparison.
    """

    name: str
    x: ArrayLike
    y: ArrayLike
    points: bool = False
    low: ArrayLike = ()
    high: ArrayLike = ()
    style: int | None = None
    reference: bool = False


@dataclass(frozen=True)
class Mark:
    """A marked value (`low` equals `high`) or range of an axis, such as the lengths of training."""

    name: str
    low: float
    high: float
    axis: str = "x"


@dataclass(frozen=True, eq=False)
class Panel:
    """Curves in one pair of axes. An axis is logarithmic if its name is in `log`, such as "xy".

    possible: the least and the largest value that y can have; the bands of the curves are clipped to this range. whole:
    whether the y axis shows the whole range `possible`. widened: whether the y axis spans at least a tenth of its
    middle value, so that noise does not fill the panel. x_ticks: the x values to label, if they are few. note: a text
    about the curves and the bands.
    """

    x_label: str
    y_label: str
    curves: Sequence[Curve]
    log: str = ""
    title: str = ""
    note: str = ""
    marks: Sequence[Mark] = ()
    possible: Ends = (None, None)
    whole: bool = False
    widened: bool = False
    x_ticks: Sequence[float] = ()
    reversed_x: bool = False

    def visible(self, curve: Curve) -> tuple[NDArray[np.float64], ...]:
        """x, y, low and high of a curve of P points, [P] each.

        The band from low to high is clipped to the range `possible`. A value that cannot be drawn is NaN.
        """
        x, y = (np.asarray(values, dtype=np.float64).ravel() for values in (curve.x, curve.y))
        low, high = (np.asarray(values, dtype=np.float64).ravel() for values in (curve.low, curve.high))
        low, high = (band if len(band) == len(x) else np.full(len(x), math.nan) for band in (low, high))
        with np.errstate(invalid="ignore"):
            there = drawable(x, "x" in self.log) & drawable(y, "y" in self.log)
            lowest, highest = self.possible
            low = low if lowest is None else np.maximum(low, lowest)
            high = high if highest is None else np.minimum(high, highest)
            within = there & drawable(low, "y" in self.log) & drawable(high, "y" in self.log)
        y, low, high = (
            np.where(mask, values, math.nan) for mask, values in ((there, y), (within, low), (within, high))
        )
        return x, y, low, high

    @property
    def drawn(self) -> list[Curve]:
        """The curves with at least one point that can be drawn."""
        return [curve for curve in self.curves if np.isfinite(self.visible(curve)[1]).any()]


def drawable(values: NDArray[np.float64], log: bool) -> NDArray[np.bool_]:
    """True at the values that an axis can show: their squares and ratios are finite, and if `log` they are positive."""
    return (np.abs(values) <= MOST) & ((values >= 1 / MOST) if log else True)


@dataclass(frozen=True, eq=False)
class HeatMap:
    """A panel of coloured cells, with the first row at the top.

    most: the value of the darkest colour; None for the largest value. label: the meaning of the colours, with the unit.
    x_names, y_names: the names of columns and rows. texts: the texts of the cells; if there are texts, all `values` lie
    between 0 and 1.
    """

    values: ArrayLike
    x_label: str
    y_label: str
    most: float | None = None
    label: str = ""
    title: str = ""
    note: str = ""
    x_names: Sequence[str] = ()
    y_names: Sequence[str] = ()
    texts: Sequence[Sequence[str]] = ()


@dataclass(frozen=True, eq=False)
class Drawing:
    """A figure: panels under one name, with one title above them.

    section: the section of a page that shows the drawing. note: a text about the data that is drawn. In all panels,
    curves without a style get the same style if they have the same name, and different styles otherwise.
    """

    name: str
    title: str
    panels: Sequence[Panel | HeatMap]
    section: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        curves = [curve for panel in self.panels if isinstance(panel, Panel) for curve in panel.curves]
        first = 1 + max((curve.style for curve in curves if curve.style is not None), default=-1)
        unstyled = dict.fromkeys(curve.name for curve in curves if curve.style is None and not curve.reference)
        names = {name: first + number for number, name in enumerate(unstyled)}
        named = [
            replace(panel, curves=[replace(c, style=names.get(c.name, c.style)) for c in panel.curves])
            if isinstance(panel, Panel)
            else panel
            for panel in self.panels
        ]
        object.__setattr__(self, "panels", named)
