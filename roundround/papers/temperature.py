"""The adaptive temperature: its polynomial, proposition 3.2 of arXiv:2410.01104, the entropy of a row from one pass.

Tested by tests/papers/test_claims.py and tests/papers/test_softmax_claims.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from scipy.special import entr, softmax
from torch import Tensor

from roundround.kernels import fused
from roundround.kernels.keys import Keys
from roundround.kernels.row_measures import entropy_of_logits, entropy_of_weights
from roundround.papers.claim import CheckedNumber, Finding, as_printed, at_most, near
from roundround.papers.constructions import SHAPE, random_vector, weights, weights_at
from roundround.softmax.adaptive_temperature import PUBLISHED, AdaptiveTemperature, inverse_temperature
from roundround.support.panels import Curve, Panel

BETAS, STEP, KEYS = (0.3, 1.0, 2.5), 1e-4, 64
GRID = np.linspace(0.05, 6, 120)  # of beta
TOLERANCE = 1e-6  # a central difference at STEP errs by STEP^2 / 6 of the third derivative, and by 1e-15 / STEP


def slope_by_formula(beta: float, logits_K: Tensor) -> float:
    """-beta Var(e), the variance under softmax(beta e), written out."""
    e = logits_K.numpy()
    p = softmax(beta * e)
    return float(-beta * (p @ e**2 - (p @ e) ** 2))


def prop_3_2() -> Finding:
    """A larger inverse temperature always lowers the entropy of a row, unless all its logits are equal.

    dH / dbeta = -beta Var(e) <= 0, the variance under softmax(beta e), H in nats

    Velickovic et al. 2024, arXiv:2410.01104, Proposition 3.2 by memory of its number; the formula is derived here.
    """
    logits_K = random_vector(KEYS, seed=0)
    comparisons = []
    for beta in BETAS:
        difference = (entropy_at(beta + STEP, logits_K) - entropy_at(beta - STEP, logits_K)) / (2 * STEP)
        direct = float(entropy_of_logits(beta * logits_K[None], torch.ones(1, KEYS, dtype=torch.bool)))
        name = f"entropy from logits less that from weights, beta = {beta:g}"
        comparisons += [
            near(f"dH/dbeta at beta = {beta:g} by finite differences",
                 difference, slope_by_formula(beta, logits_K), TOLERANCE),
            near(name, direct - entropy_at(beta, logits_K), 0.0, 1e-12),
        ]  # fmt: skip
    entropies = [entropy_at(beta, logits_K) for beta in GRID]
    betas = np.linspace(0, GRID[0], 201)  # from ln n to the first entropy the formula is integrated
    slopes = torch.tensor([slope_by_formula(beta, logits_K) for beta in betas], dtype=torch.float64)
    rest = float(entropies[0] - np.log(KEYS) - torch.trapezoid(slopes, torch.from_numpy(betas)))
    of_equal_logits = entropy_at(1.5, 0 * logits_K) - entropy_at(0.5, 0 * logits_K)
    comparisons += [
        at_most("largest step of the entropy along beta from 0.05 to 6", float(np.diff(entropies).max()), 0.0),
        near("entropy at beta = 0.05, less ln 64 and the slope's integral", rest, 0, 1e-6),
        near("change of the entropy of equal logits from beta = 0.5 to 1.5", of_equal_logits, 0.0, 1e-12),
    ]
    curves = [
        Curve("entropy", GRID, entropies),
        Curve("-dH/dbeta = beta Var(e)", GRID, -np.array([slope_by_formula(beta, logits_K) for beta in GRID])),
        Curve("where differences were taken", BETAS, [entropy_at(beta, logits_K) for beta in BETAS], points=True),
    ]
    return Finding(comparisons, Panel("inverse temperature beta", "nats, and nats per unit of beta", curves))


def entropy_at(beta: float, logits_K: Tensor) -> float:
    """The entropy of the row at this inverse temperature, in nats, by this program."""
    return float(entropy_of_weights(weights_at(1 / beta, logits_K[None])[0]))


FIGURE_4 = (-0.037, 0.481, -2.3, 4.917, -1.791)  # the paper's listing, highest power first
GATE = 0.5  # nats: below it the listing leaves a row alone
POINTS = (0.4, 0.9, 1.0, 1.5, 2.0, 3.0, 4.0, 4.412, 5.0, 5.5, 5.9, 6.0)  # nats
START, END, LARGEST, AT = 0.849, 5.945, 2.421, 4.412  # where beta exceeds 1; its maximum and where that lies
OF_GRID = 0.0015  # nats: the step between entropies, and rounding


def beta_by_listing(entropy: float) -> float:
    """The paper's figure 4, by numpy."""
    return max(float(np.polyval(FIGURE_4, entropy)), 1.0) if entropy > GATE else 1.0


