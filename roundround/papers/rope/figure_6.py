"""Figure 6: how large the norms of a diagonal head have to be."""

from __future__ import annotations

import math
from typing import ClassVar, final

import torch
from torch import Tensor

from roundround.papers.claim import Claim, Curve, Finding, Picture, at_least, at_most, near, shown
from roundround.papers.constructions import HEAD_DIM, causal_weights, frequencies, logits, rotated, weights
from roundround.papers.rope.thm_5_3 import equal_norms, needed, needed_by_formula, shares, shares_by_formula

CONTEXT, EVERY_ROW = 8192, 1024  # Gemma's, looked at from its last token; and tokens of which every row is
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
        drawn_N = SCALE * logits(drawn, drawn, torch.arange(CONTEXT), frequencies())
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
        return Finding(comparisons, Picture("norm of each of 8 pairs", "weight on itself of token 8,192", curves))


def of_last_row(logits_N: Tensor, norm: float) -> float:
    """Weight of the last token on itself, its pairs this many times as long: logits at distances 0, 1, 2, ..."""
    return float(weights(norm**2 * logits_N[None])[0, 0])
