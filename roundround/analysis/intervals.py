"""Intervals, p-values and e-values of means over seeds, and of differences that are paired by seed.

Student's t distribution is computed with `scipy.special`, because `scipy.stats` takes a second to import.

Tested by tests/analysis/test_statistics.py; e-values by tests/analysis/test_search.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import special

Array = NDArray[np.float64]

ALPHA = 0.05  # of the variants that a search keeps, the expected share that is no better is at most this
ROUNDING = 8  # units in the last place by which two ways to compute a number may differ


def half_width(values: Array, confidence: float = 0.95) -> Array:
    """Half the width of the interval of the mean over the first axis, by Student's t: [S, ...] -> [...].

    It is NaN for one seed, for numbers that are not finite, and for numbers whose squares are too large.
    """
    if len(values) < 2:
        return np.full(values.shape[1:], np.nan)
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(error_widths(len(values), confidence) * standard_error(values))


def standard_error(values: Array) -> Array:
    """The standard error of the mean over the first axis; NaN if its square overflows, as for values of 1e200."""
    error = values.std(0, ddof=1) / np.sqrt(len(values))
    return np.where(np.isfinite(error), error, np.nan)


def error_widths(n_seeds: float, confidence: float = 0.95) -> float:
    """Half the width of the interval of a mean, divided by its standard error; 12.7 for two seeds, 4.3 for three."""
    return float(special.stdtrit(n_seeds - 1, (1 + confidence) / 2))


def error_from_p(mean: float, p: float, n_seeds: int) -> float:
    """The standard error of a mean difference, from the two-sided p of the paired t-test."""
    return abs(mean) / error_widths(n_seeds, 1 - p)


def p_of_mean(mean: float, error: float, n_seeds: float) -> float:
    """The two-sided p, by Student's t, of a mean with this standard error; NaN if the error is unknown or 0."""
    return 2 * float(special.stdtr(n_seeds - 1, -abs(mean) / error)) if error > 0 and n_seeds > 1 else math.nan


def welch_width(error: float, n_seeds: int, other: float, n_other: int) -> float:
    """Half the width of the 95 % interval of the difference of two means with the standard errors `error` and `other`.

    Welch 1947, Biometrika 34:28.
    """
    if other == 0:
        return error * error_widths(n_seeds)
    variance, degrees = error**2 + other**2, error**4 / (n_seeds - 1) + other**4 / (n_other - 1)
    return math.sqrt(variance) * float(special.stdtrit(variance**2 / degrees, 0.975))


def paired_p(values: Array, baseline: Array) -> tuple[Array, NDArray[np.bool_]]:
    """p of the paired t-test over the first axis: [S, N] and [S, N] -> [N]. p is NaN for one seed.

    If all seeds have the same difference (up to rounding), its variance is 0 and the t-test is undefined. Then p is 1
    for a difference of 0. For any other difference, p is 2^(1 - S) by the sign test: in 2 of the 2^S assignments of
    signs to seeds, all signs are equal. This p ignores the size of the difference and is an upper bound. The second
    array [N] is True where the sign test is used.
    """
    n_seeds = len(values)
    if n_seeds < 2:
        return np.full(values.shape[1], np.nan), np.zeros(values.shape[1], dtype=bool)
    difference = values - baseline
    rounding = ROUNDING * np.spacing(np.maximum(np.abs(values), np.abs(baseline)))
    low, high = (difference - rounding).max(0), (difference + rounding).min(0)  # between them: equal in all seeds
    same = low <= high
    is_bound = same & ((low > 0) | (high < 0))
    p = np.where(is_bound, 2.0 ** (1 - n_seeds), 1.0)
    some = difference[:, ~same]
    p[~same] = 2 * special.stdtr(n_seeds - 1, -np.abs(some.mean(0)) / standard_error(some))
    return p, is_bound


def holm(p: Sequence[float], weights: Sequence[float] = ()) -> list[float]:
    """Holm's correction of a family of p-values, in the order given. NaN marks an impossible test and stays NaN.

    weights: positive, one for each test, which gets its share of the level; equal by default. The ratios of p-value to
    weight are taken from the smallest up. Each is multiplied by the sum of the weights from its own on, and limited to
    1; the running maximum is the corrected value. With equal weights this multiplies the k-th smallest of m p-values by
    m - k + 1. NaN counts too: the family is that of the planned comparisons. Holm 1979, Scandinavian Journal of
    Statistics 6:65.
    """
    shares = np.asarray(weights or [1.0] * len(p))
    ratios = np.asarray(p, dtype=np.float64) / shares
    order = np.argsort(ratios, kind="stable")  # NaN is last
    ratios[order] = np.maximum.accumulate(np.minimum(1.0, shares[order][::-1].cumsum()[::-1] * ratios[order]))
    return [float(corrected) for corrected in ratios]


def wilson(n_hits: float, n: float) -> tuple[float, float]:
    """The 95 % interval of a share, from `n_hits` hits in `n` trials. Unlike in scipy, both can be fractional numbers.

    Wilson 1927, Journal of the American Statistical Association 22:209.
    """
    z = float(special.ndtri(0.975))
    centre, spread = n_hits + z**2 / 2, z * math.sqrt(n_hits * (n - n_hits) / n + z**2 / 4)
    return (max(0.0, (centre - spread) / (n + z**2)), min(1.0, (centre + spread) / (n + z**2)))


def e_value(gains: Array, spread: float, effects: Sequence[float]) -> Array:
    """The e-value of gains over seeds, against the hypothesis that their mean is at most 0: [S, ...] -> [...].

    It is the likelihood of the gains under an even mixture of normal distributions (the means `effects`, the standard
    deviations spread / 2 and spread), divided by their largest likelihood under a normal distribution of the
    hypothesis, whose mean is at most 0 and whose standard deviation is at most `spread` (or that of the gains, if it is
    larger). If the hypothesis holds and differences vary by at most `spread`, the expectation of the e-value is at most
    1, also if seeds are added until it is large. Wasserman, Ramdas and Balakrishnan 2020, arXiv:1912.11436.
    """
    from scipy import stats  # the import takes a second, and only a search needs it

    mean = np.minimum(gains.mean(0), 0.0)
    deviation = np.clip(np.sqrt(((gains - mean) ** 2).mean(0)), 1e-9 * spread, np.maximum(gains.std(0), spread))
    mixed = stats.norm.logpdf(gains[..., None, None], np.asarray(effects)[:, None], [spread / 2, spread]).sum(0)
    ratios = mixed - stats.norm.logpdf(gains, mean, deviation).sum(0)[..., None, None]
    return np.asarray(np.exp(np.minimum(ratios, 700)).mean((-2, -1)))  # exp(700) is still a number


def e_needed(number: int, n_kept: int) -> float:
    """The e-value that test `number` of a search needs, after `n_kept` of the tests before it kept a variant: e-LOND.

    Each test gets a share of ALPHA, and the shares of all add up to 1. The tests may depend on each other in any way.
    Xu and Ramdas 2024, arXiv:2311.06412.
    """
    return 1 / (ALPHA * (n_kept + 1) * float(number**-0.25 - (number + 1) ** -0.25))
