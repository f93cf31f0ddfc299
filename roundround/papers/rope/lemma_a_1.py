"""Lemma A.1: no rotation of RoPE ever comes back to where it began."""

from __future__ import annotations

import math
from typing import ClassVar, final

import torch
from torch import Tensor

from roundround.papers.claim import Claim, Curve, Finding, Picture, at_least, near
from roundround.papers.constructions import frequencies
from roundround.pe.rotary import rotation

LONGEST = 8192
ROUNDING = 1e-9  # of n g in float64, n up to 8192; what is nearer to 0 counts as 0
NEAR_MISSES = {44: 44 - 14 * math.pi, 710: 710 - 226 * math.pi}  # of g = 1, from 22/7 and 355/113


@final
class LemmaA1(Claim):
    """A pair whose frequency is algebraic and not 0 never returns to its first angle, though it comes near.

    n g = 0 mod 2 pi only for n = 0; true of every g_k = theta^(-2(k-1)/d), of which not all are rational

    Barbero et al. 2024, arXiv:2410.06205, Lemma A.1.
    """

    title: ClassVar[str] = "no rotation returns"

    def check(self) -> Finding:
        away_NP = angles(frequencies()).abs()
        returns = int((away_NP[1:] < ROUNDING).sum())
        seventh = angles(torch.tensor([2 * math.pi / 7], dtype=torch.float64)).abs()
        n = torch.arange(1, LONGEST)
        near_n = away_NP[1:, 0] <= 2 * math.pi / n
        record = torch.cummin(away_NP[1:, 0], 0).values
        return Finding(
            [
                near(f"returns of 128 pairs within {LONGEST:,} tokens", returns, 0, 0),
                at_least("nearest that any comes, radians", float(away_NP[1:].min()), ROUNDING),
                *[
                    near(f"how near g = 1 comes after {place} tokens, radians", float(away_NP[place, 0]), miss, 1e-9)
                    for place, miss in NEAR_MISSES.items()
                ],
                near("its nearest miss is after as many tokens", int(away_NP[1:, 0].argmin()) + 1, 710, 0),
                near("tokens until a pair with g = 2 pi / 7 returns",
                     int((seventh[1:, 0] < ROUNDING).nonzero()[0]) + 1, 7, 0),
            ],
            Picture(
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


def angles(frequencies_P: Tensor) -> Tensor:
    """n g mod 2 pi for n = 0 .. LONGEST - 1 as this program rotates, between -pi and pi: [N, P]."""
    cos, sin = rotation(torch.arange(LONGEST)[None], frequencies_P)
    n_pairs = len(frequencies_P)
    return torch.atan2(sin[0, :, n_pairs:], cos[0, :, n_pairs:])
