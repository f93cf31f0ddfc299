"""Numbers as tables print them: as many digits as the interval can tell apart."""

from __future__ import annotations

import math
from collections.abc import Iterable

MOST_DECIMALS = 8
LARGE = 1e15
UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def shown_p(p: float | None, is_bound: bool = False) -> str:
    """As 0.012, 3e-5, <= 0.25; nothing for None, - for NaN."""
    if p is None:
        return ""
    if math.isnan(p):
        return "-"
    text = f"{p:.0e}".replace("e-0", "e-") if p < 0.001 else f"{p:.3f}".rstrip("0").rstrip(".")
    return f"<= {text}" if is_bound else text


def decimals_of(values: Iterable[float], half_widths: Iterable[float]) -> int:
    """Decimals for a column: two digits of the smallest interval; without one, four digits of the smallest value."""
    halves = [half for half in half_widths if half > 0]
    if halves:
        return bounded(1 - math.floor(math.log10(min(halves))))
    sizes = [abs(value) for value in values if value]
    whole = all(float(value).is_integer() for value in values)
    return bounded(3 - math.floor(math.log10(min(sizes)))) if sizes and not whole else 0


def fixed(value: float, decimals: int, sign: str = "") -> str:
    """A number of a column with so many decimals; of a diverged run, whose digits would fill the table, its power."""
    return f"{value:{sign}.{decimals}f}" if abs(value) < LARGE else f"{value:{sign}.3e}"


def bounded(decimals: int) -> int:
    return max(0, min(MOST_DECIMALS, decimals))


def shown_bytes(n: float) -> str:
    """1536 is 1.5 KiB."""
    power = min(len(UNITS) - 1, int(math.log(max(n, 1), 1024)))
    return f"{n / 1024**power:.{0 if power == 0 else 1}f} {UNITS[power]}"
