"""Propositions 3.1 and 3.2 and the lemmas of appendix A: what follows from rotations, at any distance.

Tested by tests/papers/test_claims.py and test_rope_claims.py.
"""

from __future__ import annotations

import math
from typing import ClassVar, final

import torch
from torch import Tensor

from roundround.papers.claim import (
    CheckedNumber,
    Claim,
    Finding,
    at_least,
    at_most,
    near,
)
from roundround.papers.constructions import (
    HEAD_DIM,
    aligned,
    frequencies,
    ladder_by_formula,
    logits,
    random_vector,
    rotated,
    turned,
    weights,
)
from roundround.pe.rotary import rotation
from roundround.support.panels import Curve, Panel

FOLLOWED = 8192
ANGLE_ROUNDING = 1e-9  # of n g in float64, n up to 8192; what is nearer to 0 counts as 0
NEAR_MISSES = {44: 44 - 14 * math.pi, 710: 710 - 226 * math.pi}  # of g = 1, from 22/7 and 355/113


@final
class LemmaA1(Claim):
    """A pair whose frequency is algebraic and not 0 never returns to its first angle, though it comes near.

    n g = 0 mod 2 pi only for n = 0; true of every g_k = theta^(-2(k-1)/d), of which not all are rational

    Barbero et al. 2024, arXiv:2410.06205, Lemma A.1.
    """

    title: ClassVar[str] = "no rotation returns"

    def check(self) -> Finding:
        away_NP = angles(frequencies(), FOLLOWED).abs()
        returns = int((away_NP[1:] < ANGLE_ROUNDING).sum())
        seventh = angles(torch.tensor([2 * math.pi / 7], dtype=torch.float64), FOLLOWED).abs()
        n = torch.arange(1, FOLLOWED)
        near_n = away_NP[1:, 0] <= 2 * math.pi / n
        record = torch.cummin(away_NP[1:, 0], 0).values
        return Finding(
            [
                near(f"returns of 128 pairs within {FOLLOWED:,} tokens", returns, 0, 0),
                at_least("nearest that any comes, radians", float(away_NP[1:].min()), ANGLE_ROUNDING),
                *[
                    near(f"how near g = 1 comes after {place} tokens, radians", float(away_NP[place, 0]), miss, 1e-9)
                    for place, miss in NEAR_MISSES.items()
                ],
                near("its nearest miss is after as many tokens", int(away_NP[1:, 0].argmin()) + 1, 710, 0),
                near("tokens until a pair with g = 2 pi / 7 returns",
                     int((seventh[1:, 0] < ANGLE_ROUNDING).nonzero()[0]) + 1, 7, 0),
            ],
            Panel(
                "tokens n",
                "radians from the first angle",
                [
                    Curve("g = 1, where it is at most 2 pi / n", n[near_n], away_NP[n[near_n], 0], points=True),
                    Curve("nearest so far", n, record),
                    Curve("2 pi / n", n, 2 * math.pi / n),
                ],
                log="xy",
            ),
            "The paper's \"g rational\" is true of few of these frequencies; all are algebraic, which suffices.",
        )  # fmt: skip


def angles(frequencies_P: Tensor, n: int) -> Tensor:
    """0, g, 2g, ..., (n - 1) g of every pair as this program rotates, between -pi and pi: [n, P]."""
    cos, sin = rotation(torch.arange(n)[None], frequencies_P)
    n_pairs = len(frequencies_P)
    return torch.atan2(sin[0, :, n_pairs:], cos[0, :, n_pairs:])


PIGEONHOLES = {0: 100, 32: 100, 64: 1000}  # pair, from 0: into how many parts the circle is cut; g = 1, 0.1 and 0.01
LONGEST = 4_000_000  # tokens; where one turn takes more, the gap stays above its bound


