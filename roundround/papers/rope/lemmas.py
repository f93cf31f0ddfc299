"""The lemmas of appendix A: no rotation returns, its angles are dense, half the weight needs the largest logit."""

from __future__ import annotations

import math
from typing import ClassVar, final

import torch
from torch import Tensor

from roundround.papers.claim import Claim, Finding, at_least, at_most, near
from roundround.papers.constructions import frequencies, random_vector, weights
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
