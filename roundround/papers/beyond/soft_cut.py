"""A raised-cosine cut of the slow frequencies in place of p-RoPE's hard one: what it does to spectral leakage."""

from __future__ import annotations

import math
from typing import ClassVar, final

import numpy as np
import torch
from torch import Tensor

from roundround.papers.claim import Claim, Comparison, Curve, Finding, Picture, at_most, near
from roundround.papers.constructions import HEAD_DIM, THETA, logits, shape
from roundround.pe.p_rope import PRoPE

P = 0.75  # pairs that p-RoPE keeps
WIDTH = 0.25  # of the pairs, over which the soft cut falls from 1 to 0 where the hard one falls at once
FASTEST = 0.25  # of the pairs: left out, and eased in over WIDTH, where the slow end is looked at alone
FINE = 64 * HEAD_DIM  # a ladder so dense that, without its fastest quarter, it is an integral over the frequencies
N_DISTANCES, TURNS = 300, (1.0, 6.0)  # distances as turns of the slowest pair that is kept
MIDDLES = np.arange(TURNS[0] + 0.25, TURNS[1], 0.5)  # of half turns, as the figure shows them
LADDERS = {"dense": (FINE, True), "128 pairs, slow end": (HEAD_DIM, True), "128 pairs, all": (HEAD_DIM, False)}


def by_formula(head_dim: int, weights_P: np.ndarray, distances_N: np.ndarray) -> np.ndarray:
    """sum_k w_k cos(r g_k) / sum_k w_k over the rotated pairs, g_k = theta^(-2(k-1)/d), written out."""
    g_P = THETA ** (-2 * np.arange(head_dim // 2) / head_dim)
    sum_N: np.ndarray = np.cos(np.outer(distances_N, g_P)) @ weights_P / weights_P.sum()
    return sum_N


@final
class SoftCut(Claim):
    """Does a soft cut of the slow frequencies leak less than p-RoPE's hard one? On a dense ladder far less; on the
    128 pairs of a head of 256 it makes no difference, since the gaps between the fast pairs leak more than either
    cut.

    K(r) = sum_k w_k cos(r g_k) / sum_k w_k; hard: w = 1 for k <= 3/4 of the pairs, else 0; soft: w falls as (1 + cos)
    / 2 over the last quarter of the pairs before there; leakage: root mean square of K from 1 to 6 turns of the
    slowest pair kept

    Asked of Barbero et al. 2024, arXiv:2410.06205, section 6.1, by arXiv:2602.05258, which finds that hard clipping
    leaks; its clipped pairs and transition are not known here, these are ours.
    """

    title: ClassVar[str] = "a soft cut leaks less where the ladder is dense"

    def check(self) -> Finding:
        comparisons: list[Comparison] = []
        curves, leaked = [], {}
        for ladder, (head_dim, slow_end) in LADDERS.items():
            for cut, window in (("hard", hard), ("soft", soft)):
                weights_P = window(head_dim) * (eased_in(head_dim) if slow_end else 1.0)
                sum_N = by_program(head_dim, weights_P)
                leaked[ladder, cut] = float(sum_N.square().mean().sqrt())
                error = np.abs(sum_N.numpy() - by_formula(head_dim, weights_P.numpy(), distances().numpy())).max()
                comparisons.append(near(f"largest error against the formula, {cut}, {ladder}", error, 0, 1e-8))
                curves.append(Curve(f"{cut}, {ladder}", MIDDLES, sum_N.view(len(MIDDLES), -1).square().mean(-1).sqrt()))
        ratio = {ladder: leaked[ladder, "soft"] / leaked[ladder, "hard"] for ladder in LADDERS}
        comparisons += [
            at_most("leakage of the soft cut over the hard one's, dense ladder", ratio["dense"], 0.5),
            Comparison("the same, all 128 pairs", ratio["128 pairs, all"], 0.8, 1.25),
            at_most(
                "leakage of the hard cut, dense ladder, over that of 128 pairs",
                leaked["dense", "hard"] / leaked["128 pairs, all", "hard"],
                1.0,
            ),
        ]
        told = "; ".join(
            f"{name}: {leaked[name, 'hard']:.4f} hard, {leaked[name, 'soft']:.4f} soft, ratio {ratio[name]:.2f}"
            for name in LADDERS
        )
        remark = (
            f"Leakage as a share of K(0): {told}. A smooth edge was expected to leak less than half of a step's; 0.8 "
            "to 1.25 stands for no difference that would matter. Not settled: whether training cares, and the "
            "transition that arXiv:2602.05258 uses."
        )
        label = "root mean square of K(r) / K(0) over half a turn"
        return Finding(comparisons, Picture("distance in turns of the slowest pair kept", label, curves, "y"), remark)


def hard(head_dim: int) -> Tensor:
    """p-RoPE's window over the pairs: 1 for those that it rotates."""
    return (PRoPE(shape(head_dim), p=P, theta=THETA).frequencies(torch.float64) > 0).double()


def soft(head_dim: int) -> Tensor:
    """The raised cosine over the pairs."""
    return (1 + (math.pi * way(head_dim, P - WIDTH)).cos()) / 2


def eased_in(head_dim: int) -> Tensor:
    """0 for the fastest pairs, then a raised cosine up to 1."""
    return (1 - (math.pi * way(head_dim, FASTEST)).cos()) / 2


def way(head_dim: int, start: float) -> Tensor:
    """How far each pair is on its way from this share of all pairs to WIDTH more, from 0 to 1."""
    place_P = torch.arange(head_dim // 2, dtype=torch.float64) / (head_dim // 2)
    return ((place_P - start) / WIDTH).clamp(0, 1)


def turn() -> float:
    """Tokens of one turn of the frequency at the hard cut."""
    return 2 * math.pi * math.pow(THETA, P)


def distances() -> Tensor:
    """Whole tokens."""
    return torch.linspace(TURNS[0] * turn(), TURNS[1] * turn(), N_DISTANCES, dtype=torch.float64).round().long()


def by_program(head_dim: int, weights_P: Tensor) -> Tensor:
    """K(r) by this program's rotation: the query carries the window, the key is one on each pair."""
    g_P = PRoPE(shape(head_dim), p=1.0, theta=THETA).frequencies(torch.float64)
    kept = weights_P > 0
    w_P, none_P = weights_P[kept] / weights_P.sum(), torch.zeros(int(kept.sum()), dtype=torch.float64)
    q, k = torch.cat([w_P, none_P]), torch.cat([torch.ones_like(w_P), none_P])
    return torch.cat([logits(q, k, some, g_P[kept]) for some in torch.split(distances(), 100)])
