"""Lemma 2.1 and Proposition 3.1: bounded logits disperse, and what bounds them.

Tested by tests/papers/test_claims.py and tests/papers/test_softmax_claims.py.
"""

from __future__ import annotations

import math
from typing import ClassVar, final

import numpy as np
import torch
from torch import Tensor

from roundround.kernels.blocks import logits_of_rows
from roundround.kernels.keys import Keys
from roundround.kernels.row_measures import entropy_bound, entropy_of_weights, extreme_logits, largest_weight_bound
from roundround.papers.claim import (
    CheckedNumber,
    Claim,
    Finding,
    at_least,
    at_most,
    near,
)
from roundround.papers.constructions import random_vector, weights_at
from roundround.support.panels import Curve, Panel

TEMPERATURES, LENGTHS, HALF_RANGE = (1.0, 0.5, 0.1), (10, 100, 1000, 10_000, 100_000), 3.0
ROUNDING = 1e-9  # relative, of float64 sums over 100,000 keys


def weight_bounds(n: float, spread: float, temperature: float) -> tuple[float, float]:
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
        comparisons: list[CheckedNumber] = []
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
                    found[np.abs(found[:, 2] - 1).argmax(), 2],
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
            Curve("bound, theta = 1", LENGTHS, [min(1, weight_bounds(n, spread, 1.0)[1]) for n in LENGTHS]),
            Curve("1 / n", LENGTHS, [1 / n for n in LENGTHS]),
            Curve("attained, theta = 1", LENGTHS, [attainable(n, spread, 1.0) for n in LENGTHS], points=True),
        ]
        remark = "The tolerance of n times the largest weight is four standard errors of a mean over 100,000 keys."
        return Finding(comparisons, Panel("keys n", "largest weight", curves, log="xy"), remark)


def ratios(n: int, theta: float) -> tuple[float, float, float, float]:
    """Of a random row: its least and largest weight over their bounds; then the weight of one key at the top of a row
    whose other keys are at the bottom over its formula; and the random row's largest weight."""
    uniform_N = torch.rand(n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    logits_N = (2 * uniform_N - 1) * HALF_RANGE
    spread = float(logits_N.max() - logits_N.min())
    alpha_N = weights_at(theta, logits_N[None])[0]
    low, high = weight_bounds(n, spread, theta)
    alone_N = torch.zeros(n, dtype=torch.float64)
    alone_N[0] = spread
    best = float(weights_at(theta, alone_N[None])[0, 0]) / attainable(n, spread, theta)
    return float(alpha_N.min()) / low, float(alpha_N.max()) / high, best, float(alpha_N.max())


def of_this_program() -> list[CheckedNumber]:
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
            near(f"its bound on the largest weight, {where}", most, min(1.0, weight_bounds(n, delta, 1.0)[1]), 1e-12),
            at_least(
                f"entropy of a row less the bound on it, {where}", float(entropy_of_weights(alpha_1N)) - least, 0.0
            ),
            at_most(f"largest weight of the row over the bound, {where}", float(alpha_1N.max()) / most, 1 + ROUNDING),
        ]
    return comparisons


DRAWS, WIDTH, ITEMS = 500, 16, 32


def spread_bound(q_DD: Tensor, k_DD: Tensor, y_D: Tensor, x_ND: Tensor) -> float:
    """2 sigma_max(Q) sigma_max(K) |y| max |x_i|, by numpy."""
    largest = [float(np.linalg.svd(weight.numpy(), compute_uv=False)[0]) for weight in (q_DD, k_DD)]
    norms = np.linalg.norm(x_ND.numpy(), axis=1)
    return 2 * largest[0] * largest[1] * float(np.linalg.norm(y_D.numpy())) * float(norms.max())


def spread(q_DD: Tensor, k_DD: Tensor, y_D: Tensor, x_ND: Tensor) -> float:
    """delta of the logits (Q y) . (K x_i), by this program's attention."""
    q, k = (q_DD @ y_D)[None, None, None], (x_ND @ k_DD.T)[None, None]
    keys = Keys(q_pos_BQ=torch.tensor([[len(x_ND) - 1]]), k_pos_BK=torch.arange(len(x_ND))[None])
    largest, smallest = extreme_logits(*logits_of_rows(q, k, 1.0, keys, None, 0, 1))
    return float(largest - smallest)


@final
class Prop31(Claim):
    """How far the logits of a row can lie apart is bounded by the singular values of Q and K and the items' norms.

    delta = max e - min e <= 2 sigma_max(Q) sigma_max(K) |y| max_i |x_i|, e_i = (Q y) . (K x_i); equal for Q = K = 1 and
    items y and -y

    Velickovic et al. 2024, arXiv:2410.01104, Proposition 3.1.
    """

    title: ClassVar[str] = "sharp rows need large weights"

    def check(self) -> Finding:
        ratios, scales = random_ratios()
        y_D, one_DD = random_vector(WIDTH, seed=1), torch.eye(WIDTH, dtype=torch.float64)
        both_ND = torch.stack([y_D, -y_D])
        turn_DD, _ = torch.linalg.qr(random_vector(WIDTH, WIDTH, seed=2))
        equal = spread(one_DD, one_DD, y_D, both_ND) / spread_bound(one_DD, one_DD, y_D, both_ND)
        turned = spread(3 * turn_DD, 0.5 * turn_DD, y_D, both_ND) / spread_bound(
            3 * turn_DD, 0.5 * turn_DD, y_D, both_ND
        )
        growth = spread(2 * one_DD, 3 * one_DD, y_D, both_ND) / spread(one_DD, one_DD, y_D, both_ND)
        comparisons = [
            at_most(f"delta over its bound, closest of {DRAWS:,} random draws", max(ratios), 1.0),
            at_least("the same, that the bound is within a factor of 10 of a random draw", max(ratios), 0.1),
            near("delta over its bound for Q = K = 1 and items y, -y", equal, 1.0, ROUNDING),
            near("delta over its bound for Q = 3 U, K = U / 2, U a rotation", turned, 1.0, ROUNDING),
            near("growth of delta when Q doubles and K triples", growth, 6.0, ROUNDING),
        ]
        curves = [
            Curve("random draws", scales[::5], (np.array(ratios) * scales)[::5], points=True),
            Curve("bound", [min(scales), max(scales)], [min(scales), max(scales)]),
        ]
        return Finding(comparisons, Panel("bound on delta", "delta", curves, log="xy"))


def random_ratios() -> tuple[list[float], np.ndarray]:
    """delta over its bound, and the bound, of random matrices and items of many scales."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    ratios, limits = [], []
    for draw in range(DRAWS):
        scale = 10 ** (draw / DRAWS * 2 - 1)
        made = (scale * normal(WIDTH, WIDTH), normal(WIDTH, WIDTH), normal(WIDTH), normal(ITEMS, WIDTH))
        limits.append(spread_bound(*made))
        ratios.append(spread(*made) / limits[-1])
    return ratios, np.array(limits)
