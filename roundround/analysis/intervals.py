"""How sure a mean over seeds is, and a difference that is paired by seed.

Student's t is `scipy.special`'s, which `scipy.stats` calls too: the latter takes a second to import.

Tested by tests/analysis/test_statistics.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

ROUNDING = 8  # units in the last place: two ways to compute a number differ by no more


def scipy_special() -> Any:
    """`scipy.special`, imported with the first interval: it takes a fifth of a second, and one seed has none."""
    from scipy import special

    return special


def half_width(values: Array, confidence: float = 0.95) -> Array:
    """Half the interval of the mean over the first axis by Student's t, [S, ...] -> [...].

    NaN for one seed and for numbers that are not finite, inf where it is larger than every float.
    """
    n_seeds = len(values)
    if n_seeds < 2:
        return np.full(values.shape[1:], np.nan)
    scaled, exponent = within_one(values)
    with np.errstate(over="ignore", invalid="ignore"):
        error = scaled.std(0, ddof=1) / np.sqrt(n_seeds)
        return np.asarray(np.ldexp(error_widths(n_seeds, confidence) * error, exponent), dtype=np.float64)


def mean_of(values: Array) -> Array:
    """The mean over the first axis; a sum that would be no float does not stop it."""
    scaled, exponent = within_one(values)
    return np.asarray(np.ldexp(scaled.mean(0), exponent), dtype=np.float64)


def within_one(values: Array) -> tuple[Array, NDArray[np.int_]]:
    """The values divided by the power of two above their largest over the first axis, and its exponent.

    Squares of 1e200 are no floats, nor are those of 1e-200. A power of two rounds nothing.
    """
    exponent = np.frexp(np.abs(values).max(0))[1]
    return np.ldexp(values, -exponent), exponent


def error_widths(n_seeds: int, confidence: float = 0.95) -> float:
    """Half the interval of a mean of two seeds or more, in standard errors: 12.7 for two, 4.3 for three."""
    return float(scipy_special().stdtrit(n_seeds - 1, (1 + confidence) / 2))


def error_from_p(mean: float, p: float, n_seeds: int) -> float:
    """Standard error of a mean difference whose two-sided p by the paired t-test is printed in its place."""
    return abs(mean) / float(scipy_special().stdtrit(n_seeds - 1, 1 - p / 2))


def p_of_mean(mean: float, error: float, n_seeds: int) -> float:
    """Two-sided p by Student's t of a mean with this standard error; NaN where there is no error to measure it by."""
    return 2 * float(scipy_special().stdtr(n_seeds - 1, -abs(mean) / error)) if error > 0 and n_seeds > 1 else math.nan


def welch_width(error: float, n_seeds: int, other: float, n_other: int) -> float:
    """Half the 95 % interval of the difference of two means with these errors. Welch 1947, Biometrika 34:28."""
    if other == 0:
        return error * error_widths(n_seeds)
    variance, degrees = error**2 + other**2, error**4 / (n_seeds - 1) + other**4 / (n_other - 1)
    return math.sqrt(variance) * float(scipy_special().stdtrit(variance**2 / degrees, 0.975))


def paired_p(values: Array, baseline: Array) -> tuple[Array, NDArray[np.bool_]]:
    """p of the paired t-test over the first axis, [S, N] and [S, N] -> [N], as of `scipy.stats.ttest_rel`.

    A t-test has nothing to measure by where the difference is the same in every seed, but for rounding. Where it is 0
    then p is 1; else 2^(1 - S), of the test by signs: of the 2^S ways to give S differences their signs, two have all
    alike. That knows nothing of their size and is an upper bound; the second array says where. NaN for one seed.
    """
    n_seeds = len(values)
    if n_seeds < 2:
        return np.full(values.shape[1], np.nan), np.zeros(values.shape[1], dtype=bool)
    values, baseline = np.split(within_one(np.concatenate([values, baseline]))[0], 2)
    difference = values - baseline
    rounding = ROUNDING * np.spacing(np.maximum(np.abs(values), np.abs(baseline)))
    low, high = (difference - rounding).max(0), (difference + rounding).min(0)  # of one number that all could be
    same = low <= high
    is_bound = same & ((low > 0) | (high < 0))
    p = np.where(is_bound, 2.0 ** (1 - n_seeds), 1.0)
    some = difference[:, ~same]
    t = some.mean(0) / (some.std(0, ddof=1) / np.sqrt(n_seeds))
    p[~same] = 2 * scipy_special().stdtr(n_seeds - 1, -np.abs(t))
    return p, is_bound