@final
class LemmaA2(Claim):
    """The angles that a pair passes through leave no gap: they are dense in the circle.

    {n g mod 2 pi} is dense: of M + 1 angles two lie within 2 pi / M, so some n <= M moves by delta <= 2 pi / M, and the
    multiples of n leave no gap above delta after one turn

    Barbero et al. 2024, arXiv:2410.06205, Lemma A.2.
    """

    title: ClassVar[str] = "the angles are dense"

    def check(self) -> Finding:
        comparisons, curves = [], []
        for pair, parts in PIGEONHOLES.items():
            g_1 = frequencies()[pair : pair + 1]
            g = float(g_1)
            few = angles(g_1, parts + 1)[:, 0].abs()
            n = int(few[1:].argmin()) + 1
            step = float(few[n])
            longest = min(n * math.ceil(2 * math.pi / step) + 1, LONGEST)
            all_angles = angles(g_1, longest)[:, 0]
            lengths = [2**k for k in range(2, 30) if 2**k < longest] + [longest]
            gaps = [largest_gap(all_angles[:length]) for length in lengths]
            comparisons += [
                near(f"frequency of pair {pair}", g, 10.0 ** (-pair / 32), 1e-12),
                at_most(f"smallest step of g = {g:g} in {parts} tokens, radians", step, 2 * math.pi / parts),
                at_most(f"largest gap after {longest:,} tokens of g = {g:g}, radians", gaps[-1], step * (1 + 1e-6)),
            ]
            curves.append(Curve(f"g = {g:g}", lengths, gaps))
        evenly = [2**k for k in range(2, 21)]
        curves.append(Curve("2 pi / n: spread evenly", evenly, [2 * math.pi / n for n in evenly]))
        return Finding(comparisons, Panel("tokens n", "largest gap between angles, radians", curves, log="xy"))


def largest_gap(angles_N: Tensor) -> float:
    """Between neighbours on the circle, radians."""
    sorted_N = angles_N.sort().values
    around = torch.cat([sorted_N, sorted_N[:1] + 2 * math.pi])
    return float(around.diff().max())


LENGTHS, SPREADS, ROWS = (2, 3, 10, 100, 1000), (0.1, 1.0, 10.0, 100.0), 200
ROUNDING = 1e-12
GAP = 1e-6  # between the two logits of a row that comes near the bound


@final
class LemmaA3(Claim):
    """A key whose logit is below another's has at most half of the weight.

    a_i < a_j for some j  =>  alpha_i <= 1/2

    Barbero et al. 2024, arXiv:2410.06205, Lemma A.3.
    """

    title: ClassVar[str] = "half the weight needs the largest logit"

    def check(self) -> Finding:
        comparisons = []
        for n in LENGTHS:
            rows_SRN = random_vector(len(SPREADS), ROWS, n, seed=n)  # of every spread
            logits_RN = (rows_SRN * torch.tensor(SPREADS, dtype=torch.float64)[:, None, None]).flatten(0, 1)
            alpha_RN = weights(logits_RN)
            below_RN = logits_RN < logits_RN.amax(-1, keepdim=True)
            most = float(alpha_RN.masked_fill(~below_RN, 0.0).max())
            wrong = int(((alpha_RN > 0.5 + ROUNDING) & below_RN).sum())
            comparisons += [
                at_most(f"largest weight below a larger logit, {n:,} keys", most, 0.5 + ROUNDING),
                near(f"keys with more than half the weight and not the largest logit, {n:,} keys", wrong, 0, 0),
            ]
        close = float(weights(torch.tensor([[0.0, -GAP]], dtype=torch.float64))[0, 1])
        comparisons += [
            at_least(f"weight of a key whose logit is {GAP:g} below the other", close, 0.5 - GAP),
            at_most("the same: below one half", close, 0.5),
        ]
        gap = torch.linspace(0, 5, 101, dtype=torch.float64)
        curves = []
        for n in (2, 3, 10):
            rows = torch.zeros(len(gap), n, dtype=torch.float64)
            rows[:, 1:] = -gap[:, None]
            curves.append(Curve(f"{n} keys", gap, weights(rows)[:, 1]))
        curves.append(Curve("one half", gap, torch.full_like(gap, 0.5)))
        return Finding(comparisons, Panel("how far below the largest logit", "weight of the second", curves))


CHOSEN, LOOKED_AT = (0, 1, 5, 100, 3000), 8192  # distances at which the maximum is asked for; distances looked at
DRAWN, BLOCK = (0, 3000), 16  # of these in the figure; tokens to a point, or the lines would cover each other
EQUAL_NORMS = (0.972, 0.902, 0.823, 0.765, 0.739)  # mean_k cos(n g_k) for n = 1 .. 5, to three digits
FAR = 32_768  # how far it is followed


