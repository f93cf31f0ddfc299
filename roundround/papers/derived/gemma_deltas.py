"""What Gemma's published logit spreads allow: best-case weights and the lengths at which they are gone."""

from __future__ import annotations

import math
from typing import ClassVar, final

import numpy as np
import torch

from roundround.papers.claim import Claim, Comparison, Curve, Finding, Picture, Trained, at_least, at_most, near
from roundround.papers.constructions import first_length, lone_weight, weights
from roundround.papers.trained import rows_of_model

DELTAS = {"2B, least": 2.28, "2B, mean": 5.69, "7B, mean": 5.82, "2B, most": 14.78, "7B, most": 32.74}
LEVELS, CONTEXT, LONGEST = (0.5, 0.1), 8192, 10**17


def length_by_formula(delta: float, level: float) -> int:
    """Smallest n with exp(delta) / (exp(delta) + n - 1) < level."""
    return math.floor(math.exp(delta) * (1 / level - 1)) + 2


@final
class GemmaDeltas(Claim):
    """A row whose logits are spread as widely as Gemma's are on average holds no tenth of its weight on one key from
    2,665 keys on (2B), or 3,034 (7B).

    best case: alpha = exp(delta) / (exp(delta) + n - 1), one key at the top and all others at the bottom; delta of
    Gemma 2B: 2.28 to 14.78, mean 5.69 +- 2.05; of 7B: 0.09 to 32.74, mean 5.82 +- 2.61

    Derived here from Lemma 2.1 of Velickovic et al. 2024, arXiv:2410.01104, and from the deltas of its section 2, which
    were seen second-hand. The paper prints the deltas and no lengths.
    """

    title: ClassVar[str] = "how long Gemma's heads can stay sharp"

    def check(self) -> Finding:
        comparisons: list[Comparison] = []
        for name, delta in DELTAS.items():
            for level in LEVELS:
                found = first_length(lambda n, d=delta, p=level: lone_weight(d, n) < p, LONGEST)
                expected = length_by_formula(delta, level)
                what = f"first n with weight below {level:g}, delta {delta:g} ({name})"
                comparisons.append(near(what, found, expected, 1e-9 * expected + 1))
                if expected <= CONTEXT:
                    comparisons += self.in_full(delta, level, expected)
            best = 1 / (1 + (CONTEXT - 1) * math.exp(-delta))
            ours = lone_weight(delta, CONTEXT)
            comparisons.append(near(f"best weight at n = 8,192, delta {delta:g} ({name})", ours, best, 1e-12))
            comparisons.append(self.of_other_rows(delta, best))
        lengths = np.logspace(0.31, 16, 160)
        curves = [
            Curve(f"Gemma {name}: {delta:g}", lengths, [lone_weight(delta, n) for n in lengths])
            for name, delta in DELTAS.items()
        ]
        return Finding(comparisons, Picture("keys n", "largest possible weight", curves, log="x"), REMARK)

    def in_full(self, delta: float, level: float, n: int) -> list[Comparison]:
        """The weight in rows of n keys and of one fewer, on either side of the level."""
        rows = [torch.zeros(1, length, dtype=torch.float64) for length in (n, n - 1)]
        for row_1N in rows:
            row_1N[0, len(row_1N[0]) // 2] = delta
        below, above = (float(weights(row_1N).max()) for row_1N in rows)
        return [
            at_most(f"weight in a whole row of {n:,} keys, delta {delta:g}", below, level),
            at_least(f"weight in a whole row of {n - 1:,} keys, delta {delta:g}", above, level),
        ]

    def of_other_rows(self, delta: float, best: float) -> Comparison:
        """Random rows stretched to this spread: one key at the top is the best case."""
        rows_RN = torch.randn(8, CONTEXT, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        rows_RN = delta * rows_RN / (rows_RN.amax(-1, keepdim=True) - rows_RN.amin(-1, keepdim=True))
        what = f"largest weight of 8 random rows of 8,192 keys over the best, delta {delta:g}"
        return at_most(what, float(weights(rows_RN).max()) / best, 1.0)

    def check_model(self, trained: Trained) -> Finding:
        deltas, best, largest = [], 0.0, []
        longest = trained.probed.longest
        for rows in rows_of_model(trained.probed, trained.texts):
            possible_HR = 1 / (1 + (rows.n_R - 1) * (-rows.spread_HR).exp())
            best = max(best, float((rows.largest_HR / possible_HR)[:, rows.many_R].max()))
            deltas.append(rows.spread_HR[:, rows.n_R > 1].flatten())
            largest.append(rows.largest_HR[:, rows.n_R > 1].flatten())
        delta = torch.cat(deltas)
        least, mean, most = float(delta.min()), float(delta.mean()), float(delta.max())
        comparisons = [
            at_most("largest weight over the best case of its row, the closest row", best, 1 + 1e-6),
        ]
        lengths = np.logspace(0.31, max(4, math.log10(longest)), 120)
        curves = [
            Curve(f"delta {value:.2f} ({name})", lengths, [lone_weight(value, n) for n in lengths])
            for name, value in (("least", least), ("mean", mean), ("most", most))
        ]
        remark = (
            f"delta {least:.2f} to {most:.2f}, mean {mean:.2f} +- {float(delta.std()):.2f} over rows (Gemma 2B: 2.28 "
            f"to 14.78, 5.69 +- 2.05); at its mean the best weight at {longest:,} tokens is "
            f"{lone_weight(mean, longest):.3f}."
        )
        picture = Picture("keys n", "largest possible weight", curves, log="x")
        return Finding(comparisons, picture, remark, can_fail=False)


REMARK = (
    "The paper prints the deltas (pooled over heads, layers and unknown query positions); lengths and weights follow "
    "from them in the best case, one key at the top and all others at the bottom. Real rows are flatter."
)
