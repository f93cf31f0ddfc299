"""Proposition 3.2: a lower temperature lowers the entropy."""

from __future__ import annotations

from typing import ClassVar, final

import numpy as np
import torch
from torch import Tensor

from roundround.attention.row_measures import entropy_of_logits, entropy_of_weights
from roundround.papers.claim import Claim, Curve, Finding, Picture, at_most, near
from roundround.papers.constructions import random_vector, weights_at

BETAS, STEP, KEYS = (0.3, 1.0, 2.5), 1e-4, 64
GRID = np.linspace(0.05, 6, 120)  # of beta
TOLERANCE = 1e-6  # a central difference at STEP errs by STEP^2 / 6 of the third derivative, and by 1e-15 / STEP


def slope_by_formula(beta: float, logits_K: Tensor) -> float:
    """-beta Var(e), the variance under softmax(beta e), written out."""
    e = logits_K.numpy()
    p = np.exp(beta * e - (beta * e).max())
    p /= p.sum()
    return float(-beta * (p @ e**2 - (p @ e) ** 2))


@final
class Prop32(Claim):
    """A larger inverse temperature always lowers the entropy of a row, unless all its logits are equal.

    dH / dbeta = -beta Var(e) <= 0, the variance under softmax(beta e), H in nats

    Velickovic et al. 2024, arXiv:2410.01104, Proposition 3.2 by memory of its number; the formula is derived here.
    """

    title: ClassVar[str] = "entropy falls with the temperature"

    def check(self) -> Finding:
        logits_K = random_vector(KEYS, seed=0)
        comparisons = []
        for beta in BETAS:
            difference = (entropy(beta + STEP, logits_K) - entropy(beta - STEP, logits_K)) / (2 * STEP)
            name = f"dH/dbeta at beta = {beta:g} by finite differences"
            comparisons.append(near(name, difference, slope_by_formula(beta, logits_K), TOLERANCE))
            direct = entropy_of_logits(beta * logits_K[None], torch.ones(1, KEYS, dtype=torch.bool))
            name = f"entropy from logits less that from weights, beta = {beta:g}"
            comparisons.append(near(name, float(direct) - entropy(beta, logits_K), 0.0, 1e-12))
        entropies = [entropy(beta, logits_K) for beta in GRID]
        slopes = [slope_by_formula(beta, logits_K) for beta in GRID]
        comparisons += [
            at_most("largest step of the entropy along beta from 0.05 to 6", float(np.diff(entropies).max()), 0.0),
            near(
                "entropy at beta = 0.05, less ln 64 and the slope's integral",
                self.rest(entropies[0], logits_K),
                0,
                1e-6,
            ),
            near(
                "change of the entropy of equal logits from beta = 0.5 to 1.5",
                entropy(1.5, 0 * logits_K) - entropy(0.5, 0 * logits_K),
                0.0,
                1e-12,
            ),
        ]
        points = np.array([entropy(b, logits_K) for b in BETAS])
        curves = [Curve("entropy", GRID, entropies), Curve("-dH/dbeta = beta Var(e)", GRID, -np.array(slopes))]
        curves.append(Curve("where differences were taken", BETAS, points, points=True))
        return Finding(comparisons, Picture("inverse temperature beta", "nats, and nats per unit of beta", curves))

    def rest(self, found: float, logits_K: Tensor) -> float:
        """What is left of the entropy at the first beta when ln n and the integral of the formula are taken away."""
        betas = np.linspace(0, GRID[0], 201)
        slopes = torch.tensor([slope_by_formula(beta, logits_K) for beta in betas], dtype=torch.float64)
        return float(found - np.log(KEYS) - torch.trapezoid(slopes, torch.from_numpy(betas)))


def entropy(beta: float, logits_K: Tensor) -> float:
    """Of the row at this inverse temperature, in nats, by this program."""
    return float(entropy_of_weights(weights_at(1 / beta, logits_K[None])[0]))
