"""Comparing a map of chunk norms, pairs downwards, with the one that the paper prints.

Neither the paper's texts nor whether their first tokens count is known, and one of Gemma 7B's 28 layers is not shown:
not the first one, whose heads in Figure 4 average to the first column of Figure 3 (correlation 0.99). So what fits best
is taken, and tolerances are as large as the differences between the paper's own maps of different texts.
Shapes: P pairs, N columns (layers or heads).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from roundround.papers.claim import Comparison, as_printed, near
from roundround.papers.figures.item import HeatMap
from roundround.papers.figures.probed import Array, columns, mean, slowest_share
from roundround.support.errors import UserError

N_BINS = 16  # of the frequencies, from the fastest
# Figure 19 (Italian, Chinese, code, sums) against Figure 3(a) (English) differs by up to 0.31 in these means, by up to
# 0.13 in the share of the slowest quarter, and correlates with it from 0.925 to 0.954; moved by one layer at most 0.59.
NORM_TOLERANCE = 0.35  # of the published mean norm
SHARE_TOLERANCE = 0.14
LEAST_CORRELATION = 0.9
TIED = 0.8  # of the largest norm of a head, from which on a pair is one of its strongest: 1, 126, 113, 128 in one head
ROWS = 1  # pairs by which the reading of a picture may be wrong


def best_fit(candidates: Mapping[str, Array], published: Array) -> tuple[str, Array, str]:
    """Which map correlates best with the published one, each with one of its columns left out where it has one more.

    And of how many it is the best, in the words that stand beside the verdict.
    """
    cut = {}
    for name, ours in candidates.items():
        check_shape(ours, published)
        if ours.shape == published.shape:
            cut[name] = ours
            continue
        for layer in range(ours.shape[1]):
            cut[f"{name}, without layer {layer}"] = np.delete(ours, layer, axis=1)
    best = max(cut, key=lambda name: correlation(cut[name], published))
    return best, cut[best], f"the best of {len(cut)} readings, norms within {NORM_TOLERANCE:.0%}"


def check_shape(ours: Array, published: Array) -> None:
    """UserError where this cannot be the model that the paper shows."""
    n_pairs, n = published.shape
    if len(ours) != n_pairs or ours.shape[1] not in (n, n + 1):
        raise UserError(
            f"this is not the paper's model: it has {ours.shape[1]} layers or heads of {len(ours)} pairs in place of "
            f"{n} of {n_pairs}; give it by its own name in model="
        )


def correlation(ours: Array, published: Array) -> float:
    """Of all cells; NaN where a map has one value alone."""
    with np.errstate(invalid="ignore"):
        return float(np.corrcoef(ours.ravel(), published.ravel())[0, 1])


def bin_means(map_PN: Array, n_bins: int) -> Array:
    """Mean norm in bins of neighbouring pairs, from the fastest, over all columns: [n_bins]."""
    found: Array = mean(np.array([[part.mean() for part in np.array_split(c, n_bins)] for c in columns(map_PN)]), 0)
    return found


def compare_maps(what: str, ours: Array, published: Array) -> list[Comparison]:
    """Means along the frequencies and the share of the slowest quarter, whatever the sizes; cells where they agree."""
    n_bins = min(N_BINS, *(len(column) for column in columns(ours)))
    means = zip(bin_means(ours, n_bins), bin_means(published, n_bins), strict=True)
    share, published_share = (float(slowest_share(x).mean()) for x in (ours, published))
    found = [as_printed(f"{what}: share of the slowest quarter", share, published_share, SHARE_TOLERANCE)]
    found += [
        as_printed(f"{what}: mean norm in part {n} of {n_bins} of the frequencies", a, b, NORM_TOLERANCE * b)
        for n, (a, b) in enumerate(means, 1)
    ]
    if ours.shape == published.shape:
        found.append(alike(f"{what}: correlation of the cells", correlation(ours, published), LEAST_CORRELATION))
    return found


def alike(what: str, correlation: float, least: float) -> Comparison:
    """Two maps that are the same have a correlation of 1."""
    return near(what, correlation, 1.0, 1 - least)


def compare_strongest(what: str, ours_P: Array, published_P: Array) -> list[Comparison]:
    """The strongest pair of a head, counted from 1 as in the paper, and its norm."""
    pair, most = int(ours_P.argmax()), float(published_P.max())
    strongest = np.flatnonzero(published_P >= TIED * most)
    nearest = int(strongest[np.abs(strongest - pair).argmin()])
    return [
        near(f"{what}: strongest pair", pair + 1, nearest + 1, ROWS, int(published_P.argmax()) + 1),
        as_printed(f"{what}: norm of the strongest pair", float(ours_P.max()), most, NORM_TOLERANCE * most),
    ]


def side_by_side(
    what: str, ours: Array, published: Array, columns_are: str, *, titles: tuple[str, str] = ("ours", "published")
) -> dict[str, HeatMap]:
    """Both maps, equally dark where norms are equal if they have the same size."""
    most = float(max(ours.max(), published.max())) if ours.shape == published.shape else None
    return {
        f"{what}, {title}": HeatMap(values, columns_are, "pair, from the fastest", most)
        for title, values in zip(titles, (ours, published), strict=True)
    }
