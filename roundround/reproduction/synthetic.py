"""Figures 1, 2, 8 and 9 of arXiv:2410.06205: of RoPE alone, without a model. By this program's own rotation.

Shapes: N positions or distances, C channels, D draws.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import final

import numpy as np
import torch
from torch import Tensor

from roundround.pe.rope_random import drawn_positions
from roundround.reproduction.item import HeatMap, Item, Outcome, RunVerb, Subject
from roundround.theory.claim import Comparison, Curve, Picture, at_least, at_most, near, shown
from roundround.theory.heads import HEAD_DIM, frequencies, logits, random_vector, rotated, turned
from roundround.theory.rows import weights

DISTANCES = torch.arange(5001, dtype=torch.float64)
DRAWN = torch.arange(0, len(DISTANCES), 10)  # of the curves
BEST_GUESS = 1024  # of the width of Figure 2, by the shape of its whole curve
WIDTHS = (256, 512, BEST_GUESS, 2048, 4096)
READ_OFF = {1000: 0.185, 2000: 0.111, 3000: 0.069, 4000: 0.040, 5000: 0.014}  # of Figure 2(a)
AROUND = 50  # tokens to either side over which a value is averaged
READING = 0.02  # of values read off a picture whose axis goes from -1 to 1
DRAWS, RANDOM = 100, 40  # of positions, or of one pair of vectors; of vectors at every distance
ENDS = 1000  # distances at either end of a curve between which a decay would be seen
ERRORS = 4  # standard errors
LONGEST = (10_000, 20_000, 50_000)  # ranges of Random RoPE's positions
THETAS = {"theta = 10,000": 1e4, "theta = 500,000": 5e5}
X, Y = "relative distance (tokens)", "q . k, as a share of its largest value"


def aligned(width: int, distances_N: Tensor = DISTANCES, theta: float = 1e4) -> Tensor:
    """The logit of all-ones queries and keys at these distances, 1 at distance 0: [N]."""
    one_C = torch.ones(width, dtype=torch.float64)
    return logits(one_C, one_C, distances_N, frequencies(width, theta)) / width


def gaussian(distances_N: Tensor, seed: int) -> Tensor:
    """The same for Gaussian queries and keys, fresh ones at every distance, in standard deviations: [N]."""
    n = len(distances_N)
    q_NC, k_NC = random_vector(2 * n * HEAD_DIM, seed).view(2, n, HEAD_DIM)
    logits_N: Tensor = (q_NC * rotated(k_NC, -distances_N, frequencies())).sum(-1)
    return logits_N / math.sqrt(HEAD_DIM)


def around(f_N: Tensor, distance: int) -> float:
    """The mean over the distances near this one."""
    return float(f_N[max(0, distance - AROUND) : distance + AROUND + 1].mean())


def without_decay(what: str, curves_DN: Tensor) -> list[Comparison]:
    """No draw's mean square is smaller, or larger, far away than near: in the mean over draws, with its own error."""
    near_D, far_D = curves_DN[:, 1 : ENDS + 1].square().mean(1), curves_DN[:, -ENDS:].square().mean(1)
    difference_D = far_D - near_D
    error = ERRORS * float(difference_D.std()) / math.sqrt(len(difference_D))
    whole = curves_DN.mean(1)
    return [
        near(f"{what}: mean square far away less that nearby", float(difference_D.mean()), 0.0, error),
        near(f"{what}: mean", float(whole.mean()), 0.0, ERRORS * float(whole.std()) / math.sqrt(len(whole))),
    ]


def band(curves_DN: Tensor) -> list[Curve]:
    """Within which 95 % of the draws lie, and the first draw."""
    places = DRAWN.numpy()
    low, high = np.quantile(curves_DN.numpy(), [0.025, 0.975], axis=0)
    return [
        Curve("one draw", places, curves_DN[0].numpy()[places]),
        Curve(f"2.5 % of {len(curves_DN)} draws", places, low[places]),
        Curve("97.5 %", places, high[places]),
    ]


