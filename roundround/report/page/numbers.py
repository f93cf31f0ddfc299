"""Numbers as a page shows and carries them: few digits, and small integers where a colour is all that is seen."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roundround.report.page.sources import number

DIGITS = 4  # significant ones that a table shows
STEPS = 999  # of an integer that stands for a share of the largest value


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


def rounded(values: NDArray[Any], digits: int = 3) -> Any:
    """Nested lists of numbers with this many significant digits; None for one that is not finite."""
    if values.ndim > 1:
        return [rounded(part, digits) for part in values]
    return [short(float(value), digits) for value in values]


def short(value: float, digits: int = 3) -> float | int | None:
    if not math.isfinite(value):
        return None
    found = float(f"{value:.{digits - 1}e}")
    if math.isinf(found):  # the largest floats, rounded up
        return value
    return int(found) if found == int(found) and abs(found) < 1e15 else found


def scaled(values: NDArray[Any]) -> dict[str, Any]:
    """A flat list of integers from -STEPS to STEPS, which stand for shares of `largest`; None for no number."""
    flat = values.astype(np.float64).ravel()
    finite = np.isfinite(flat)
    largest = float(np.abs(flat[finite]).max()) if finite.any() else 0.0
    steps = np.rint(np.where(finite, flat, 0) / (largest or 1.0) * STEPS).astype(int).tolist()
    return {
        "largest": short(largest, 4),
        "steps": [step if there else None for step, there in zip(steps, finite.tolist(), strict=True)],
    }
