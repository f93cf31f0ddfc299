"""Proposition 3.1: RoPE need not prefer what is near."""

from __future__ import annotations

from typing import ClassVar, final

import torch

from roundround.theory.claim import Claim, Curve, Finding, Picture, at_least, near
from roundround.theory.heads import HEAD_DIM, frequencies, ladder_by_formula, logits, random_vector, turned

CHOSEN, LONGEST = (0, 1, 5, 100, 3000), 8192  # distances at which the maximum is asked for; distances looked at


@final
class Prop31(Claim):
    """For every query and every distance r there is a key whose weight is largest at exactly that distance.

    k = R^r q, so that a(n) = sum_k |q_k|^2 cos((n - r) g_k), with its only maximum |q|^2 at n = r

    Barbero et al. 2024, arXiv:2410.06205, Proposition 3.1.
    """

    title: ClassVar[str] = "a maximum at any distance"

    def check(self) -> Finding:
        q, distances = random_vector(HEAD_DIM, seed=0), torch.arange(LONGEST)
        comparisons, curves = [], []
        for r in CHOSEN:
            logits_N = logits(q, turned(q, r * ladder_by_formula()), distances, frequencies())
            top, second = logits_N.topk(2).values.tolist()
            comparisons += [
                near(f"distance of the largest logit, {r:,} asked for", int(logits_N.argmax()), r, 0),
                near(f"that logit over |q|^2, r = {r:,}", top / float(q @ q), 1.0, 1e-9),
                at_least(f"its lead on the next as a share of it, r = {r:,}", (top - second) / top, 0.01),
            ]
            curves.append(Curve(f"r = {r:,}", distances, logits_N / float(q @ q)))
        return Finding(comparisons, Picture("distance in tokens", "logit over |q|^2", curves))