@final
class Prop31(Claim):
    """For every query and every distance r there is a key whose weight is largest at exactly that distance.

    k = R^r q, so that a(n) = sum_k |q_k|^2 cos((n - r) g_k), with its only maximum |q|^2 at n = r

    Barbero et al. 2024, arXiv:2410.06205, Proposition 3.1.
    """

    title: ClassVar[str] = "a maximum at any distance"

    def check(self) -> Finding:
        q, distances = random_vector(HEAD_DIM, seed=0), torch.arange(LOOKED_AT)
        comparisons, curves = [], []
        for r in CHOSEN:
            logits_N = logits(q, turned(q, r * ladder_by_formula()), distances, frequencies())
            top, second = logits_N.topk(2)
            comparisons += [
                near(f"distance of the largest logit, {r:,} asked for", int(logits_N.argmax()), r, 0),
                near(f"that logit over |q|^2, r = {r:,}", float(top[0] / (q @ q)), 1.0, 1e-9),
                at_least(f"its lead on the next as a share of it, r = {r:,}", float(1 - top[1] / top[0]), 0.01),
                near(f"distance from there to the next, r = {r:,}", abs(int(second[1]) - r), 1, 0),
            ]
            if r in DRAWN:
                largest = (logits_N / float(q @ q)).view(-1, BLOCK).amax(-1)
                curves.append(Curve(f"r = {r:,}", distances[::BLOCK], largest))
        picture = Panel("distance in tokens", f"logit over |q|^2, largest of {BLOCK} tokens", curves)
        return Finding([*comparisons, *of_equal_norms()], picture)


def of_equal_norms() -> list[CheckedNumber]:
    """The same where every pair has the same norm: the logit falls fast to 0.74, and never comes back."""
    f_N = aligned(torch.arange(FAR), frequencies())
    values = [
        near(f"logit over |q|^2 at distance {n}, equal norms", float(f_N[n]), expected, 5e-4)
        for n, expected in enumerate(EQUAL_NORMS, start=1)
    ]
    within = f"from 100 to {FAR:,}"
    return [
        *values,
        near(f"distance of the largest of the others, up to {FAR:,}", int(f_N[1:].argmax()) + 1, 1, 0),
        at_most(f"largest {within}, equal norms", float(f_N[100:].max()), 0.4655),
    ]


DISTANCES = (0, 1, 10, 100, 1000, 5000)
SAMPLES = 20_000
ERRORS = 4  # standard errors allowed: one check of 12 numbers in 1,300 would miss by chance, and the seed is fixed
MEAN_ERROR = math.sqrt(HEAD_DIM / SAMPLES)
VARIANCE_ERROR = math.sqrt((2 * HEAD_DIM**2 + 6 * HEAD_DIM) / SAMPLES)  # from E[(q . k)^4] = 3 d^2 + 6 d


@final
class Prop32(Claim):
    """The logit of independent Gaussian queries and keys is 0 on average at every distance, and its variance is d.

    q, k ~ N(0, I) independent: E[q^T R^r k] = 0 and Var[q^T R^r k] = d for all r (the variance follows; it is not in
    the paper)

    Barbero et al. 2024, arXiv:2410.06205, Proposition 3.2.
    """

    title: ClassVar[str] = "no decay for random vectors"

    def check(self) -> Finding:
        q_NC, k_NC = gaussians()
        comparisons: list[CheckedNumber] = []
        means, variances = [], []
        for r in DISTANCES:
            logits_N = (q_NC * rotated(k_NC, torch.tensor([-r]), frequencies())).sum(-1)
            means.append(float(logits_N.mean()))
            variances.append(float(logits_N.var()))
            comparisons += [
                near(f"mean logit at distance {r:,}", means[-1], 0.0, ERRORS * MEAN_ERROR, published=0.0),
                near(f"its variance at distance {r:,}", variances[-1], HEAD_DIM, ERRORS * VARIANCE_ERROR),
            ]
        x, unit = DISTANCES[1:], math.sqrt(HEAD_DIM)  # distance 0 has no place on the axis
        curves = [
            Curve("mean", x, [mean / unit for mean in means[1:]], points=True),
            Curve("standard deviation", x, [math.sqrt(variance) / unit for variance in variances[1:]], points=True),
            Curve("expected mean", x, [0.0] * len(x)),
            Curve("expected standard deviation", x, [1.0] * len(x)),
        ]
        return Finding(comparisons, Panel("distance in tokens", "logit over the square root of d", curves, log="x"))


def gaussians() -> Tensor:
    """Queries and keys, [2, SAMPLES, C]."""
    return random_vector(2, SAMPLES, HEAD_DIM, seed=0)
