"""Numbers as tables print them, with as many digits as the interval justifies."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from roundround.analysis.past_run import is_number

MOST_DECIMALS = 8
LARGE = 1e15
UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
DIGITS = 4  # significant ones that a table shows


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
    halves = [half for half in half_widths if 0 < half < math.inf]
    if halves:
        return bounded(1 - math.floor(math.log10(min(halves))))
    sizes = [abs(value) for value in values if value]
    whole = all(float(value).is_integer() for value in values)
    return bounded(3 - math.floor(math.log10(min(sizes)))) if sizes and not whole else 0


def fixed(value: float, decimals: int, sign: str = "") -> str:
    """A number with so many decimals; a huge one, of a diverged run, with its power of ten."""
    return f"{value:{sign}.{decimals}f}" if abs(value) < LARGE else f"{value:{sign}.3e}"


def bounded(decimals: int) -> int:
    return max(0, min(MOST_DECIMALS, decimals))


def shown_bytes(n: float) -> str:
    """1536 is 1.5 KiB."""
    power = min(len(UNITS) - 1, int(math.log(max(n, 1), 1024)))
    return f"{n / 1024**power:.{0 if power == 0 else 1}f} {UNITS[power]}"


def number(value: Any) -> float | None:
    """A finite number; None for anything else, such as the names "nan" and "inf"."""
    return float(value) if is_number(value) else None


def shown(value: Any, digits: int = DIGITS) -> str:
    """A value as a table shows it: numbers with a few significant digits, whole ones with all of theirs."""
    if value is None:
        return ""
    if isinstance(value, bool) or number(value) is None:
        return text_of(value)
    if isinstance(value, int) or value == 0:
        return f"{int(value):,}"
    if 1e-3 <= abs(value) < 1e6:
        decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
        return f"{value:,.{decimals}f}"
    return f"{value:.{digits - 1}e}"


def text_of(value: Any) -> str:
    """A value of a config or a record in words."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(text_of, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {text_of(item)}" for key, item in value.items()) + "}"
    return str(value)