def polynomial() -> Finding:
    """The published temperature sharpens rows of 0.849 to 5.945 nats alone, and an even row of up to 381 keys at most.

    beta(H) = max(-0.037 H^4 + 0.481 H^3 - 2.3 H^2 + 4.917 H - 1.791, 1) where H > 0.5, else 1, H in nats

    Velickovic et al. 2024, arXiv:2410.01104, figure 4; where it exceeds 1 is measured here.
    """
    entropies = torch.linspace(0, 7, 7001, dtype=torch.float64)
    longest = max((n for n in range(300, 460) if beta_of_even_row(n) > 1), default=0)
    beta = inverse_temperature(entropies)
    acting = entropies[beta > 1]
    ours = inverse_temperature(torch.tensor(POINTS, dtype=torch.float64)).tolist()
    comparisons = [
        *[
            as_printed(f"coefficient of H^{4 - place}", own, published, 0.0)
            for place, (own, published) in enumerate(zip(PUBLISHED, FIGURE_4, strict=True))
        ],
        *[near(f"beta at {h:g} nats", own, beta_by_listing(h), 1e-9) for h, own in zip(POINTS, ours, strict=True)],
        near("least entropy at which beta exceeds 1", float(acting[0]), START, OF_GRID),
        near("largest entropy at which beta exceeds 1", float(acting[-1]), END, OF_GRID),
        near("largest beta", float(beta.max()), LARGEST, 0.0005),
        near("entropy of the largest beta", float(entropies[beta.argmax()]), AT, OF_GRID),
        at_most("the polynomial at the gate of 0.5 nats", float(np.polyval(PUBLISHED, GATE)), 1.0),
        near("most keys of an even row that is sharpened", longest, math.floor(math.exp(END)), 0),
        *[
            near(f"beta of an even row of {n} keys", beta_of_even_row(n), beta_by_listing(math.log(n)), 1e-9)
            for n in (4, 16, 100, 300, 400)
        ],
    ]
    curves = [
        Curve("this program", entropies, beta),
        Curve("figure 4 by numpy", POINTS, [beta_by_listing(h) for h in POINTS], points=True),
        Curve("the polynomial alone", entropies, np.polyval(FIGURE_4, entropies.numpy()).clip(0)),
    ]
    remark = "The gate at 0.5 nats never decides: the polynomial is below 1 there anyway."
    return Finding(comparisons, Panel("entropy in nats", "inverse temperature beta", curves), remark)


def adaptive() -> AdaptiveTemperature:
    """The published one."""
    return AdaptiveTemperature(
        SHAPE,
        coefficients=PUBLISHED,
        min_entropy=GATE,
        min_beta=1.0,
        entropy_range=None,
        in_training=True,
        gradient_through_beta=False,
    )


def beta_of_even_row(n: int) -> float:
    """The beta of n equal logits, their entropy measured by this program."""
    return float(inverse_temperature(entropy_of_weights(weights(torch.zeros(1, n, dtype=torch.float64)))[0]))


CHANNELS, TILE = 16, 64
LENGTHS_OF_ROWS, SPREADS = (17, 300, 4096, 16_384), (0.1, 1.0, 5.0, 20.0)  # keys of one row; deviations of its logits
CAUSAL, WINDOWS = 512, (None, 100)  # a text of which every row is asked, and what its rows see of it
EPS = 2.0**-52
STEEPEST = 2.6  # d beta / dH where the polynomial exceeds 1, at its upper end


