"""Does the probability that RoPE confuses positions or tokens grow to one half with the context?"""

from __future__ import annotations

import math
from typing import ClassVar, final

import numpy as np
import torch
from torch import Tensor

from roundround.papers.claim import Claim, Comparison, Curve, Finding, Picture, at_least, near
from roundround.papers.constructions import logits, rotated, shape
from roundround.pe.p_rope import PRoPE

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
    correlation = np.cos(np.outer(distance_N, g_P)).mean(1)
    chance_N: np.ndarray = np.arccos(correlation.clip(-1, 1)) / math.pi
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
        places = {name: [places_confused(n, *kind) for n in CONTEXTS] for name, kind in KINDS.items()}
        tokens = {name: [tokens_confused(n, *kind) for n in CONTEXTS] for name, kind in KINDS.items()}
        comparisons: list[Comparison] = [*self.law(), *self.grows(places, tokens), *self.trade(places, tokens)]
        limit = math.acos(0.25) / math.pi  # the unrotated quarter of the pairs is all that is left of the correlation
        frozen = tokens["p-RoPE 0.75, theta = 10,000"][-1]
        comparisons.append(
            near("tokens, p-RoPE 0.75, context of 16.8 million, against arccos(1/4) / pi", frozen, limit, 0.01)
        )
        curves = [Curve(f"places, {name}", CONTEXTS, places[name]) for name in list(KINDS)[:2]]
        curves += [Curve(f"tokens, {name}", CONTEXTS, tokens[name]) for name in KINDS]
        usual, large = (tokens[name] for name in list(KINDS)[:2])
        remark = (
            f"At 65,536 tokens of context, theta = 10,000 and 500,000: tokens {usual[4]:.3f} and {large[4]:.3f}, "
            f"places {places['theta = 10,000'][4]:.3f} and {places['theta = 500,000'][4]:.3f}. Within 256 tokens the "
            f"larger base helps tokens ({usual[0]:.3f}, {large[0]:.3f}) and costs places "
            f"({places['theta = 10,000'][0]:.3f}, {places['theta = 500,000'][0]:.3f}), the trade that the paper tells "
            "of; at length it helps both here. Places are asked of a key like the query: for Gaussian keys they are "
            "at 1/2 at any length, by symmetry. Allowed about 1/2: four standard errors for places, 0.02 of "
            "correlation left for tokens."
        )
        return Finding(comparisons, Picture("context in tokens", "probability of confusion", curves, log="x"), remark)

    def trade(self, places: dict[str, list[float]], tokens: dict[str, list[float]]) -> list[Comparison]:
        """The paper's trade: within a short context a larger base keeps tokens apart better, and places worse."""
        usual, large = list(KINDS)[:2]
        return [
            at_least("tokens, context of 256: theta = 10,000 less 500,000", tokens[usual][0] - tokens[large][0], 0.0),
            at_least("places, context of 256: theta = 500,000 less 10,000", places[large][0] - places[usual][0], 0.0),
        ]

    def grows(self, places: dict[str, list[float]], tokens: dict[str, list[float]]) -> list[Comparison]:
        """From well below one half to one half, with RoPE."""
        found = []
        for what, shares in (("places", places), ("tokens", tokens)):
            for name in list(KINDS)[:2]:
                found += [
                    Comparison(f"{what}, {name}, context of 256", shares[name][0], 0.0, 0.45),
                    near(
                        f"{what}, {name}, context of 16.8 million",
                        shares[name][-1],
                        0.5,
                        SAMPLING if what == "places" else 0.02,
                    ),
                ]
        return found

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


def drawn_places(context: int) -> tuple[Tensor, Tensor]:
    """Nearer and farther distance of each pair of places, uniform in the context, never equal."""
    generator = torch.Generator().manual_seed(context)
    both = torch.randint(context, (2, PAIRS_OF_PLACES), generator=generator)
    both = both[:, both[0] != both[1]]
    return both.amin(0), both.amax(0)


def like_the_query(distances_N: Tensor, p: float, theta: float) -> Tensor:
    """Logit of a key like the query, all pairs of equal norm: [N]."""
    g_P = PRoPE(shape(HEAD_DIM), p=p, theta=theta).frequencies(torch.float64)
    unit = torch.cat([torch.ones_like(g_P), torch.zeros_like(g_P)]) / math.sqrt(len(g_P))
    return torch.cat([logits(unit, unit, some, g_P) for some in torch.split(distances_N, 1000)])


def places_confused(context: int, p: float, theta: float) -> float:
    """Share of pairs of places of which the farther has the larger logit."""
    near_N, far_N = drawn_places(context)
    return float((like_the_query(near_N, p, theta) < like_the_query(far_N, p, theta)).double().mean())


def tokens_confused(context: int, p: float, theta: float) -> float:
    """Mean over pairs of places of the probability that two Gaussian keys change their order: the rotation is the
    program's, the arcsine law the formula's."""
    near_N, far_N = drawn_places(context)
    correlation_N = like_the_query(far_N - near_N, p, theta).clamp(-1, 1)
    return float((correlation_N.acos() / math.pi).mean())


def share_reversed(apart: int) -> float:
    """Of random keys with an equal-norm query, whether they come in another order that many tokens on."""
    generator = torch.Generator().manual_seed(apart)
    g_P = PRoPE(shape(HEAD_DIM), p=1.0, theta=1e4).frequencies(torch.float64)
    q = torch.cat([torch.ones_like(g_P), torch.zeros_like(g_P)])
    difference_NC = torch.randn(DRAWS, HEAD_DIM, generator=generator, dtype=torch.float64)
    places = torch.tensor([0, apart])
    turned_2C = torch.stack([turned_query(q, place, g_P) for place in places])
    signs_2N = (turned_2C @ difference_NC.T).sign()
    return float((signs_2N[0] != signs_2N[1]).double().mean())


def turned_query(q_C: Tensor, place: Tensor, g_P: Tensor) -> Tensor:
    """The query at that place, turned by this program: [C]."""
    return rotated(q_C, place[None], g_P)[0]