@final
class PreviousToken(Item):
    """Figure 1: five tokens, one frequency; the first row rests on itself, every other on the token before it."""

    def make(self, run: RunVerb, subject: Subject | None) -> Outcome:
        psi_C = 30 * torch.tensor([1.0, 0.0], dtype=torch.float64)
        one = torch.ones(1, dtype=torch.float64)
        rows = []
        for i in range(5):
            distances_N = torch.arange(i, -1, -1, dtype=torch.float64)
            alpha_1N = weights(logits(psi_C, turned(psi_C, one), distances_N, one)[None])
            rows.append(torch.nn.functional.pad(alpha_1N[0], (0, 4 - i)))
        alpha_55 = torch.stack(rows)
        wanted = [float(alpha_55[i, max(0, i - 1)]) for i in range(5)]
        comparisons = [at_least(f"weight of row {i} on token {max(0, i - 1)}", w, 0.99) for i, w in enumerate(wanted)]
        return Outcome(
            ours=f"{min(wanted):.3f} of every row's weight",
            comparisons=comparisons,
            panels={"ours": HeatMap(alpha_55, "key", "query", most=1.0)},
            remark="Queries psi, keys R psi. The paper's caption rotates the queries, which under its equation 3 would "
            "attend one token ahead.",
        )


@final
class Decay(Item):
    """Figure 2: the logit of aligned vectors decays with the distance, that of Gaussian ones does not."""

    def make(self, run: RunVerb, subject: Subject | None) -> Outcome:
        curves = {width: aligned(width, torch.arange(5001 + AROUND, dtype=torch.float64)) for width in WIDTHS}
        best = curves[BEST_GUESS]
        comparisons = [
            near(f"(a) around {r:,}, d = {BEST_GUESS:,}", around(best, r), value, READING, published=value)
            for r, value in READ_OFF.items()
        ]
        for width, f_N in curves.items():
            raw = distance_from(READ_OFF, [float(f_N[r]) for r in READ_OFF])
            mean = distance_from(READ_OFF, [around(f_N, r) for r in READ_OFF])
            comparisons.append(shown(f"(a) d = {width:,}: root mean square error at the five values", raw))
            comparisons.append(shown(f"(a) d = {width:,}: the same, each averaged over {AROUND} to either side", mean))
        random_DN = torch.stack([gaussian(DISTANCES, seed) for seed in range(RANDOM)])
        comparisons += without_decay("(b)", random_DN)
        published = Curve("read off the paper", list(READ_OFF), list(READ_OFF.values()), points=True)
        return Outcome(
            ours=f"{around(best, 1000):.3f} at 1,000, {around(best, 5000):.3f} at 5,000",
            comparisons=comparisons,
            panels={
                "(a) all ones": Picture(X, Y, [Curve(f"d = {BEST_GUESS:,}", DRAWN, best[DRAWN]), published]),
                "(b) Gaussian": Picture(X, "q . k / sqrt(d)", [Curve("one draw", DRAWN, random_DN[0][DRAWN])]),
            },
            remark="The paper does not state d. Five values do not decide it: averaged over their neighbours, every "
            "width from 512 up fits them within the error of reading; raw, a wider head fits better because its curve "
            "is smoother. In (b) the paper's normalisation is not known, so only the absence of decay is compared.",
        )


