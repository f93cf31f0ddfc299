"""Theorem 6.1: what a slow pair says about tokens does not last over a long context.

Tested by tests/papers/test_claims.py and tests/papers/test_rope_claims.py.
"""

from __future__ import annotations

import math
from typing import ClassVar, final

import numpy as np
import torch
from torch import Tensor

from roundround.papers.claim import (
    Claim,
    Finding,
    at_least,
    near,
)
from roundround.papers.constructions import logits, weights
from roundround.papers.constructions import rotated as rotated_keys
from roundround.support.panels import Curve, Panel

DRAWS, TOKENS = 200, 200  # of queries, keys and targets; tokens of each
NORMS, LEADS = 4.0, (5.0, 25.0)  # largest norm of another key, |q| = 1; by how much the target can exceed them all
ORDERS = 10  # random ones of each draw, tried where nothing may be found
TARGET, OTHER = 64.0, 8.0  # q . k of the target and of every other key before any rotation, where places are counted
TURN = 2 * math.pi
QUERY = torch.tensor([1.0, 0.0], dtype=torch.float64)  # all phases are from it


@final
class Thm61(Claim):
    """A head that finds a token by one slow pair loses it in some order of the tokens, if the context is long enough.

    one frequency g, any q, k_1 .. k_N in R^2 and any target: logits |q| |k| cos(theta + g n), so where N g > 2 pi the
    target can be put where its logit is negative, and then another key where its logit is positive: alpha <= 1/2

    Barbero et al. 2024, arXiv:2410.06205, Theorem 6.1; the swaps are those of its proof.
    """

    title: ClassVar[str] = "no slow channel lasts"

    def check(self) -> Finding:
        above_a_turn = [TURN / TOKENS * (1.01 + 7 * draw / DRAWS) for draw in range(DRAWS)]
        found = [swaps_to_lose(draw, g) for draw, g in enumerate(above_a_turn)]
        orders = [torch.randperm(TOKENS, generator=torch.Generator().manual_seed(i)) for i in range(ORDERS)]
        of_draws = [drawn(draw, 0.0)[0] for draw in range(DRAWS)]
        still = [swaps_to_lose(draw, 0.0) for draw in range(DRAWS)]
        least = min(weight_of_target(*drawn(draw, g), g) for g in (0.0, TURN / TOKENS) for draw in range(DRAWS))
        comparisons = [
            near("draws whose target the swaps make lose, N g from 1 to 8 turns", DRAWS - found.count(None), DRAWS, 0),
            at_least("draws that needed the first swap alone", found.count(1), 1),
            at_least("draws that needed both", found.count(2), 1),
            at_least("least weight of a target to begin with, N g = 0 and one turn", least, 0.99),
            near("draws whose target the swaps make lose, g = 0", DRAWS - still.count(None), 0, 0),
            near(f"random orders in which it loses, {ORDERS} of each draw, g = 0",
                 sum(weight_of_target(keys, order_N, 0.0) <= 0.5 for keys in of_draws for order_N in orders), 0, 0),
            near("share of places where a target of 64 loses to 1,000 keys of 8, one turn",
                 share_lost(TURN / 1000, 1000), share_by_formula(1000), 0.003),
        ]  # fmt: skip
        n_g = [0.1 * 1.4**x for x in range(16)]
        curves = [
            Curve("26 of the draws", n_g, [share_of_draws(x / TOKENS) for x in n_g]),
            Curve("N g = 2 pi", [TURN, TURN], [0.0, 1.0]),
        ]
        remark = (
            f"{DRAWS} draws of {TOKENS} keys of random phases and norms, and of a target with 0.99 of the weight at "
            "its best place, where it begins. In every second draw the others are longer, and turned away from the "
            "query where they stand. Then come the proof's swaps: the target to where its logit is negative, and if it "
            "still has more than half, the longest other key to where its own is largest."
        )
        picture = Panel("N g in radians", "share of draws with a losing order", curves, log="x")
        return Finding(comparisons, picture, remark)


