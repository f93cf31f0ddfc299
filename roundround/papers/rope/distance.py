"""Propositions 3.1 and 3.2: RoPE need not prefer what is near, and random queries and keys do not decay."""

from __future__ import annotations

import math
from typing import ClassVar, final

import torch
from torch import Tensor

from roundround.papers.claim import Claim, Comparison, Finding, at_least, at_most, near
from roundround.papers.constructions import (
    HEAD_DIM,
    frequencies,
    ladder_by_formula,
    logits,
    random_vector,
    rotated,
    turned,
)
from roundround.support.panels import Curve, Panel

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
        picture = Panel("distance in tokens", f"logit over |q|^2, largest of {BLOCK} tokens", curves)
        return Finding([*comparisons, *of_equal_norms()], picture)


def of_equal_norms() -> list[Comparison]:
    """The same where every pair has the same norm: the logit falls fast to 0.74, and never comes back."""
    ones = torch.ones(HEAD_DIM, dtype=torch.float64)
    blocks = torch.split(torch.arange(FAR), LONGEST)
    f_N = torch.cat([logits(ones, ones, block, frequencies()) for block in blocks]) / HEAD_DIM
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
        comparisons: list[Comparison] = []
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
