"""What p-RoPE guarantees for the pairs that it does not rotate."""

from __future__ import annotations

import math
from typing import ClassVar, final

import numpy as np
import torch
from torch import Tensor

from roundround.papers.claim import Claim, Comparison, Curve, Finding, Picture, at_least, at_most, near
from roundround.papers.constructions import (
    HEAD_DIM,
    THETA,
    frequencies,
    ladder_by_formula,
    logits,
    random_vector,
    shape,
    weights,
)
from roundround.pe.p_rope import PRoPE

FRACTIONS = (0.25, 0.5, 0.75)
PAIRS = HEAD_DIM // 2
DISTANCES = torch.cat([torch.arange(64), torch.logspace(1.81, 6, 2000, dtype=torch.float64).long()])  # tokens
SHOWN = torch.arange(0, 20_000, 40)


def by_formula(p: float, distances_N: Tensor) -> np.ndarray:
    """mean over all pairs of cos(r g_k), g_k = 0 for those that p-RoPE leaves alone."""
    g_P = ladder_by_formula().numpy().copy()
    g_P[int(p * PAIRS) :] = 0.0
    mean_N: np.ndarray = np.cos(np.outer(distances_N.numpy(), g_P)).mean(1)
    return mean_N


@final
class PRopeGuarantee(Claim):
    """What do p-RoPE's unrotated pairs guarantee? Their share of a logit is the same at every distance, so an order
    of two keys is safe at any length where their lead there exceeds what the rotated pairs can take; a weight is not.

    a(r) = s + sum_{k <= pP} |q_k| |k_k| cos(r g_k + phase_k), s without r; |a(r) - s| <= B = sum_{k <= pP} |q_k| |k_k|;
    lead s - s' > B + B' keeps the order

    Asked of Barbero et al. 2024, arXiv:2410.06205, section 6.1; the bound is derived here.
    """

    title: ClassVar[str] = "what p-RoPE's unrotated pairs guarantee"

    def check(self) -> Finding:
        comparisons: list[Comparison] = []
        curves = []
        for p in FRACTIONS:
            comparisons += [self.constant(p), *self.of_the_rest(p)]
            curves.append(Curve(f"p = {p:g}", SHOWN, by_program(p, SHOWN)))
        rope_N = by_program(1.0, DISTANCES)
        comparisons += [
            at_most("least logit of an aligned key under RoPE, over that at distance 0", float(rope_N.min()), 0.0),
            self.slow_pairs_of_rope(),
            *self.order_is_kept(),
            self.weight_is_not_kept(),
        ]
        curves.append(Curve("RoPE", SHOWN, by_program(1.0, SHOWN)))
        return Finding(
            comparisons, Picture("distance in tokens", "logit of an aligned key over that at 0", curves), REMARK
        )

    def constant(self, p: float) -> Comparison:
        """The unrotated pairs' share, of random queries and keys."""
        q, k, kept = random_vector(HEAD_DIM, seed=0), random_vector(HEAD_DIM, seed=1), int(p * PAIRS)
        still = torch.cat([torch.arange(PAIRS) >= kept] * 2)
        share_N = logits(q * still, k * still, DISTANCES, p_rope(p))
        return near(
            f"change of the unrotated pairs' share up to 1,000,000 tokens, p = {p:g}",
            float(share_N.max() - share_N.min()),
            0,
            1e-9,
        )

    def of_the_rest(self, p: float) -> list[Comparison]:
        """An aligned key of equal pairs: how far the rotated ones pull its logit down, against the bound."""
        ours_N, formula_N = by_program(p, DISTANCES), by_formula(p, DISTANCES)
        rotated = int(p * PAIRS) / PAIRS
        least = float(ours_N.min())
        return [
            near(f"error against the formula, p = {p:g}", float(np.abs(ours_N.numpy() - formula_N).max()), 0, 1e-9),
            at_least(f"least logit up to 1,000,000 tokens, over that at 0, p = {p:g}", least, 1 - 2 * rotated),
            at_most(
                f"most that the rotated pairs take, as a share of their bound, p = {p:g}",
                (1 - rotated - least) / rotated,
                1.0,
            ),
        ]

    def slow_pairs_of_rope(self) -> Comparison:
        """The same pairs rotated: what the guarantee is worth."""
        g_P = frequencies()[int(0.75 * PAIRS) :]
        unit = torch.cat([torch.ones_like(g_P), torch.zeros_like(g_P)]) / math.sqrt(len(g_P))
        return at_most(
            "least share of the slowest quarter under RoPE, over that at 0",
            float(logits(unit, unit, DISTANCES, g_P).min()),
            0.0,
        )

    def order_is_kept(self) -> list[Comparison]:
        """Of random queries and pairs of keys at any distances each: the lead that is needed, over B + B'."""
        shares = []
        for seed in range(40):
            q, k, other = (random_vector(HEAD_DIM, seed=3 * seed + i) for i in range(3))
            rotated = torch.cat([torch.arange(PAIRS) < int(0.75 * PAIRS)] * 2)
            taken = (
                logits(q * rotated, other, DISTANCES, p_rope(0.75)).max()
                - logits(q * rotated, k, DISTANCES, p_rope(0.75)).min()
            )
            shares.append(float(taken) / both_bounds(q, k, other, int(0.75 * PAIRS)))
        return [
            at_most(
                "lead that keeps the order of two random keys, over B + B', most of 40, p = 0.75", max(shares), 1.0
            ),
            at_least("the same, least of 40", min(shares), 0.05),
        ]

    def weight_is_not_kept(self) -> Comparison:
        """Lemma 2.1 holds for p-RoPE too."""
        row_N = torch.zeros(1, 1_000_000, dtype=torch.float64)
        row_N[0, 0] = 8.0
        return at_most(
            "weight of a key that leads by 8 nats at every distance, among 1,000,000",
            float(weights(row_N)[0, 0]),
            math.exp(8) / 1e6,
        )


REMARK = (
    "The bound is safe and loose: aligned keys of equal pairs and random keys alike lose a quarter to two fifths of "
    "it within a million tokens. The guarantee is of the logit alone: by Lemma 2.1 the weight still falls as 1/n."
)


def p_rope(p: float) -> Tensor:
    """p-RoPE's frequencies, float64."""
    return PRoPE(shape(), p=p, theta=THETA).frequencies(torch.float64)


def by_program(p: float, distances_N: Tensor) -> Tensor:
    """Logit of a key like the query, all pairs of equal norm, over that at distance 0."""
    unit = torch.cat([torch.ones(PAIRS), torch.zeros(PAIRS)]).double() / math.sqrt(PAIRS)
    return torch.cat([logits(unit, unit, some, p_rope(p)) for some in torch.split(distances_N, 4096)])


def both_bounds(q_C: Tensor, k_C: Tensor, other_C: Tensor, kept: int) -> float:
    """B + B' of the pairs that rotate."""
    pairs = [x_C.view(2, PAIRS).norm(dim=0)[:kept] for x_C in (q_C, k_C, other_C)]
    return float((pairs[0] * (pairs[1] + pairs[2])).sum())