def drawn(draw: int, g: float) -> tuple[Tensor, Tensor]:
    """Keys [N, 2] for a query at angle 0, and the distance of each from it [N]; the target is key 0."""
    generator = torch.Generator().manual_seed(draw)
    uniform_3N = torch.rand(3, TOKENS, generator=generator, dtype=torch.float64)
    angle_N, norm_N = uniform_3N[0] * TURN, uniform_3N[1] * NORMS
    angle_N[0] = 0.9 * math.pi * (uniform_3N[2, 0] - 0.5)
    norm_N[0] = NORMS + math.log(TOKENS) + LEADS[0] + (LEADS[1] - LEADS[0]) * uniform_3N[2, 1]
    norm_N[0] /= angle_N[0].cos()  # so that it is found without rotation, too
    best = int(at_all_places(norm_N[0] * direction(angle_N[0]), g).argmax())
    distance_N = swapped(torch.randperm(TOKENS, generator=generator), 0, best)
    if draw % 2:
        angle_N[1:] = (math.pi * (0.9 + 0.2 * uniform_3N[0]) + g * distance_N)[1:]
        norm_N[1:] = norm_N[0] * (2 + uniform_3N[1, 1:])
    return norm_N[:, None] * direction(angle_N), distance_N


def direction(angle: Tensor) -> Tensor:
    """[...] -> [..., 2]."""
    return torch.stack([angle.cos(), angle.sin()], -1)


def at_all_places(key_2: Tensor, g: float) -> Tensor:
    """Logit of a key at distances 0 .. N - 1: [N]."""
    return logits(QUERY, key_2, torch.arange(TOKENS), torch.tensor([g], dtype=torch.float64))


def swapped(distance_N: Tensor, key: int, place: int) -> Tensor:
    """The order in which this key stands at this distance, and the key that stood there where it came from."""
    changed_N, other = distance_N.clone(), int((distance_N == place).nonzero())
    changed_N[key], changed_N[other] = place, distance_N[key]
    return changed_N


def weight_of_target(keys_N2: Tensor, distance_N: Tensor, g: float) -> float:
    """By this program's rotation and softmax."""
    turned_N2 = rotated_keys(keys_N2, -distance_N, torch.tensor([g], dtype=torch.float64))
    return float(weights((turned_N2 @ QUERY)[None])[0, 0])


def swaps_to_lose(draw: int, g: float) -> int | None:
    """After how many of the proof's swaps the target has half of the weight or less; None where both leave it more."""
    keys_N2, distance_N = drawn(draw, g)
    longest = 1 + int(keys_N2[1:].norm(dim=-1).argmax())
    for n_swaps, key in enumerate((None, 0, longest)):
        if key is not None:
            logits_N = at_all_places(keys_N2[key], g)
            # the target to where its logit is negative, just so; another key to any place but the target's
            logits_N[distance_N[0] if key else logits_N >= 0] = -torch.inf
            distance_N = swapped(distance_N, key, int(logits_N.argmax()))
        if weight_of_target(keys_N2, distance_N, g) <= 0.5:
            return n_swaps
    return None


def share_of_draws(g: float) -> float:
    """Of every eighth pair of draws: those whose target the swaps make lose."""
    draws = [draw for draw in range(DRAWS) if draw % 16 < 2]
    return sum(swaps_to_lose(draw, g) is not None for draw in draws) / len(draws)


def share_lost(g: float, n: int) -> float:
    """Share of the target's n places at which it has at most half of the last token's weight, no other key moving."""
    cosine_N = logits(QUERY, QUERY, torch.arange(n), torch.tensor([g], dtype=torch.float64))
    rows_NN = (OTHER * cosine_N).repeat(n, 1)
    rows_NN.diagonal().copy_(TARGET * cosine_N)
    return float((weights(rows_NN).diagonal() <= 0.5).double().mean())


def share_by_formula(n: int) -> float:
    """The same for whole turns: 64 cos x <= ln(n I_0(8)), I_0 the mean of exp(8 cos x) over a turn."""
    return 1 - math.acos(math.log(n * float(np.i0(OTHER))) / TARGET) / math.pi