@final
class RandomPositions(Item):
    """Figure 8: over randomly spaced positions aligned vectors decay faster, Gaussian ones as little as before."""

    def make(self, run: RunVerb, subject: Subject | None) -> Outcome:
        spaced = {most: [spacing(most, seed) for seed in range(DRAWS)] for most in LONGEST}
        plain = aligned(HEAD_DIM)
        curves = {"RoPE": plain[None]} | {
            f"L = {most:,}": torch.stack([aligned(HEAD_DIM, d_N) for d_N in draws]) for most, draws in spaced.items()
        }
        reach = {name: first_below(f_DN.mean(0), 0.25) for name, f_DN in curves.items()}
        comparisons = [
            at_most(f"(a) {b} falls to 0.25 sooner than {a}: share of its distance", reach[b] / reach[a], 0.9)
            for a, b in zip(list(reach), list(reach)[1:], strict=False)
        ]
        for most, draws in spaced.items():
            random_DN = torch.stack([gaussian(distances_N, seed) for seed, distances_N in enumerate(draws[:RANDOM])])
            comparisons += without_decay(f"(b) L = {most:,}", random_DN)
        lines = [Curve(name, DRAWN, f_DN.mean(0)[DRAWN]) for name, f_DN in curves.items()]
        wander = band(random_DN)
        return Outcome(
            ours="falls to 0.25 at " + ", ".join(f"{distance:,} ({name})" for name, distance in reach.items()),
            comparisons=comparisons,
            panels={
                "(a) all ones": Picture(X, Y, lines),
                f"(b) Gaussian, L = {LONGEST[-1]:,}": Picture(X, "q . k / sqrt(d)", wander),
            },
            remark=f"Compared by statement, over {DRAWS} draws of the positions; the paper gives no d and no "
            "normalisation, so its curves are not comparable number by number.",
        )


@final
class OneQueryOneKey(Item):
    """Figure 9: one Gaussian query and one Gaussian key, moved apart, do not decay either."""

    def make(self, run: RunVerb, subject: Subject | None) -> Outcome:
        comparisons: list[Comparison] = []
        panels: dict[str, HeatMap | Picture] = {}
        spreads = []
        pairs = [random_vector(2 * HEAD_DIM, seed).view(2, HEAD_DIM) for seed in range(DRAWS)]
        for name, theta in THETAS.items():
            found = [logits(q_C, k_C, DISTANCES, frequencies(HEAD_DIM, theta)) for q_C, k_C in pairs]
            f_DN = torch.stack(found) / math.sqrt(HEAD_DIM)
            comparisons += without_decay(name, f_DN)
            spreads.append(float(f_DN.std()))
            panels[name] = Picture(X, "q . k / sqrt(d)", band(f_DN))
        return Outcome(
            ours=f"a standard deviation of {spreads[0]:.2f} and {spreads[1]:.2f} sqrt(d) at any distance",
            comparisons=comparisons,
            panels=panels,
            remark=f"Compared by statement, over {DRAWS} draws; the paper's d, draw and normalisation are not known, "
            "so its two curves are not comparable number by number.",
        )


def spacing(most: int, seed: int) -> Tensor:
    """Distances from the last of 5,001 positions drawn below `most` to those before it, nearest first: [N]."""
    drawn_N = drawn_positions(seed, 0, most, len(DISTANCES))
    return (drawn_N[-1] - drawn_N.flip(0)).double()


def first_below(f_N: Tensor, level: float) -> int:
    """The first distance at which a curve is below this level."""
    return int((f_N < level).nonzero()[0])


def distance_from(read_off: dict[int, float], ours: Sequence[float]) -> float:
    """Root mean square."""
    return math.sqrt(sum((a - b) ** 2 for a, b in zip(ours, read_off.values(), strict=True)) / len(read_off))


ITEMS: dict[str, Item] = {
    "rope.fig1": PreviousToken(
        shows="one frequency suffices to attend to the token before", published="row i on token i - 1"
    ),
    "rope.fig2": Decay(
        shows="aligned vectors decay with distance, Gaussian ones do not", published="0.185 at 1,000, 0.014 at 5,000"
    ),
    "rope.fig8": RandomPositions(
        shows="the same over randomly spaced positions", published="larger L decays faster; Gaussian ones do not"
    ),
    "rope.fig9": OneQueryOneKey(shows="one Gaussian query and key, theta 10,000 and 500,000", published="no decay"),
}
