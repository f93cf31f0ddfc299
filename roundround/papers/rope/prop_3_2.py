"""Proposition 3.2: RoPE does not make random queries and keys decay."""

from __future__ import annotations

import math
from typing import ClassVar, final

import torch
from torch import Tensor

from roundround.papers.claim import Claim, Comparison, Curve, Finding, Picture, near
from roundround.papers.constructions import HEAD_DIM, frequencies, rotated

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
        means, variances = [], []
        for r in DISTANCES:
            logits_N = (q_NC * rotated(k_NC, torch.tensor([-r]), frequencies())).sum(-1)
            means.append(float(logits_N.mean()))
            variances.append(float(logits_N.var()))
        return Finding([*compared(means, variances)], picture(means, variances))


def gaussians() -> tuple[Tensor, Tensor]:
    """Queries and keys, [SAMPLES, C] each."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(2, SAMPLES, HEAD_DIM, generator=generator, dtype=torch.float64)
    return drawn[0], drawn[1]


def compared(means: list[float], variances: list[float]) -> list[Comparison]:
    """Within `ERRORS` standard errors of 0 and of d."""
    found = []
    for r, mean, variance in zip(DISTANCES, means, variances, strict=True):
        found.append(near(f"mean logit at distance {r:,}", mean, 0.0, ERRORS * MEAN_ERROR, published=0.0))
        found.append(near(f"its variance at distance {r:,}", variance, HEAD_DIM, ERRORS * VARIANCE_ERROR))
    return found


def picture(means: list[float], variances: list[float]) -> Picture:
    """Both in units of sqrt(d); distance 0 has no place on the axis."""
    x, unit = DISTANCES[1:], math.sqrt(HEAD_DIM)
    return Picture(
        "distance in tokens",
        "logit over the square root of d",
        [
            Curve("mean", x, [mean / unit for mean in means[1:]], points=True),
            Curve("standard deviation", x, [math.sqrt(variance) / unit for variance in variances[1:]], points=True),
            Curve("expected mean", x, [0.0] * len(x)),
            Curve("expected standard deviation", x, [1.0] * len(x)),
        ],
        log="x",
    )
