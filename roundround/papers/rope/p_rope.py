"""What p-RoPE's unrotated pairs guarantee, and whether a soft cut of its frequencies leaks less than the hard one.

Tested by tests/papers/test_beyond_claims.py.
"""

from __future__ import annotations

import math
from typing import ClassVar, final

import numpy as np
import torch
from torch import Tensor

from roundround.papers.claim import (
    Claim,
    Comparison,
    Finding,
    at_least,
    at_most,
    near,
)
from roundround.papers.constructions import (
    HEAD_DIM,
    THETA,
    aligned,
    aligned_by_formula,
    frequencies,
    ladder_by_formula,
    logits,
    p_rope_frequencies,
    random_vector,
    weights,
)
from roundround.support.panels import Curve, Panel

FRACTIONS = (0.25, 0.5, 0.75)
PAIRS = HEAD_DIM // 2
DISTANCES = torch.cat([torch.arange(64), torch.logspace(1.81, 6, 2000, dtype=torch.float64).long()])  # tokens
SHOWN = torch.arange(0, 20_000, 40)


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
            q, k, kept = random_vector(HEAD_DIM, seed=0), random_vector(HEAD_DIM, seed=1), int(p * PAIRS)
            still = torch.cat([torch.arange(PAIRS) >= kept] * 2)
            share_N = logits(q * still, k * still, DISTANCES, p_rope_frequencies(p))
            change, what = float(share_N.max() - share_N.min()), "change of the unrotated pairs' share"
            comparisons += [near(f"{what} up to 1,000,000 tokens, p = {p:g}", change, 0, 1e-9), *self.of_the_rest(p)]
            curves.append(Curve(f"p = {p:g}", SHOWN, aligned(SHOWN, p_rope_frequencies(p))))
        rope_N = aligned(DISTANCES, p_rope_frequencies(1.0))
        row_1N = torch.zeros(1, 1_000_000, dtype=torch.float64)  # Lemma 2.1 holds for p-RoPE too
        row_1N[0, 0] = 8.0
        slowest_N = aligned(DISTANCES, frequencies()[int(0.75 * PAIRS) :])  # what the guarantee is worth
        comparisons += [
            at_most("least logit of an aligned key under RoPE, over that at distance 0", float(rope_N.min()), 0.0),
            at_most("least share of the slowest quarter under RoPE, over that at 0", float(slowest_N.min()), 0.0),
            *self.order_is_kept(),
            at_most("weight of a key that leads by 8 nats at every distance, among 1,000,000",
                    float(weights(row_1N)[0, 0]), math.exp(8) / 1e6),
        ]  # fmt: skip
        curves.append(Curve("RoPE", SHOWN, aligned(SHOWN, p_rope_frequencies(1.0))))
        remark = (
            "The bound is safe and loose: aligned keys of equal pairs and random keys alike lose a quarter to two "
            "fifths of it within a million tokens. The guarantee is of the logit alone: by Lemma 2.1 the weight still "
            "falls as 1/n."
        )
        return Finding(
            comparisons, Panel("distance in tokens", "logit of an aligned key over that at 0", curves), remark
        )

    def of_the_rest(self, p: float) -> list[Comparison]:
        """An aligned key of equal pairs: how far the rotated ones pull its logit down, against the bound."""
        g_P = ladder_by_formula()
        g_P[int(p * PAIRS) :] = 0.0
        ours_N, formula_N = aligned(DISTANCES, p_rope_frequencies(p)), aligned_by_formula(DISTANCES, g_P)
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

    def order_is_kept(self) -> list[Comparison]:
        """Of random queries and pairs of keys at any distances each: the lead that is needed, over B + B'."""
        shares = []
        for seed in range(40):
            q, k, other = (random_vector(HEAD_DIM, seed=3 * seed + i) for i in range(3))
            rotated = torch.cat([torch.arange(PAIRS) < int(0.75 * PAIRS)] * 2)
            taken = (
                logits(q * rotated, other, DISTANCES, p_rope_frequencies(0.75)).max()
                - logits(q * rotated, k, DISTANCES, p_rope_frequencies(0.75)).min()
            )
            shares.append(float(taken) / both_bounds(q, k, other, int(0.75 * PAIRS)))
        return [
            at_most(
                "lead that keeps the order of two random keys, over B + B', most of 40, p = 0.75", max(shares), 1.0
            ),
            at_least("the same, least of 40", min(shares), 0.05),
        ]


def both_bounds(q_C: Tensor, k_C: Tensor, other_C: Tensor, kept: int) -> float:
    """B + B' of the pairs that rotate."""
    pairs = [x_C.view(2, PAIRS).norm(dim=0)[:kept] for x_C in (q_C, k_C, other_C)]
    return float((pairs[0] * (pairs[1] + pairs[2])).sum())


