"""Proposition 3.1: RoPE need not prefer what is near."""

from __future__ import annotations

from typing import ClassVar, final

import torch
from torch import Tensor

from roundround.papers.claim import Claim, Comparison, Curve, Finding, Picture, at_least, at_most, near
from roundround.papers.constructions import HEAD_DIM, frequencies, ladder_by_formula, logits, random_vector, turned

CHOSEN, LONGEST = (0, 1, 5, 100, 3000), 8192  # distances at which the maximum is asked for; distances looked at
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
        q, distances = random_vector(HEAD_DIM, seed=0), torch.arange(LONGEST)
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
        picture = Picture("distance in tokens", f"logit over |q|^2, largest of {BLOCK} tokens", curves)
        return Finding([*comparisons, *of_equal_norms()], picture)


def of_equal_norms() -> list[Comparison]:
    """The same where every pair has the same norm: the logit falls fast to 0.74, and never comes back."""
    f_N = mean_cosine(FAR)
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


def mean_cosine(n: int) -> Tensor:
    """Logit of equal vectors at distances 0 .. n-1 as a share of that at 0: [n]."""
    ones = torch.ones(HEAD_DIM, dtype=torch.float64)
    blocks = [torch.arange(a, min(a + LONGEST, n)) for a in range(0, n, LONGEST)]
    return torch.cat([logits(ones, ones, block, frequencies()) for block in blocks]) / HEAD_DIM
