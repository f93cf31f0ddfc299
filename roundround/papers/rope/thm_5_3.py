"""Theorem 5.3: with RoPE one head can attend to any fixed distance, as sharply as its norms allow.

Figure 6: how large the norms of a diagonal head have to be.

Tested by tests/papers/test_claims.py and tests/papers/test_rope_claims.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar, final

import numpy as np
import torch
from torch import Tensor

from roundround.papers.claim import CheckedNumber, Claim, Finding, at_least, at_most, near, shown
from roundround.papers.constructions import (
    HEAD_DIM,
    aligned_by_formula,
    causal_weights,
    frequencies,
    ladder_by_formula,
    logits,
    rotated,
    turned,
    weights,
)
from roundround.support.panels import Curve, Panel

WEIGHT = 0.99
LENGTHS, EVERY_ROW = (20, 8192), 1024  # tokens: looked at from the last, and from every one of them
BANDS = {  # pairs, from 0
    "8 fastest": range(8),
    "16 fastest": range(16),
    "32 fastest": range(32),
    "all 128": range(128),
    "32 middle": range(48, 80),
    "32 slowest": range(96, 128),
    "fastest alone": range(1),
}
ROUNDING = 16 * 2.0**-52  # of a weight, times |psi|^2: a logit is a sum of rotated products, each rounded a few times
JUMPS = (45, 711)  # lengths at which the fastest pair alone has a new near miss: 44 and 710 are nearly whole turns
PLACES_ASKED = ("itself", "the token before")  # the first two of probing's PLACES


@final
class Thm53(Claim):
    """With RoPE a head can put as much weight as it likes on the token itself, or on the one before, in every row of a
    context of any length.

    q = k = psi: alpha_ii = 1 / sum_n exp(|psi|^2 (f(n) - 1)), n = 0 .. i, -> 1 as |psi|^2 grows, f(n) = sum_k w_k
    cos(n g_k); k = R psi has f(n - 1) and moves the maximum to the token before

    Barbero et al. 2024, arXiv:2410.06205, Theorem 5.3, with "can learn" as in definition 5.1: every row i <= N.
    """

    title: ClassVar[str] = "RoPE can attend to a fixed distance"

    def check(self) -> Finding:
        comparisons, curves = [], []
        lengths = sorted({2**k for k in range(1, 14)} | {n - 1 for n in JUMPS} | set(JUMPS))
        for name, pairs in BANDS.items():
            for place, where in enumerate(PLACES_ASKED):
                f_N, formula_N = shares(pairs, place), shares_by_formula(pairs, place)
                comparisons += [
                    near(f"|psi|^2 for weight {WEIGHT} on {where}, {name}, {n:,} tokens, over the formula's",
                         needed(f_N[:n], place) / needed_by_formula(formula_N[:n]), 1.0, 1e-4)
                    for n in LENGTHS
                ] + of_every_row(name, place)  # fmt: skip
            if name in ("8 fastest", "all 128", "32 middle", "32 slowest", "fastest alone"):
                f_N = shares(pairs)
                curves.append(Curve(name, lengths, [needed(f_N[:n]) for n in lengths]))
        picture = Panel("tokens N", f"|psi|^2 needed for weight {WEIGHT} on the token itself", curves, log="xy")
        norms = (f"{name} {needed_by_formula(shares_by_formula(pairs)):.3g}" for name, pairs in BANDS.items())
        remark = f"|psi|^2 for the token itself at 8,192 tokens, by the formula: {', '.join(norms)}."
        return Finding([*comparisons, *jumps(), of_figure_1()], picture, remark)


def shares(pairs: range, place: int = 0) -> Tensor:
    """Logit of q = psi with k = R^place psi over |psi|^2, psi equal on these pairs, at distances 0 .. 8191: [N]."""
    psi = equal_norms(pairs)
    key = turned(psi, place * ladder_by_formula())
    return logits(psi, key, torch.arange(max(LENGTHS)), frequencies())


def shares_by_formula(pairs: range, place: int = 0) -> np.ndarray:
    """The same, mean of cos((n - place) g_k) over the pairs: [N]."""
    return aligned_by_formula(np.arange(max(LENGTHS)) - place, ladder_by_formula()[pairs.start : pairs.stop])


def equal_norms(pairs: range) -> Tensor:
    """A vector of length 1, of equal norm on these pairs: [C]."""
    psi = torch.zeros(HEAD_DIM, dtype=torch.float64)
    psi[list(pairs)] = len(pairs) ** -0.5
    return psi


def needed(f_N: Tensor, place: int = 0) -> float:
    """The norm |psi|^2 at which the key at this distance has the weight WEIGHT, by this program's softmax."""
    return smallest(lambda norm: float(weights(norm * f_N[None])[0, place]) >= WEIGHT)


def needed_by_formula(f_N: np.ndarray) -> float:
    """The same with the weight written out; the key that is looked for has f = 1."""
    return smallest(lambda norm: np.exp(norm * (f_N - 1)).sum() <= 1 / WEIGHT)


def smallest(enough: Callable[[float], bool]) -> float:
    """The smallest norm that is enough, from 1 to e^40, by bisection of its logarithm."""
    low, high = 0.0, 40.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (low, middle) if enough(math.exp(middle)) else (middle, high)
    return math.exp(high)


