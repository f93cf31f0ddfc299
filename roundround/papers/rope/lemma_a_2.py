"""Lemma A.2: the angles of a pair come near to every angle."""

from __future__ import annotations

import math
from typing import ClassVar, final

import torch
from torch import Tensor

from roundround.papers.claim import Claim, Curve, Finding, Picture, at_most, near
from roundround.papers.constructions import frequencies
from roundround.pe.rotary import rotation

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
            g = float(frequencies()[pair])
            few = angles(pair, parts + 1).abs()
            n = int(few[1:].argmin()) + 1
            step = float(few[n])
            longest = min(n * math.ceil(2 * math.pi / step) + 1, LONGEST)
            all_angles = angles(pair, longest)
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
        return Finding(comparisons, Picture("tokens n", "largest gap between angles, radians", curves, log="xy"))


def angles(pair: int, n: int) -> Tensor:
    """0, g, 2g, ..., (n - 1) g as this program rotates, between -pi and pi: [n]."""
    cos, sin = rotation(torch.arange(n)[None], frequencies()[pair : pair + 1])
    return torch.atan2(sin[0, :, 1], cos[0, :, 1])


def largest_gap(angles_N: Tensor) -> float:
    """Between neighbours on the circle, radians."""
    sorted_N = angles_N.sort().values
    around = torch.cat([sorted_N, sorted_N[:1] + 2 * math.pi])
    return float(around.diff().max())