def holm(p: Sequence[float]) -> list[float]:
    """p-values corrected for being a family, in the order given; NaN, a test that could not be made, stays NaN.

    The k-th smallest of m is multiplied by m - k + 1; none is smaller than the one before it, nor larger than 1. All
    are members, those with NaN too: m is how many comparisons were asked for, whatever the data were. Holm 1979,
    Scandinavian Journal of Statistics 6:65.
    """
    corrected = list(p)
    order = sorted((value, place) for place, value in enumerate(p) if not math.isnan(value))
    so_far = 0.0
    for rank, (value, place) in enumerate(order):
        so_far = max(so_far, min(1.0, (len(p) - rank) * value))
        corrected[place] = so_far
    return corrected


def wilson(n_hits: float, n: float) -> tuple[float, float]:
    """The 95 % interval of a share of which `n_hits` of `n` were seen, as of `scipy.stats.binomtest`.

    Wilson 1927, Journal of the American Statistical Association 22:209.
    """
    z = float(scipy_special().ndtri(0.975))
    centre, spread = n_hits + z**2 / 2, z * math.sqrt(n_hits * (n - n_hits) / n + z**2 / 4)
    return (max(0.0, (centre - spread) / (n + z**2)), min(1.0, (centre + spread) / (n + z**2)))


class Moderated(NamedTuple):
    """The mean of few differences, its 95 % interval and the p-value of 0. NaN where nothing is known."""

    mean: float
    low: float
    high: float
    p: float


def moderated(differences: Sequence[float], prior: tuple[float, float]) -> Moderated:
    """A t-test of the mean of a few differences whose variance is moderated by those of other such groups.

    All variances are taken as draws from a scaled inverse chi-square, whose s0^2 and d0 `fitted_prior` finds. A group's
    own variance s^2 with d degrees of freedom becomes (d0 s0^2 + d s^2) / (d0 + d), with d0 + d degrees of freedom.
    Smyth 2004, Statistical Applications in Genetics and Molecular Biology 3:3. With the prior (0, 0), of which nothing
    is known, this is Student's test; of one difference there is none then.
    """
    own, (prior_variance, degrees) = np.asarray(differences, dtype=np.float64), prior
    n, d = len(own), max(len(own) - 1, 0)
    if n == 0 or d + degrees == 0:
        return Moderated(float(own.mean()) if n else math.nan, math.nan, math.nan, math.nan)
    mean, variance, df = float(own.mean()), float(own.var(ddof=1)) if d else 0.0, degrees + d
    error = math.sqrt((degrees * prior_variance + d * variance) / df / n)
    if error == 0:  # the same in every seed: as in `paired_p`
        return Moderated(mean, mean, mean, 1.0 if mean == 0 else 2.0 ** (1 - n))
    half = error * float(scipy_special().stdtrit(df, 0.975))
    return Moderated(mean, mean - half, mean + half, float(2 * scipy_special().stdtr(df, -abs(mean) / error)))


def fitted_prior(groups: Sequence[Sequence[float]]) -> tuple[float, float]:
    """(s0^2, d0) of `moderated`, by the mean and the variance of the logarithms of the groups' variances.

    d0 is at most what the groups have together, which it is where their variances differ by chance alone; 0 where fewer
    than three groups vary: nothing is known then. Groups of one difference say nothing, nor do those without variance.
    """
    sized = [(float(np.var(group, ddof=1)), len(group) - 1) for group in groups if len(group) > 1]
    known = [(variance, float(d)) for variance, d in sized if variance > 0]
    if len(known) < 3:
        return 0.0, 0.0
    special = scipy_special()
    variances, d = np.array(known).T
    e = np.log(variances) - special.digamma(d / 2) + np.log(d / 2)
    excess = float(((e - e.mean()) ** 2).sum() / (len(e) - 1) - special.polygamma(1, d / 2).mean())
    most = float(d.sum())
    if excess <= float(special.polygamma(1, most / 2)):
        return math.exp(float(e.mean())), most
    # the trigamma function inverted by Newton's steps on its reciprocal, as in Smyth's appendix; `brentq` finds the
    # same, and its import takes a third of a second
    excess = min(excess, 9e5)  # of d0 = 0.002: as good as nothing
    half = 0.5 + 1 / excess
    for _ in range(50):
        step = special.polygamma(1, half) * (1 - special.polygamma(1, half) / excess) / special.polygamma(2, half)
        half += float(step)
        if abs(step) < 1e-12 * half:
            break
    return math.exp(float(e.mean()) + float(special.digamma(half)) - math.log(half)), 2 * half
