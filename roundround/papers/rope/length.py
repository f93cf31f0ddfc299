"""What length does to RoPE beyond the theorems: confusion of places and tokens, and bands of frequencies.

Tested by tests/papers/test_beyond_claims.py.
"""

from __future__ import annotations

import math
from typing import ClassVar, final

import numpy as np
import torch
from torch import Tensor

from roundround.papers.claim import Claim, Comparison, Finding, at_least, at_most, near
from roundround.papers.constructions import (
    aligned,
    aligned_by_formula,
    frequencies,
    ladder_by_formula,
    p_rope_frequencies,
    random_vector,
    rotated,
    weights,
)
from roundround.support.panels import Curve, Panel

HEAD_DIM = 128  # that of Llama
SHORT, LONG = 256, 2**24  # contexts in tokens: the longest is far beyond every wavelength
CONTEXTS = tuple(4**k for k in range(4, 13))
KINDS = {"theta = 10,000": (1.0, 1e4), "theta = 500,000": (1.0, 5e5), "p-RoPE 0.75, theta = 10,000": (0.75, 1e4)}
PAIRS_OF_PLACES, DRAWS = 4000, 4000
SAMPLING = 0.032  # four standard errors of a share of 4,000 draws, 4 * 0.5 / sqrt(4000)


def token_failure(distance_N: np.ndarray, theta: float, p: float = 1.0) -> np.ndarray:
    """P(the order of two Gaussian keys differs between two places that lie this far apart), by the arcsine law.

    The logits' difference at both places is normal with correlation sum |q_k|^2 cos(distance g_k) / |q|^2.
    """
    g_P = theta ** (-2 * np.arange(HEAD_DIM // 2) / HEAD_DIM)
    g_P[int(p * HEAD_DIM // 2) :] = 0.0
    chance_N: np.ndarray = np.arccos(aligned_by_formula(distance_N, g_P).clip(-1, 1)) / math.pi
    return chance_N


@final
class Confusion(Claim):
    """Does the probability that RoPE prefers the farther of two places, or the other of two tokens once both have
    moved, grow to 1/2 with the context? Yes, from far below; p-RoPE's unrotated pairs keep the latter below it.

    places: P(a(r) < a(r')), r < r' uniform in the context, a(r) = sum_k cos(r g_k), the key like the query

    tokens: P(sign(a_1 - a_2) differs at r and r') = E arccos(mean_k cos((r - r') g_k)) / pi for Gaussian keys

    Claimed in arXiv:2605.15514, of which the abstract alone was seen: which queries, keys and places it draws is not
    known; these are ours.
    """

    title: ClassVar[str] = "RoPE confuses places and tokens at length"

    def check(self) -> Finding:
        shares = {name: list(zip(*(confused(n, *kind) for n in CONTEXTS), strict=True)) for name, kind in KINDS.items()}
        places, tokens = ({name: found[which] for name, found in shares.items()} for which in (0, 1))
        usual, large, p_rope = KINDS
        limit = math.acos(0.25) / math.pi  # the unrotated quarter of the pairs is all that is left of the correlation
        comparisons: list[Comparison] = self.law()
        for what, found, allowed in (("places", places, SAMPLING), ("tokens", tokens, 0.02)):
            for name in (usual, large):
                comparisons += [
                    Comparison(f"{what}, {name}, context of 256", found[name][0], 0.0, 0.45),
                    near(f"{what}, {name}, context of 16.8 million", found[name][-1], 0.5, allowed),
                ]
        lost, kept = places[large][0] - places[usual][0], tokens[usual][0] - tokens[large][0]
        comparisons += [
            at_least("tokens, context of 256: theta = 10,000 less 500,000", kept, 0.0),
            at_least("places, context of 256: theta = 500,000 less 10,000", lost, 0.0),
            near("tokens, p-RoPE 0.75, context of 16.8 million, against arccos(1/4) / pi", tokens[p_rope][-1], limit,
                 0.01),
        ]  # fmt: skip
        curves = [Curve(f"places, {name}", CONTEXTS, places[name]) for name in (usual, large)]
        curves += [Curve(f"tokens, {name}", CONTEXTS, tokens[name]) for name in KINDS]
        remark = (
            f"At 65,536 tokens of context, theta = 10,000 and 500,000: tokens {tokens[usual][4]:.3f} and "
            f"{tokens[large][4]:.3f}, places {places[usual][4]:.3f} and {places[large][4]:.3f}. Within 256 tokens the "
            f"larger base helps tokens ({tokens[usual][0]:.3f}, {tokens[large][0]:.3f}) and costs places "
            f"({places[usual][0]:.3f}, {places[large][0]:.3f}), the trade that the paper tells "
            "of; at length it helps both here. Places are asked of a key like the query: for Gaussian keys they are "
            "at 1/2 at any length, by symmetry. Allowed about 1/2: four standard errors for places, 0.02 of "
            "correlation left for tokens."
        )
        return Finding(comparisons, Panel("context in tokens", "probability of confusion", curves, log="x"), remark)

    def law(self) -> list[Comparison]:
        """Random queries and keys through this program's rotation, against the arcsine law."""
        found = []
        for apart in (10, 1000, 100_000):
            share = share_reversed(apart)
            expected = float(token_failure(np.array([apart]), 1e4)[0])
            found.append(
                near(f"share of Gaussian keys whose order differs {apart:,} tokens on", share, expected, SAMPLING)
            )
        return [*found, at_least("the same 10 tokens on: less often than at random", 0.5 - share_reversed(10), 0.1)]


def like_the_query(distances_N: Tensor, p: float, theta: float) -> Tensor:
    """Logit of a key like the query, all pairs of equal norm: [N]."""
    return aligned(distances_N, p_rope_frequencies(p, HEAD_DIM, theta))


def confused(context: int, p: float, theta: float) -> tuple[float, float]:
    """Of pairs of places, uniform in the context and never equal: how often the farther has the larger logit, and the
    mean probability that two Gaussian keys change their order, whose rotation is the program's, the law the formula's.
    """
    both = torch.randint(context, (2, PAIRS_OF_PLACES), generator=torch.Generator().manual_seed(context))
    both = both[:, both[0] != both[1]]
    near_N, far_N = both.amin(0), both.amax(0)
    wrong_N = like_the_query(near_N, p, theta) < like_the_query(far_N, p, theta)
    correlation_N = like_the_query(far_N - near_N, p, theta).clamp(-1, 1)
    return float(wrong_N.double().mean()), float((correlation_N.acos() / math.pi).mean())


def share_reversed(apart: int) -> float:
    """Of random keys with an equal-norm query, whether they come in another order that many tokens on."""
    g_P = p_rope_frequencies(1.0, HEAD_DIM)
    q = torch.cat([torch.ones_like(g_P), torch.zeros_like(g_P)])
    difference_NC = random_vector(DRAWS, HEAD_DIM, seed=apart)
    signs_2N = (rotated(q, torch.tensor([0, apart]), g_P) @ difference_NC.T).sign()
    return float((signs_2N[0] != signs_2N[1]).double().mean())


TARGET, OTHER = 64.0, 8.0  # q . k at zero angle, split evenly over the pairs: as in the check of the theorem itself
BANDS = {"110 to 120": (110, 120), "115 alone": (115, 115), "100 to 128": (100, 128), "1 to 128": (1, 128)}  # k, from 1
LENGTHS = (1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
STRONGER = 10.0  # both logits, as a control
GEMMA = "110 to 120"


@final
class Thm61Wide(Claim):
    """Is a semantic channel of many low frequencies robust where one of a single frequency is not? No: the bands seen
    in Gemma lose their target from the same length on, and more often.

    q . k_target(r) = 64 mean_k cos(r g_k), q . k_other(r) = 8 mean_k cos(r g_k); lost where alpha_target <= 1/2, the
    target at each of N distances in turn; g_k = 10000^(-2(k-1)/256)

    Asked in Barbero et al. 2024, arXiv:2410.06205, section 5, which proves Theorem 6.1 for one frequency and calls
    higher dimensions open; answered here numerically.
    """

    title: ClassVar[str] = "bands of low frequencies lose their target too"

    def check(self) -> Finding:
        comparisons: list[Comparison] = []
        curves, first_turn, lost = [], {}, {}
        for name, (first, last) in BANDS.items():
            unit_N = channel(first, last, LENGTHS[-1] if last - first < 64 else LENGTHS[3])
            kept = [n for n in LENGTHS if n <= len(unit_N)]
            lost[name] = [share_lost(unit_N[:n]) for n in kept]
            first_turn[name] = next(iter((unit_N < 0).nonzero()[:, 0].tolist()), len(unit_N))
            curves.append(Curve(f"k = {name}", kept, lost[name]))
            if name == GEMMA:
                stronger = share_lost(STRONGER * unit_N)
        quarter = quarter_turn(*BANDS[GEMMA])
        low, high = quarter_turn(110, 110), quarter_turn(120, 120)
        comparisons += [
            Comparison(
                "first distance at which the target's logit is negative, k = 110 to 120", first_turn[GEMMA], low, high
            ),
            at_most("share of positions lost at N = 1,000, k = 110 to 120", lost[GEMMA][0], 0.0),
            Comparison("share lost at N = 100,000, k = 115 alone", lost["115 alone"][-1], 0.5, 0.7),
            at_least("share lost at N = 100,000, k = 110 to 120", lost[GEMMA][-1], 0.5),
            at_least("the same less that of the single frequency", lost[GEMMA][-1] - lost["115 alone"][-1], 0.0),
            at_least("share lost at N = 100,000, k = 110 to 120, all logits ten times as large", stronger, 0.5),
            at_least("share lost at N = 100,000, k = 100 to 128", lost["100 to 128"][-1], 0.5),
            at_least("share lost at N = 10,000, all pairs", lost["1 to 128"][-1], 0.5),
        ]
        formula_N = aligned_by_formula(np.arange(1, 2000, 333), ladder_by_formula()[109:120])
        exact = channel(110, 120, 2000)[1::333] - torch.from_numpy(formula_N)
        comparisons.append(
            at_most("largest error of the rotated logit against the formula", float(exact.abs().max()), 1e-9)
        )
        remark = (
            f"Onset: a quarter turn, {quarter:,.0f} tokens, for the band as for one pair. The wide band loses more, "
            "since its frequencies fall out of step: the target's logit never comes back to 64, while the others' "
            f"weight grows with ln N. Shares lost at N = 100,000: {lost[GEMMA][-1]:.3f} for k = 110 to 120 "
            f"({stronger:.3f} with ten times the logits), {lost['115 alone'][-1]:.3f} for k = 115, "
            f"{lost['100 to 128'][-1]:.3f} for k = 100 to 128. At least one half was to be expected: at half of the "
            "distances a mean of cosines is negative. Not settled: a proof, and channels whose pairs are out of "
            "phase from the start."
        )
        return Finding(
            comparisons,
            Panel("context N in tokens", "share of positions where the target loses", curves, "x"),
            remark,
        )


def channel(first: int, last: int, n: int) -> Tensor:
    """Mean of cos(r g_k) over the pairs first..last at distances 0..n - 1, by this program's rotation: [n]."""
    return aligned(torch.arange(n), frequencies()[first - 1 : last])


def share_lost(unit_N: Tensor) -> float:
    """Share of the positions of a target at which it has half of the weight or less, every other position another's."""
    others_N = (OTHER * unit_N).exp()
    rest_N = (others_N.sum() - others_N).log()  # all others as one key
    alpha_N = weights(torch.stack([TARGET * unit_N, rest_N], -1))[:, 0]
    return float((alpha_N <= 0.5).double().mean())


def quarter_turn(first: int, last: int) -> float:
    """Distance in tokens after which the mean frequency of the pairs has made a quarter turn."""
    return math.pi / 2 / float(ladder_by_formula()[first - 1 : last].mean())
