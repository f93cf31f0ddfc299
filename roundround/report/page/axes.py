"""Scales of a chart: from values to places on the page, and the ticks between."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

MOST_TICKS = 7


@dataclass(frozen=True)
class Scale:
    """Values from `low` to `high` on a line from `start` to `end` (pixels), evenly or by their logarithm."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, value = (math.log(v) if self.log else v for v in (self.low, self.high, value))
        return self.start + (value - low) / (high - low) * (self.end - self.start)

    def ticks(self, wanted: Sequence[float] = ()) -> list[float]:
        """At most MOST_TICKS values: those that are wanted, thinned out, or round ones."""
        if wanted:
            step = -(-len(wanted) // MOST_TICKS)
            return [value for value in sorted(wanted)[::-1][::step][::-1] if self.low <= value <= self.high]
        return log_ticks(self.low, self.high) if self.log else even_ticks(self.low, self.high)


def scale_of(
    values: Sequence[float],
    start: float,
    end: float,
    *,
    log: bool,
    limits: tuple[float | None, float | None] = (None, None),
) -> Scale:
    """The scale that takes all values in, with a margin.

    limits: where it begins, and what it never goes beyond, unless all values lie there.
    """
    least, most = min(values), max(values)
    if log:
        margin = (most / least) ** 0.04 if most > least else 1.5
        return Scale(least / margin, most * margin, start, end, log=True)
    margin = 0.05 * (most - least) or 0.1 * abs(most) or 1.0
    low = least - margin if limits[0] is None else limits[0]
    high = most + margin if limits[1] is None else min(most + margin, limits[1])
    return Scale(low, high, start, end) if low < high else Scale(least - margin, most + margin, start, end)


def even_ticks(low: float, high: float) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / (MOST_TICKS - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * k for k in (1, 2, 5, 10) if power * k >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(n * step, 12) for n in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten, and twice and five times those where they are few; even ticks within a narrow range."""
    for digits in ((1, 2, 5), (1, 3), (1,)):
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        found = [k * 10.0**n for n in powers for k in digits if low <= k * 10.0**n <= high]
        if len(found) <= MOST_TICKS:
            break
    if len(found) > MOST_TICKS:
        found = found[:: -(-len(found) // MOST_TICKS)]
    return found if len(found) >= 3 else even_ticks(low, high)


def tick_label(value: float) -> str:
    if value == 0:
        return "0"
    for size, unit in ((1e9, "G"), (1e6, "M")):
        if abs(value) >= size:
            return f"{value / size:.4g}{unit}"
    if abs(value) < 1e-3:
        return f"{value:.0e}".replace("e-0", "e-")
    return f"{value:,.6g}" if abs(value) >= 1 else f"{value:.4g}"