P = 0.75  # pairs that p-RoPE keeps
WIDTH = 0.25  # of the pairs, over which the soft cut falls from 1 to 0 where the hard one falls at once
FASTEST = 0.25  # of the pairs: left out, and eased in over WIDTH, where the slow end is looked at alone
FINE = 64 * HEAD_DIM  # a ladder so dense that, without its fastest quarter, it is an integral over the frequencies
N_DISTANCES, TURNS = 300, (1.0, 6.0)  # distances as turns of the slowest pair that is kept
MIDDLES = np.arange(TURNS[0] + 0.25, TURNS[1], 0.5)  # of half turns, as the figure shows them
TURN = 2 * math.pi * math.pow(THETA, P)  # tokens of one turn of the frequency at the hard cut
OF_CUTS = torch.linspace(TURNS[0] * TURN, TURNS[1] * TURN, N_DISTANCES, dtype=torch.float64).round().long()  # tokens
LADDERS = {"dense": (FINE, True), "128 pairs, slow end": (HEAD_DIM, True), "128 pairs, all": (HEAD_DIM, False)}


@final
class SoftCut(Claim):
    """Does a soft cut of the slow frequencies leak less than p-RoPE's hard one? On a dense ladder far less; on the
    128 pairs of a head of 256 it makes no difference, since the gaps between the fast pairs leak more than either
    cut.

    K(r) = sum_k w_k cos(r g_k) / sum_k w_k; hard: w = 1 for k <= 3/4 of the pairs, else 0; soft: w falls as (1 + cos)
    / 2 over the last quarter of the pairs before there; leakage: root mean square of K from 1 to 6 turns of the
    slowest pair kept

    Asked of Barbero et al. 2024, arXiv:2410.06205, section 6.1, by arXiv:2602.05258, which finds that hard clipping
    leaks; its clipped pairs and transition are not known here, these are ours.
    """

    title: ClassVar[str] = "a soft cut leaks less where the ladder is dense"

    def check(self) -> Finding:
        comparisons: list[Comparison] = []
        curves, leaked = [], {}
        for ladder, (head_dim, slow_end) in LADDERS.items():
            for cut, window in (("hard", hard), ("soft", soft)):
                weights_P = window(head_dim) * ((1 - (math.pi * way(head_dim, FASTEST)).cos()) / 2 if slow_end else 1.0)
                sum_N = window_by_program(head_dim, weights_P)
                leaked[ladder, cut] = float(sum_N.square().mean().sqrt())
                g_P = THETA ** (-2 * np.arange(head_dim // 2) / head_dim)
                formula_N = np.cos(np.outer(OF_CUTS.numpy(), g_P)) @ weights_P.numpy() / weights_P.numpy().sum()
                error = np.abs(sum_N.numpy() - formula_N).max()
                comparisons.append(near(f"largest error against the formula, {cut}, {ladder}", error, 0, 1e-8))
                curves.append(Curve(f"{cut}, {ladder}", MIDDLES, sum_N.view(len(MIDDLES), -1).square().mean(-1).sqrt()))
        ratio = {ladder: leaked[ladder, "soft"] / leaked[ladder, "hard"] for ladder in LADDERS}
        comparisons += [
            at_most("leakage of the soft cut over the hard one's, dense ladder", ratio["dense"], 0.5),
            Comparison("the same, all 128 pairs", ratio["128 pairs, all"], 0.8, 1.25),
            at_most(
                "leakage of the hard cut, dense ladder, over that of 128 pairs",
                leaked["dense", "hard"] / leaked["128 pairs, all", "hard"],
                1.0,
            ),
        ]
        summary = "; ".join(
            f"{name}: {leaked[name, 'hard']:.4f} hard, {leaked[name, 'soft']:.4f} soft, ratio {ratio[name]:.2f}"
            for name in LADDERS
        )
        remark = (
            f"Leakage as a share of K(0): {summary}. A smooth edge was expected to leak less than half of a step's; "
            "0.8 to 1.25 stands for no difference that would matter. Not settled: whether training cares, and the "
            "transition that arXiv:2602.05258 uses."
        )
        label = "root mean square of K(r) / K(0) over half a turn"
        return Finding(comparisons, Panel("distance in turns of the slowest pair kept", label, curves, "y"), remark)


def hard(head_dim: int) -> Tensor:
    """p-RoPE's window over the pairs: 1 for those that it rotates."""
    return (p_rope_frequencies(P, head_dim) > 0).double()


def soft(head_dim: int) -> Tensor:
    """The raised cosine over the pairs."""
    return (1 + (math.pi * way(head_dim, P - WIDTH)).cos()) / 2


def way(head_dim: int, start: float) -> Tensor:
    """How far each pair is on its way from this share of all pairs to WIDTH more, from 0 to 1."""
    place_P = torch.arange(head_dim // 2, dtype=torch.float64) / (head_dim // 2)
    return ((place_P - start) / WIDTH).clamp(0, 1)


def window_by_program(head_dim: int, weights_P: Tensor) -> Tensor:
    """K(r) by this program's rotation: the query carries the window, the key is one on each pair."""
    g_P = p_rope_frequencies(1.0, head_dim)
    kept = weights_P > 0
    w_P, none_P = weights_P[kept] / weights_P.sum(), torch.zeros(int(kept.sum()), dtype=torch.float64)
    q, k = torch.cat([w_P, none_P]), torch.cat([torch.ones_like(w_P), none_P])
    return torch.cat([logits(q, k, some, g_P[kept]) for some in torch.split(OF_CUTS, 100)])