def streaming_entropy() -> Finding:
    """The entropy of a row comes from one pass over tiles of its keys, with three numbers kept for a row; a second
    pass, ordinary attention with the logits times beta, gives the adaptive temperature.

    kept: m = max e, Z = sum exp(e - m), S = sum e exp(e - m), both times exp(m_old - m) where m rises; H = m + ln Z -
    S / Z

    Velickovic et al. 2024, arXiv:2410.01104, appendix. Its listing was not seen; this recurrence is derived here. The
    program keeps the log-sum-exp and the mean key instead: H = log-sum-exp - q . E[k].
    """
    comparisons: list[CheckedNumber] = []
    found: dict[str, list[float]] = {"this program, one fused pass": [], "three numbers a row, by numpy": []}
    for spread in SPREADS:
        heads = [Head.drawn(1, n, spread) for n in LENGTHS_OF_ROWS]
        (rows,) = zip(*(head.logits() for head in heads), strict=True)
        ours = [float(head.entropy()) for head in heads], [entropy_in_tiles(row) for row in rows]
        for (name, errors), entropies in zip(found.items(), ours, strict=True):
            errors.append(float(np.abs(np.array(entropies) - [entropy(row) for row in rows]).max()))
            what = f"largest error in nats, 17 to 16,384 keys, logits of deviation {spread:g}: {name}"
            comparisons.append(near(what, errors[-1], 0.0, rounding(rows)))
    for window in WINDOWS:
        head, name = Head.drawn(CAUSAL, CAUSAL, 3.0, window), f"a window of {window}" if window else "causal"
        rows = head.logits()
        error = np.abs(head.entropy().numpy() - [entropy(row) for row in rows]).max()
        of_weights = rounding(rows) * (1 + STEEPEST * largest(rows))  # of beta times a logit
        # a coordinate of the output, against weights written out; the values are standard normal
        ours_NC = adaptive()(head.q, head.k, head.v, scale=1.0, keys=head.keys, bias=None, rows={})[0, 0].numpy()
        values, worst = head.v[0, 0].numpy(), 0.0
        for end, row in enumerate(rows, start=1):
            p = softmax(beta_by_listing(entropy(row)) * row)
            worst = max(worst, float(np.abs(p @ values[end - len(p) : end] - ours_NC[end - 1]).max()))
        comparisons += [
            near(f"largest error in nats, every row of {CAUSAL} tokens, {name}", float(error), 0.0, rounding(rows)),
            near(f"largest error of the adaptive temperature's output by two passes, {name}",
                 worst, 0.0, 8 * of_weights),
        ]  # fmt: skip
    curves = [Curve(name, SPREADS, errors, points=True) for name, errors in found.items()]
    return Finding(comparisons, Panel("deviation of the logits", "largest error in nats", curves, "x"))


class Head(NamedTuple):
    """Queries of the last tokens and all keys and values, [1, 1, N, C] each, float64, logits q . k."""

    q: Tensor
    k: Tensor
    v: Tensor
    keys: Keys

    @classmethod
    def drawn(cls, n_queries: int, n: int, spread: float, window: int | None = None) -> Head:
        """Normal, so that the logits have this standard deviation."""
        k, v, q = random_vector(3, 1, 1, n, CHANNELS, seed=n)
        pos = torch.arange(n)[None]
        keys = Keys(q_pos_BQ=pos[:, n - n_queries :], k_pos_BK=pos, window=window)
        return cls(q[:, :, n - n_queries :] * spread / CHANNELS**0.5, k, v, keys)

    def logits(self) -> list[np.ndarray]:
        """The logits of every query with its visible keys, by numpy."""
        q, k = self.q[0, 0].numpy(), self.k[0, 0].numpy()
        ends = range(len(k) - len(q) + 1, len(k) + 1)
        return [k[max(0, end - (self.keys.window or end)) : end] @ one for one, end in zip(q, ends, strict=True)]

    def entropy(self) -> Tensor:
        """The entropy of every row, by this program."""
        return fused.entropy(self.q, self.k, scale=1.0, keys=self.keys)[0, 0, :, 0]


def entropy(logits: np.ndarray) -> float:
    """-sum p ln p, by scipy."""
    return float(entr(softmax(logits)).sum())


def entropy_in_tiles(logits: np.ndarray) -> float:
    """The recurrence, TILE keys at a time."""
    m, z, s = -np.inf, 0.0, 0.0
    for start in range(0, len(logits), TILE):
        e = logits[start : start + TILE]
        risen = max(m, float(e.max()))
        p, shrink = np.exp(e - risen), np.exp(m - risen)
        m, z, s = risen, z * shrink + p.sum(), s * shrink + (e * p).sum()
    return float(m + np.log(z) - s / z)


def largest(rows: Iterable[np.ndarray]) -> float:
    """The size of the largest logit."""
    return max(float(np.abs(row).max()) for row in rows)


def rounding(rows: list[np.ndarray] | tuple[np.ndarray, ...]) -> float:
    """The rounding of an entropy in nats: means of logits, each a sum of CHANNELS products, and logarithms."""
    return 4 * CHANNELS * EPS * (largest(rows) + math.log(max(map(len, rows))))
