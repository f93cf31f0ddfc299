"""The values of each seed that are stored beside a page, and numbers as the pages print them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from roundround.analysis.intervals import half_width, holm, paired_p
from roundround.analysis.load import rows_of

DOCS = Path(__file__).resolve().parents[2] / "docs" / "results"
Array = NDArray[np.float64]
Cell = TypeVar("Cell", bound=Hashable)
Values = dict[tuple[str | int, ...], Array]  # by the settings, the metric (and the task) and the length: [S]


def stored(name: str, *settings: str) -> Values:
    """A csv of settings, seed, metric, length, value as arrays over the seeds in order."""
    found: dict[tuple[str | int, ...], dict[int, float]] = defaultdict(dict)
    for _, row in rows_of(DOCS / f"{name}.csv"):
        found[*(str(row[key]) for key in settings), row["metric"], row["length"]][row["seed"]] = row["value"]
    return {place: np.array([by_seed[seed] for seed in sorted(by_seed)]) for place, by_seed in found.items()}


def seeds(values: Array) -> str:
    return " ".join(f"{value:.2f}" for value in values)


def share(values: Array) -> str:
    """A mean of shares and half of its interval; the seeds where that would reach beyond 0 or 1."""
    mean, half = values.mean(), float(half_width(values))
    if half < 0.005:
        return f"{mean:.2f}"
    return f"{mean:.2f} ±{half:.2f}" if mean - half >= 0 and mean + half <= 1 else seeds(values)


def difference(values: Array, baseline: Array, digits: int = 2, most: float = 1.0) -> str:
    """The mean difference and its interval, cut at what is possible: a difference of shares is at most 1."""
    mean, half = (values - baseline).mean(), float(half_width(values - baseline))
    low, high = max(mean - half, -most), min(mean + half, most)
    return f"{mean:+.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def family(pairs: Mapping[Cell, tuple[Array, Array]]) -> dict[Cell, float]:
    """p of each paired difference after Holm's correction over all cells (docs/results/method.md).

    A cell at a floor or a ceiling, where no value of either arm differs from the others, is no member.
    """
    members = {cell: pair for cell, pair in pairs.items() if any(np.ptp(arm) > 0 for arm in pair)}
    p = [float(paired_p(mine[:, None], theirs[:, None])[0][0]) for mine, theirs in members.values()]
    return dict(zip(members, holm(p), strict=True))


def printed(p: float) -> str:
    return f"{p:.3f}" if p >= 0.0005 else "below 0.001"
