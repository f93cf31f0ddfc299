"""What Gemma's published logit spreads allow: best-case weights and the lengths at which they are gone."""

from __future__ import annotations

import math
from typing import ClassVar, final

import numpy as np
import torch

from roundround.theory.claim import Claim, Comparison, Curve, Finding, Picture, Trained, at_most, near
from roundround.theory.rows import first_length, lone_weight, rows_of_model, weights

DELTAS = {"2B, least": 2.28, "2B, mean": 5.69, "7B, mean": 5.82, "2B, most": 14.78, "7B, most": 32.74}
LEVELS, CONTEXT, LONGEST = (0.5, 0.1), 8192, 10**17


def length_by_formula(delta: float, level: float) -> int:
    """Smallest n with exp(delta) / (exp(delta) + n - 1) < level."""
    return math.floor(math.exp(delta) * (1 / level - 1)) + 2


@final
class GemmaDeltas(Claim):
    """With the spreads of logits that Gemma shows, most heads cannot hold a tenth of their weight on one item past
    3,000.

    best case: alpha = exp(delta) / (exp(delta) + n - 1); Gemma 2B: delta 2.28 to 14.78, mean 5.69 +- 2.05; Gemma 7B:
    0.09 to 32.74, mean 5.82 +- 2.61

    sufficient by Theorem 2.2: n > exp(delta) / level

    Velickovic et al. 2024, arXiv:2410.01104, section 2, for the deltas, second-hand; the lengths are derived here.
    """

    title: ClassVar[str] = "how long Gemma's heads stay sharp"

    def check(self) -> Finding:
        comparisons: list[Comparison] = []
        for name, delta in DELTAS.items():
            for level in LEVELS:
                found = first_length(lambda n, d=delta, p=level: lone_weight(d, n) < p, LONGEST)
                expected = length_by_formula(delta, level)
                comparisons += [
                    near(
                        f"first n with weight below {level:g}, delta {delta:g} ({name})",
                        found,
                        expected,
                        1e-9 * expected + 1,
                    ),
                    at_most(
                        f"that n over the sufficient length, delta {delta:g}, {level:g}",
                        found / (math.exp(delta) / level + 2),
                        1.0,
                    ),
                ]
            best = 1 / (1 + (CONTEXT - 1) * math.exp(-delta))
            ours = lone_weight(delta, CONTEXT)
            comparisons.append(near(f"best weight at n = 8,192, delta {delta:g} ({name})", ours, best, 1e-12))
        comparisons += [self.grouped(delta, n) for delta, n in ((2.28, 11), (5.69, 297), (5.82, CONTEXT))]
        lengths = np.logspace(0.31, 16, 160)
        curves = [
            Curve(f"Gemma {name}: {delta:g}", lengths, [lone_weight(delta, n) for n in lengths])
            for name, delta in DELTAS.items()
        ]
        return Finding(comparisons, Picture("keys n", "largest possible weight", curves, log="x"), REMARK)

    def grouped(self, delta: float, n: int) -> Comparison:
        """Whether n - 1 keys that are alike may be taken as one: against the row itself."""
        row_N = torch.zeros(1, n, dtype=torch.float64)
        row_N[0, n // 2] = delta
        return near(
            f"row of {n:,} keys less the same as two, delta {delta:g}",
            float(weights(row_N).max()) - lone_weight(delta, n),
            0,
            1e-12,
        )

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
        return Finding(comparisons, Picture("keys n", "largest possible weight", curves, log="x"), remark)


REMARK = (
    "The paper prints the deltas (pooled over heads, layers and unknown query positions); lengths and weights follow "
    "from them in the best case, one key at the top and all others at the bottom. Real rows are flatter."
)