def of_every_row(name: str, place: int) -> list[CheckedNumber]:
    """Definition 5.1: the weight in every row of a causal context, queries and keys rotated where they stand."""
    formula_N = shares_by_formula(BANDS[name], place)[:EVERY_ROW]
    norm = needed_by_formula(formula_N)
    psi, pos = math.sqrt(norm) * equal_norms(BANDS[name]), torch.arange(EVERY_ROW)
    key = turned(psi, place * ladder_by_formula())
    alpha_NN = causal_weights(rotated(psi, pos, frequencies()), rotated(key, pos, frequencies()))
    ours_N = alpha_NN.diagonal(-place)
    expected_N = 1 / torch.from_numpy(np.exp(norm * (formula_N - 1))).cumsum(0)[place:]
    rounding = ROUNDING * norm
    where = f"{PLACES_ASKED[place]}, {name}, |psi|^2 = {norm:.4g}"
    return [
        at_least(f"least weight of {EVERY_ROW:,} rows on {where}", float(ours_N.min()), WEIGHT - 1e-6 - rounding),
        near(f"largest error of a row's weight on {where}", float((ours_N - expected_N).abs().max()), 0.0, rounding),
    ]


def jumps() -> list[CheckedNumber]:
    """Where a single frequency of 1 all but repeats: 44 is near 7 turns and 710 near 113."""
    f_N, found = shares(range(1)), []
    for n in JUMPS:
        there, before = needed(f_N[:n]), needed(f_N[: n - 1])
        alone = math.log(WEIGHT / (1 - WEIGHT)) / (1 - math.cos(n - 1))  # against the near miss and no other key
        found += [
            near(f"|psi|^2 for the fastest pair alone, over that for its near miss alone, {n} tokens",
                 there / alone, 1.0, 0.01),
            at_most(f"what one token less needs, as a share, {n - 1} tokens", before / there, 0.1),
        ]  # fmt: skip
    return found


def of_figure_1() -> CheckedNumber:
    """Its vectors, q = R psi and k = psi, look one token ahead under equation 3."""
    psi = equal_norms(range(8))
    drawn_N = logits(turned(psi, ladder_by_formula()), psi, torch.arange(-5, 6), frequencies())
    what = "distance of the largest weight with the vectors of figure 1, q = R psi and k = psi: one token ahead"
    return near(what, int(drawn_N.argmax()) - 5, -1, 0, published=1)


FASTEST, SLOWEST = range(8), range(HEAD_DIM // 2 - 8, HEAD_DIM // 2)
TEN, SCALE = 10.0, HEAD_DIM**-0.5  # the paper's theory leaves the scale of Gemma's logits out; norms need it
DRAWN = (0, 1, 2, 4, 5, 6)  # pairs of the head in figure 6 with the largest norms
DRAWN_NORMS = (8.9, 6.8)  # of the first and the last of them, read off the figure


@final
class Figure6(Claim):
    """Norms of about 10 in a few of the fastest pairs suffice for a diagonal head over Gemma's whole context.

    q = k, |q^(k)| on each of 8 pairs: logits |q^(k)|^2 sum_k cos(n g_k) / sqrt(d), d = 256, theta = 10,000

    Barbero et al. 2024, arXiv:2410.06205, section 5.1 and figure 6 ("norms not above about 10").
    """

    title: ClassVar[str] = "norms of about 10 suffice"

    def check(self) -> Finding:
        fast_N, slow_N = (len(pairs) * SCALE * shares(pairs) for pairs in (FASTEST, SLOWEST))  # logits at norms of 1
        of_a_pair = math.sqrt(needed(fast_N))
        by_formula = math.sqrt(needed_by_formula(shares_by_formula(FASTEST)) / SCALE / len(FASTEST))
        pos, psi = torch.arange(EVERY_ROW), TEN * math.sqrt(len(FASTEST)) * equal_norms(FASTEST)
        turned = rotated(psi, pos, frequencies())
        of_rows = causal_weights(turned * SCALE, turned).diagonal()
        drawn = torch.zeros(HEAD_DIM, dtype=torch.float64)
        drawn[list(DRAWN)] = torch.linspace(*DRAWN_NORMS, len(DRAWN), dtype=torch.float64)
        drawn_N = SCALE * logits(drawn, drawn, torch.arange(max(LENGTHS)), frequencies())
        comparisons = [
            at_most("norm of a pair for a weight of 0.99 at 8,192 tokens, 8 fastest pairs", of_a_pair, TEN),
            near("the same over the formula's", of_a_pair / by_formula, 1.0, 1e-4),
            at_least("weight on itself of token 8,192 with norms of 10", of_last_row(fast_N, TEN), 0.99),
            at_least(f"least weight on itself of {EVERY_ROW:,} tokens with norms of 10", float(of_rows.min()), 0.99),
            at_most(
                "weight on itself of token 8,192, norms of 10 in the 8 slowest pairs", of_last_row(slow_N, TEN), 0.01
            ),
            shown(
                "the same, the six norms of figure 6, 8.9 to 6.8, those between on a line", of_last_row(drawn_N, 1.0)
            ),
        ]
        norms = torch.linspace(0.5, 15, 59).tolist()
        curves = [
            Curve("8 fastest pairs", norms, [of_last_row(fast_N, norm) for norm in norms]),
            Curve("8 slowest pairs", norms, [of_last_row(slow_N, norm) for norm in norms]),
        ]
        return Finding(comparisons, Panel("norm of each of 8 pairs", "weight on itself of token 8,192", curves))


def of_last_row(logits_N: Tensor, norm: float) -> float:
    """Weight of the last token on itself, its pairs this many times as long: logits at distances 0, 1, 2, ..."""
    return float(weights(norm**2 * logits_N[None])[0, 0])
