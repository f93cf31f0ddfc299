"""The channel by which Gemma's apostrophe head tells the first token from the others."""

from __future__ import annotations

import math
from typing import ClassVar, final

import torch
from torch import Tensor

from roundround.papers.claim import Claim, Comparison, Curve, Finding, Picture, as_printed, near
from roundround.papers.constructions import frequencies, ladder_by_formula, logits, on_pair

PAIR = 118  # g_119, pairs from 0
QUERY = (-4.1, 11.3)
KEYS = {"other keys": (11.2, -3.5), "the first token": (-2.5, 1.3)}
PRODUCTS = {"other keys": -85.5, "the first token": 24.9}
FLIPS = {"other keys": 12_100, "the first token": 11_300}  # tokens, to a hundred
CONTEXT, LONGEST = 8192, 16_384


@final
class Apostrophe(Claim):
    """In the slow channel of Gemma 7B's apostrophe head the first token is liked and others are not, up to about 11,000
    tokens; then both turn round.

    q = [-4.1, 11.3]; q . k = -85.5 for k = [11.2, -3.5] and 24.9 for the first token's k = [-2.5, 1.3];
    q^T rho(g_119)^-r k changes its sign at r = 12,100 and 11,300

    Barbero et al. 2024, arXiv:2410.06205, section 5.2 and appendix E.1 (vectors); equation 3 (orientation).
    """

    title: ClassVar[str] = "the apostrophe head's channel"

    def check(self) -> Finding:
        comparisons: list[Comparison] = []
        curves = []
        for name, key in KEYS.items():
            logits_N = channel(key)
            sign = math.copysign(1.0, PRODUCTS[name])
            flip = first(sign * logits_N < 0)
            early = float((sign * logits_N[:CONTEXT]).min())
            comparisons += [
                as_printed(f"q . k, {name}", float(logits_N[0]), PRODUCTS[name], 0.05),
                near(f"tokens until its sign turns, {name}", flip, FLIPS[name], 50),
                near(f"the same by the formula, {name}", flip, flip_by_formula(key), 1),
                Comparison(f"smallest size within {CONTEXT:,} tokens, {name}", early, 1.0, math.inf),
            ]
            curves.append(Curve(name, torch.arange(LONGEST)[::16], logits_N[::16]))
        zero = Curve("0", [0, LONGEST], [0.0, 0.0])
        context = Curve(f"Gemma's context, {CONTEXT:,} tokens", [CONTEXT, CONTEXT], [-120.0, 120.0])
        return Finding(comparisons, Picture("distance in tokens", "q . k in the channel", [*curves, context, zero]))


def channel(key: tuple[float, float]) -> Tensor:
    """The logit of a head that holds nothing but this channel, at distances 0 .. LONGEST - 1: [N]."""
    distances = torch.arange(LONGEST)
    return logits(on_pair(*QUERY, PAIR), on_pair(*key, PAIR), distances, frequencies())


def first(true_N: Tensor) -> int:
    """The first place that is true; -1 where none is."""
    return int(true_N.int().argmax()) if bool(true_N.any()) else -1


def flip_by_formula(key: tuple[float, float]) -> float:
    """Where |q| |k| cos(angle - r g) is 0 first, angle that from the query to the key, counter-clockwise."""
    angle = math.atan2(key[1], key[0]) - math.atan2(QUERY[1], QUERY[0])
    quarter_turns = (angle - math.pi / 2) / math.pi
    return (quarter_turns - math.floor(quarter_turns)) * math.pi / float(ladder_by_formula()[PAIR])
