"""Lemma A.3: only the largest logit can have most of the weight."""

from __future__ import annotations

from typing import ClassVar, final

import torch
from torch import Tensor

from roundround.papers.claim import Claim, Curve, Finding, Picture, at_least, at_most, near
from roundround.papers.constructions import weights

LENGTHS, SPREADS, ROWS = (2, 3, 10, 100, 1000), (0.1, 1.0, 10.0, 100.0), 200
ROUNDING = 1e-12
GAP = 1e-6  # between the two logits of a row that comes near the bound


@final
class LemmaA3(Claim):
    """A key whose logit is below another's has at most half of the weight.

    a_i < a_j for some j  =>  alpha_i <= 1/2

    Barbero et al. 2024, arXiv:2410.06205, Lemma A.3.
    """

    title: ClassVar[str] = "half the weight needs the largest logit"

    def check(self) -> Finding:
        comparisons = []
        for n in LENGTHS:
            logits_RN = drawn(n)
            alpha_RN = weights(logits_RN)
            below_RN = logits_RN < logits_RN.amax(-1, keepdim=True)
            most = float(alpha_RN.masked_fill(~below_RN, 0.0).max())
            wrong = int(((alpha_RN > 0.5 + ROUNDING) & below_RN).sum())
            comparisons += [
                at_most(f"largest weight below a larger logit, {n:,} keys", most, 0.5 + ROUNDING),
                near(f"keys with more than half the weight and not the largest logit, {n:,} keys", wrong, 0, 0),
            ]
        close = float(weights(torch.tensor([[0.0, -GAP]], dtype=torch.float64))[0, 1])
        comparisons += [
            at_least(f"weight of a key whose logit is {GAP:g} below the other", close, 0.5 - GAP),
            at_most("the same: below one half", close, 0.5),
        ]
        return Finding(comparisons, picture())


def drawn(n: int) -> Tensor:
    """Normal logits of every spread, `ROWS` rows each: [R, n]."""
    generator = torch.Generator().manual_seed(n)
    rows = torch.randn(len(SPREADS), ROWS, n, generator=generator, dtype=torch.float64)
    return (rows * torch.tensor(SPREADS, dtype=torch.float64)[:, None, None]).flatten(0, 1)


def picture() -> Picture:
    gap = torch.linspace(0, 5, 101, dtype=torch.float64)
    curves = []
    for n in (2, 3, 10):
        rows = torch.zeros(len(gap), n, dtype=torch.float64)
        rows[:, 1:] = -gap[:, None]
        curves.append(Curve(f"{n} keys", gap, weights(rows)[:, 1]))
    curves.append(Curve("one half", gap, torch.full_like(gap, 0.5)))
    return Picture("how far below the largest logit", "weight of the second", curves)
