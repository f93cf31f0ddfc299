"""Line charts as inline SVG: colours are the page's, which has two sets; no script is needed to read one.

Every series has a colour, a dash and a marker of its own, so that lines can be told apart in grey.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from roundround.report.numbers import shown
from roundround.report.page.axes import Scale, scale_of, tick_label

WIDTH, HEIGHT = 440, 290
LEFT, RIGHT, TOP, BOTTOM = 76, 12, 10, 44
N_STYLES = 8  # of series; later ones repeat them
MOST = 1e100  # of a value that is drawn; a diverged run has larger ones, which the tables show
MOST_MARKERS = 40  # points of a line that carry a marker and a text of their own


def within(value: float, *, log: bool) -> bool:
    """Whether a scale can have a value: its square, and its ratio to every other, are numbers too."""
    return abs(value) <= MOST and (not log or value >= 1 / MOST)


@dataclass(frozen=True)
class Series:
    """A line: points (x, y) with y None for no number; `band` has (low, high) at each point. style: its number."""

    name: str
    points: Sequence[tuple[float, float | None]]
    band: Sequence[tuple[float, float] | None] = ()
    style: int = 0
    reference: bool = False  # a line to compare with: thin and grey


@dataclass(frozen=True)
class Chart:
    """What a template draws: the title above, the picture, the legend and the note below.

    limits: where the vertical axis begins, and what it never goes beyond; None for what the values say.
    """

    title: str
    series: Sequence[Series]
    x_label: str
    y_label: str
    log_x: bool = False
    log_y: bool = False
    limits: tuple[float | None, float | None] = (None, None)
    x_ticks: Sequence[float] = ()
    note: str = ""
    reverse_x: bool = False
    scales: tuple[Scale, Scale] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        object.__setattr__(self, "scales", self.fitted_scales())

    def drawn(self) -> list[Series]:
        """The series that have a point on the scales."""
        return [series for series in self.series if any(self.visible(x, y) for x, y in series.points)]

    def legend(self) -> list[Series]:
        """One of the drawn series of each name, where there are several."""
        by_name = {series.name: series for series in self.drawn()}
        return list(by_name.values()) if len(by_name) > 1 else []

    def visible(self, x: float, y: float | None) -> bool:
        return y is not None and within(x, log=self.log_x) and within(y, log=self.log_y)

    def fitted_scales(self) -> tuple[Scale, Scale] | None:
        """None where there is nothing to draw."""
        points = [(x, y) for series in self.series for x, y in series.points if y is not None and self.visible(x, y)]
        bands = [edge for series in self.series for band in series.band if band is not None for edge in band]
        if not points:
            return None
        heights = [y for _, y in points] + [edge for edge in bands if within(edge, log=self.log_y)]
        ends = (WIDTH - RIGHT, LEFT) if self.reverse_x else (LEFT, WIDTH - RIGHT)
        x_scale = scale_of([x for x, _ in points], *ends, log=self.log_x)
        return x_scale, scale_of(heights, HEIGHT - BOTTOM, TOP, log=self.log_y, limits=self.limits)

    @property
    def alt(self) -> str:
        """The picture in words: what is drawn against what, and where each line begins, ends and is least."""
        parts = [f"{self.y_label} against {self.x_label}."]
        for series in self.drawn()[:N_STYLES]:
            points = [(x, y) for x, y in series.points if y is not None and self.visible(x, y)]
            (x0, y0), (x1, y1) = points[0], points[-1]
            least = min(points, key=lambda point: point[1])
            words = f"{series.name}: {shown(y0)} at {shown(x0)}"
            if len(points) > 1:
                words += f", {shown(y1)} at {shown(x1)}, least {shown(least[1])} at {shown(least[0])}"
            parts.append(words + ".")
        hidden = len(self.drawn()) - N_STYLES
        return " ".join([*parts, f"{hidden} more lines."] if hidden > 0 else parts)

    def ticks(self) -> tuple[list[tuple[float, str]], list[tuple[float, str]]]:
        """Places and labels of the ticks of both axes."""
        assert self.scales is not None
        x_scale, y_scale = self.scales
        across = [(x_scale(value), tick_label(value)) for value in x_scale.ticks(self.x_ticks)]
        return across, [(y_scale(value), tick_label(value)) for value in y_scale.ticks()]

    def paths(self, series: Series) -> list[str]:
        """The line as SVG paths, interrupted where there is no number."""
        assert self.scales is not None
        x_scale, y_scale = self.scales
        found: list[list[str]] = [[]]
        for x, y in series.points:
            if y is not None and self.visible(x, y):
                found[-1].append(f"{x_scale(x):.1f} {y_scale(y):.1f}")
            elif found[-1]:
                found.append([])
        return ["M" + "L".join(part) for part in found if len(part) > 1]

    def band_path(self, series: Series) -> str:
        """The area between the ends of the intervals; nothing where a series has none."""
        assert self.scales is not None
        x_scale, y_scale = self.scales
        ends = [
            (x_scale(x), *(y_scale(min(max(edge, y_scale.low), y_scale.high)) for edge in band))
            for (x, y), band in zip(series.points, series.band, strict=False)
            if band is not None and self.visible(x, y) and all(map(math.isfinite, band))
        ]
        outline = [(x, low) for x, low, _ in ends] + [(x, high) for x, _, high in reversed(ends)]
        return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in outline) + "Z" if len(ends) > 1 else ""

    def markers(self, series: Series) -> list[tuple[float, float, str]]:
        """Places of the points with their values in words; none for a line of many points."""
        assert self.scales is not None
        x_scale, y_scale = self.scales
        points = [(x, y) for x, y in series.points if y is not None and self.visible(x, y)]
        if series.reference or len(points) > MOST_MARKERS:
            return []
        return [(x_scale(x), y_scale(y), f"{series.name}: {shown(y)} at {shown(x)}") for x, y in points]
