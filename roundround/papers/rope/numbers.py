"""Numbers of trained models that the paper computes: in passing, and in the channel of Gemma's apostrophe head."""

from __future__ import annotations

import math
from typing import ClassVar, final

import torch
from torch import Tensor

from roundround.papers.claim import Claim, Comparison, Finding, as_printed, near
from roundround.papers.constructions import HEAD_DIM, THETA, frequencies, ladder_by_formula, logits, on_pair
from roundround.support.panels import Curve, Panel

LLAMA_HEAD_DIM, LLAMA_THETA = 128, 500_000.0


@final
class SideComputations(Claim):
    """The slow pairs of Gemma and Llama turn as far within a context as the paper says, with one exception.

    128,000 / 10,000 / 2 pi = 2.04 rotations; 8000 g_119 = 1.64, about pi / 2; 10,000^-0.8 = 0.0006; printed
    500,000^(-40/64) = 0.0001 is 0.00027

    Barbero et al. 2024, arXiv:2410.06205, sections 5 and 6 and appendix C.
    """

    title: ClassVar[str] = "numbers in passing"

    def check(self) -> Finding:
        gemma = frequencies().numpy()
        llama = frequencies(LLAMA_HEAD_DIM, LLAMA_THETA).numpy()
        fifths = frequencies(10, THETA).numpy()  # pairs at 10,000^0, ^-0.2, ... ^-0.8
        turn = 2 * math.pi
        comparisons = [
            as_printed("rotations in 128,000 tokens at 1 / theta", 128_000 / THETA / turn, 2.04, 0.005),
            near("rotations in 128,000 tokens of the slowest pair", 128_000 * gemma[-1] / turn, 2.189, 5e-4),
            as_printed("g_119 of Gemma", gemma[118], 2.05e-4, 5e-7),
            as_printed("8,000 g_119", 8000 * gemma[118], 1.64, 0.005),
            as_printed("10,000^-0.8", fifths[4], 0.0006, 5e-5),
            near("500,000^(-40/64), printed as 0.0001", llama[40], 2.74e-4, 5e-7, published=1e-4),
            near("g_97, the first that p = 0.75 leaves out", gemma[96], 1e-3, 1e-12),
            near("pairs that take more than 8,192 tokens for a turn", int((turn / gemma > 8192).sum()), 28, 0),
            near("tokens for a turn of the slowest pair", turn / gemma[-1], 58_470, 1),
            near("radians of the slowest pair in 8,192 tokens", 8192 * gemma[-1], 0.88, 0.005),
            near("radians of g_97 in 8,192 tokens", 8192 * gemma[96], 8.2, 0.05),
        ]
        pairs = [range(1, len(ladder) + 1) for ladder in (gemma, llama)]
        picture = Panel(
            "pair k",
            "radians per token",
            [
                Curve("Gemma: d = 256, theta = 10,000", pairs[0], gemma),
                Curve("Llama 3.1: d = 128, theta = 500,000", pairs[1], llama),
                Curve("g_119 of Gemma, as printed", [119], [2.05e-4], points=True),
                Curve("printed for 40 of 64 pairs of Llama", [41], [1e-4], points=True),
                Curve(f"pi / 2 in {8000:,} tokens", [1, HEAD_DIM // 2], [math.pi / 2 / 8000] * 2),
            ],
            log="y",
        )
        return Finding(comparisons, picture)


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
        return Finding(comparisons, Panel("distance in tokens", "q . k in the channel", [*curves, context, zero]))


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
