"""How sure a mean over seeds is, and a difference that is paired by seed."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Array = NDArray[np.float64]

ROUNDING = 1e-11  # of the values: differences that are equal differ by no more


def half_width(values: Array, confidence: float = 0.95) -> Array:
    """Half the interval of the mean over the first axis by Student's t, [S, ...] -> [...]; NaN for one seed."""
    n_seeds = len(values)
    if n_seeds < 2:
        return np.full(values.shape[1:], np.nan)
    error = values.std(0, ddof=1) / np.sqrt(n_seeds)
    return np.asarray(stats.t.ppf((1 + confidence) / 2, n_seeds - 1) * error, dtype=np.float64)


def paired_p(values: Array, baseline: Array) -> Array:
    """p of the paired t-test over the first axis, [S, N] and [S, N] -> [N].

    NaN for one seed, and where all differences are equal: there is nothing to measure them by.
    """
    p = np.full(values.shape[1], np.nan)
    scale = np.maximum(np.abs(values), np.abs(baseline)).max(0)
    varies = np.ptp(values - baseline, 0) > ROUNDING * scale
    if len(values) > 1 and varies.any():
        p[varies] = stats.ttest_rel(values[:, varies], baseline[:, varies]).pvalue
    return p


def holm(p: Sequence[float]) -> list[float]:
    """p-values corrected for being a family, in the order given; NaN stays NaN and is no member.

    The k-th smallest of m is multiplied by m - k + 1; none is smaller than the one before it, nor larger than 1.
    Holm 1979, Scandinavian Journal of Statistics 6:65.
    """
    corrected = list(p)
    order = sorted((value, place) for place, value in enumerate(p) if not math.isnan(value))
    so_far = 0.0
    for rank, (value, place) in enumerate(order):
        so_far = max(so_far, min(1.0, (len(order) - rank) * value))
        corrected[place] = so_far
    return corrected
