"""Lemma 2.1: softmax must disperse where its logits are bounded."""

from __future__ import annotations

import math
from typing import ClassVar, final

import numpy as np
import torch
from torch import Tensor

from roundround.attention.row_measures import entropy_bound, entropy_of_weights, largest_weight_bound
from roundround.papers.claim import Claim, Comparison, Curve, Finding, Picture, Trained, at_least, at_most, near
from roundround.papers.constructions import weights_at
from roundround.papers.trained import FEWEST, rows_of_model

TEMPERATURES, LENGTHS, HALF_RANGE = (1.0, 0.5, 0.1), (10, 100, 1000, 10_000, 100_000), 3.0
ROUNDING = 1e-9  # relative, of float64 sums over 100,000 keys


def bounds(n: float, spread: float, temperature: float) -> tuple[float, float]:
    """The lemma's: (least, largest) weight."""
    return math.exp(-spread / temperature) / n, math.exp(spread / temperature) / n


def attainable(n: int, spread: float, temperature: float) -> float:
    """The largest weight that any row can have: one logit at the top, all others at the bottom."""
    return 1 / (1 + (n - 1) * math.exp(-spread / temperature))


@final
class Lemma21(Claim):
    """Where logits lie between fixed bounds, every weight is of the order of 1/n, at any fixed temperature.

    exp(-delta / theta) / n <= alpha_k <= exp(delta / theta) / n, delta = max e - min e

    attained: max alpha = exp(delta / theta) / (exp(delta / theta) + n - 1), one logit at the top and the rest at the
    bottom

    Velickovic et al. 2024, arXiv:2410.01104, Lemma 2.1; the attained maximum is derived here.
    """

    title: ClassVar[str] = "bounded logits disperse"

    def check(self) -> Finding:
        comparisons: list[Comparison] = []
        curves = []
        for theta in TEMPERATURES:
            found = np.array([ratios(n, theta) for n in LENGTHS])
            comparisons += [
                at_least(
                    f"least weight over its bound, closest of n = 10 to 100,000, theta = {theta:g}",
                    found[:, 0].min(),
                    1,
                ),
                at_most(
                    f"largest weight over its bound, closest of n = 10 to 100,000, theta = {theta:g}",
                    found[:, 1].max(),
                    1,
                ),
                near(
                    f"attained maximum over its formula, farthest, theta = {theta:g}",
                    farthest(found[:, 2]),
                    1,
                    ROUNDING,
                ),
            ]
            curves.append(Curve(f"largest weight of random rows, theta = {theta:g}", LENGTHS, found[:, 3]))
        expected = math.exp(HALF_RANGE) * HALF_RANGE / math.sinh(HALF_RANGE)  # 1 / mean of exp(e - max e)
        comparisons += [
            near(
                "n times the largest weight at theta = 1, n = 100,000",
                LENGTHS[-1] * ratios(LENGTHS[-1], 1.0)[3],
                expected,
                0.11,
            ),
            *of_this_program(),
        ]
        spread = 2 * HALF_RANGE
        curves += [
            Curve("bound, theta = 1", LENGTHS, [min(1, bounds(n, spread, 1.0)[1]) for n in LENGTHS]),
            Curve("1 / n", LENGTHS, [1 / n for n in LENGTHS]),
            Curve("attained, theta = 1", LENGTHS, [attainable(n, spread, 1.0) for n in LENGTHS], points=True),
        ]
        remark = "The tolerance of n times the largest weight is four standard errors of a mean over 100,000 keys."
        return Finding(comparisons, Picture("keys n", "largest weight", curves, log="xy"), remark)

    def check_model(self, trained: Trained) -> Finding:
        least, most, sharp, shares, lengths = math.inf, 0.0, 0.0, [], []
        for rows in rows_of_model(trained.probed, trained.texts):
            seen = rows.many_R
            n_R, spread_HR, largest_HR = rows.n_R[seen], rows.spread_HR[:, seen], rows.largest_HR[:, seen]
            least = min(least, float((rows.smallest_HR[:, seen] * n_R * spread_HR.exp()).min()))
            most = max(most, float((largest_HR * n_R * (-spread_HR).exp()).max()))
            sharp = max(sharp, float((largest_HR * (1 + (n_R - 1) * (-spread_HR).exp())).max()))
            shares.append(largest_HR.log().mean(0).exp())
            lengths.append(n_R)
        comparisons = [
            at_least(f"least weight over its bound, the closest row of {FEWEST} keys or more", least, 1 - ROUNDING),
            at_most("largest weight over its bound, the closest row", most, 1 + ROUNDING),
            at_most("largest weight over the attainable maximum, the closest row", sharp, 1 + ROUNDING),
        ]
        n_all, even = torch.cat(lengths), sorted(set(torch.cat(lengths).tolist()))
        points = Curve("each row, geometric mean over heads", n_all[::8], torch.cat(shares)[::8], points=True)
        line = Curve("1 / n", even, [1 / n for n in even])
        remark = "delta is that of each row, after the normaliser's own temperature: the bounds hold for any numbers."
        picture = Picture("visible keys n", "largest weight", [points, line], "xy")
        return Finding(comparisons, picture, remark, can_fail=False)


def ratios(n: int, theta: float) -> tuple[float, float, float, float]:
    """Of a random row: its least and largest weight over their bounds; then the weight of one key at the top of a row
    whose other keys are at the bottom over its formula; and the random row's largest weight."""
    logits_N = uniform_logits(n)
    spread = float(logits_N.max() - logits_N.min())
    alpha_N = weights_at(theta, logits_N[None])[0]
    low, high = bounds(n, spread, theta)
    alone_N = torch.zeros(n, dtype=torch.float64)
    alone_N[0] = spread
    best = float(weights_at(theta, alone_N[None])[0, 0]) / attainable(n, spread, theta)
    return float(alpha_N.min()) / low, float(alpha_N.max()) / high, best, float(alpha_N.max())


def of_this_program() -> list[Comparison]:
    """The bounds that its tables print, against the formula and a row with one logit delta above the others."""
    comparisons = []
    for n, delta in ((1000, 3.0), (10, 0.5), (100, 40.0)):
        spread, ln_n = torch.tensor(delta, dtype=torch.float64), math.log(n)
        least, most = float(entropy_bound(ln_n, spread)), float(largest_weight_bound(ln_n, spread))
        row_1N = torch.zeros(1, n, dtype=torch.float64)
        row_1N[0, 0] = delta
        alpha_1N = weights_at(1.0, row_1N)
        where = f"delta = {delta:g}, n = {n:,}"
        comparisons += [
            near(f"this program's bound on the entropy, {where}", least, max(0.0, ln_n - delta), 1e-12),
            near(f"its bound on the largest weight, {where}", most, min(1.0, bounds(n, delta, 1.0)[1]), 1e-12),
            at_least(
                f"entropy of a row less the bound on it, {where}", float(entropy_of_weights(alpha_1N)) - least, 0.0
            ),
            at_most(f"largest weight of the row over the bound, {where}", float(alpha_1N.max()) / most, 1 + ROUNDING),
        ]
    return comparisons


def farthest(ratio_N: np.ndarray) -> float:
    """The ratio that is farthest from 1."""
    return float(ratio_N[np.abs(ratio_N - 1).argmax()])


def uniform_logits(n: int) -> Tensor:
    """Between -HALF_RANGE and HALF_RANGE."""
    generator = torch.Generator().manual_seed(n)
    return (2 * torch.rand(n, generator=generator, dtype=torch.float64) - 1) * HALF_RANGE
