"""Figures and tables that need no model: statements of both papers, and RoPE alone by this program's own rotation.

RoPE alone are figures 1, 2, 8 and 9 of arXiv:2410.06205. Neither figure's width is printed; all are drawn at the one
whose curve is nearest to Figure 2(a).
Shapes: N positions or distances, C channels, D draws.

Tested by tests/papers/test_figure.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

import numpy as np
import torch
from torch import Tensor

from roundround.analysis.intervals import half_width
from roundround.papers.claim import (
    DIFFERS,
    CheckedNumber,
    Figure,
    Finding,
    RunVerb,
    at_least,
    at_most,
    checks_of,
    near,
    shown,
)
from roundround.papers.constructions import aligned, frequencies, logits, random_vector, rotated, turned, weights
from roundround.pe.rope_random import drawn_positions
from roundround.support.panels import Curve, HeatMap, Panel

N_DISTANCES = 5001  # from 0
DRAWN = torch.arange(0, N_DISTANCES, 10)  # of the curves
WIDTH = 1024  # of the vectors: the best guess, by the shape of Figure 2(a)
WIDTHS = (256, 512, WIDTH, 2048, 4096)
READ_OFF = {1000: 0.185, 2000: 0.111, 3000: 0.069, 4000: 0.040, 5000: 0.014}  # of Figure 2(a)
AROUND = 50  # tokens to either side over which a value is averaged
READING = 0.02  # of values read off a picture whose axis goes from -1 to 1
# Root mean square of the curve of this width about its mean over the neighbours: the picture's 500 readings follow the
# unsmoothed curve to 0.007, so that they wander about their own means by as much, give or take that.
WANDER, FOLLOWED = 0.016, 0.007
SPACINGS = 100  # draws of positions, and of what is drawn as a band
DRAWS = 10 * SPACINGS  # of vectors, for the absence of a decay
ENDS = torch.cat([torch.arange(1, 1001, 100), torch.arange(4001, 5001, 100)])  # distances at either end, nearest first
EQUIVALENT = 0.1  # of the mean square near by: no decay, and no growth
LONGEST = (10_000, 20_000, 50_000)  # ranges of Random RoPE's positions
X, Y = "relative distance (tokens)", "q . k, as a share of its largest value"


def gaussian(distances_DN: Tensor, seed: int) -> Tensor:
    """The logit of Gaussian queries and keys, fresh ones at every distance, in standard deviations: [D, N]."""
    pos = -distances_DN.flatten().double()
    q_NC, k_NC = random_vector(2, len(pos), WIDTH, seed=seed)
    logits_N: Tensor = (q_NC * rotated(k_NC, pos, frequencies(WIDTH))).sum(-1)
    return (logits_N / math.sqrt(WIDTH)).view(distances_DN.shape)


def one_pair(distances_N: Tensor, theta: float, n_draws: int) -> Tensor:
    """The same for one Gaussian query and one Gaussian key at all distances, drawn again and again: [D, N]."""
    ladder_P = frequencies(WIDTH, theta)
    pairs = (random_vector(2, WIDTH, seed=seed) for seed in range(n_draws))
    return torch.stack([logits(q_C, k_C, distances_N, ladder_P) for q_C, k_C in pairs]) / math.sqrt(WIDTH)


def fresh(distances_DN: Tensor) -> Tensor:
    """DRAWS of `gaussian` at these distances, of which there is one row for all or one for each of SPACINGS: [D, N]."""
    distances_DN = distances_DN.expand(SPACINGS, -1)
    return torch.cat([gaussian(distances_DN, seed) for seed in range(DRAWS // SPACINGS)])


def around(f_N: Tensor, distance: int) -> float:
    """The mean over the distances near this one."""
    return float(f_N[max(0, distance - AROUND) : distance + AROUND + 1].mean())


def without_decay(what: str, curves_DN: Tensor) -> CheckedNumber:
    """The mean square at the far half of ENDS is that at the near half, as a share of it; draws are independent."""
    near_D, far_D = (half_DN.square().mean(1) for half_DN in curves_DN.chunk(2, 1))
    change_D = (far_D - near_D) / near_D.mean()
    error = float(half_width(change_D.numpy()))
    return near(
        f"{what}: change of the mean square from near to far", float(change_D.mean()), 0, EQUIVALENT, error=error
    )


def wander(f_N: Tensor) -> float:
    """Root mean square of a curve about its mean over the neighbours."""
    n = 2 * AROUND + 1
    return float((f_N[AROUND:-AROUND] - f_N.unfold(0, n, 1).mean(1)).square().mean().sqrt())


def band(curves_DN: Tensor) -> list[Curve]:
    """Within which 95 % of the draws lie at the distances DRAWN, and the first draw."""
    low, high = np.quantile(curves_DN.numpy(), [0.025, 0.975], axis=0)
    return [
        Curve("one draw", DRAWN, curves_DN[0]),
        Curve(f"2.5 % of {len(curves_DN)} draws", DRAWN, low),
        Curve("97.5 %", DRAWN, high),
    ]


def previous_token(run: RunVerb) -> Finding:
    """Figure 1: five tokens, one frequency; the first row rests on itself, every other on the token before it."""
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
    return Finding(
        ours=f"{min(wanted):.3f} of every row's weight",
        comparisons=comparisons,
        panels={"ours": HeatMap(alpha_55, "key", "query", most=1.0, label="weight")},
        remark="Queries psi, keys R psi. The paper's caption rotates the queries, which under its equation 3 would "
        "attend one token ahead. The paper's figure is a sketch.",
        drawn=True,
    )


def decay(run: RunVerb) -> Finding:
    """Figure 2: the logit of aligned vectors decays with the distance, that of Gaussian ones does not."""
    curves = {width: aligned(torch.arange(N_DISTANCES + AROUND), frequencies(width)) for width in WIDTHS}
    best = curves[WIDTH]
    comparisons = [
        near(f"(a) around {r:,}, d = {WIDTH:,}", around(best, r), value, READING, published=value)
        for r, value in READ_OFF.items()
    ]
    comparisons += [
        at_least("(a) fall from 1,000 to 5,000", around(best, 1000) - around(best, 5000), 0.0),
        near("(a) deviation from the mean of neighbours", wander(best), WANDER, FOLLOWED, published=WANDER),
    ]
    for width, f_N in curves.items():
        raw = math.sqrt(sum((float(f_N[r]) - value) ** 2 for r, value in READ_OFF.items()) / len(READ_OFF))
        comparisons += [
            shown(f"(a) d = {width:,}: root mean square error at the five values", raw),
            shown(f"(a) d = {width:,}: deviation from the mean of neighbours", wander(f_N)),
        ]
    comparisons.append(without_decay("(b)", fresh(ENDS)))
    published = Curve("read off the paper", list(READ_OFF), list(READ_OFF.values()), points=True)
    return Finding(
        ours=f"{around(best, 1000):.3f} at 1,000, {around(best, 5000):.3f} at 5,000",
        comparisons=comparisons,
        panels={
            "(a) all ones": Panel(X, Y, [Curve(f"d = {WIDTH:,}", DRAWN, best[DRAWN]), published]),
            "(b) Gaussian": Panel(X, "q . k / sqrt(d)", [Curve("one draw", DRAWN, gaussian(DRAWN, 0))]),
        },
        remark="The paper does not state d, and its curve is known here by five values, so that (a) is compared by "
        f"its direction: the values, each averaged over {AROUND} distances to either side, do not decide d, and a "
        "smooth curve without RoPE would fit them too. Its deviations from these means tell: they depend on d, and "
        f"the picture follows d = {WIDTH:,} to {FOLLOWED}. In (b) the paper's normalisation is not known, so only "
        f"the absence of decay is compared, over {DRAWS:,} draws.",
    )


def random_positions(run: RunVerb) -> Finding:
    """Figure 8: over randomly spaced positions aligned vectors decay faster, Gaussian ones as little as before."""
    curve_N = aligned(torch.arange(LONGEST[-1]), frequencies(WIDTH))
    spaced = {most: torch.stack([spacing(most, seed) for seed in range(SPACINGS)]) for most in LONGEST}
    curves = {"RoPE": curve_N[None, :N_DISTANCES]} | {f"L = {n:,}": curve_N[d_DN] for n, d_DN in spaced.items()}
    reach = {name: int((f_DN.mean(0) < 0.25).nonzero()[0]) for name, f_DN in curves.items()}
    comparisons = [
        at_most(f"(a) {b} falls to 0.25 sooner than {a}: share of its distance", reach[b] / reach[a], 0.9)
        for a, b in zip(list(reach), list(reach)[1:], strict=False)
    ]
    comparisons += [without_decay(f"(b) L = {n:,}", fresh(d_DN[:, ENDS])) for n, d_DN in spaced.items()]
    lines = [Curve(name, DRAWN, f_DN.mean(0)[DRAWN]) for name, f_DN in curves.items()]
    farthest_DN = spaced[LONGEST[-1]][:, DRAWN]
    wandering = band(torch.cat([gaussian(d_N[None], seed) for seed, d_N in enumerate(farthest_DN)]))
    return Finding(
        ours="falls to 0.25 at " + ", ".join(f"{distance:,} ({name})" for name, distance in reach.items()),
        comparisons=comparisons,
        panels={
            "(a) all ones": Panel(X, Y, lines),
            f"(b) Gaussian, L = {LONGEST[-1]:,}": Panel(X, "q . k / sqrt(d)", wandering),
        },
        remark=f"Compared by statement, (a) over {SPACINGS} draws of the positions, (b) over {DRAWS:,} of the "
        "vectors; the paper gives no d and no normalisation, so its curves are not compared number by number. The "
        "width is that of figure 2.",
    )


def one_query_one_key(run: RunVerb) -> Finding:
    """Figure 9: one Gaussian query and one Gaussian key, moved apart, do not decay either."""
    comparisons: list[CheckedNumber] = []
    panels: dict[str, HeatMap | Panel] = {}
    spreads = []
    for name, theta in (("theta = 10,000", 1e4), ("theta = 500,000", 5e5)):
        ends_DN = one_pair(ENDS, theta, DRAWS)
        comparisons.append(without_decay(name, ends_DN))
        spreads.append(float(ends_DN.std()))
        panels[name] = Panel(X, "q . k / sqrt(d)", band(one_pair(DRAWN, theta, SPACINGS)))
    return Finding(
        ours=f"a standard deviation of {spreads[0]:.2f} and {spreads[1]:.2f} sqrt(d) at any distance",
        comparisons=comparisons,
        panels=panels,
        remark=f"Compared by statement, over {DRAWS:,} draws; the paper's d, draw and normalisation are not known, "
        "so its two curves are not compared number by number. The width is that of figure 2.",
    )


def spacing(most: int, seed: int) -> Tensor:
    """Distances from the last of 5,001 positions drawn below `most` to those before it, nearest first: [N]."""
    drawn_N = drawn_positions(seed, 0, most, N_DISTANCES)
    distances_N: Tensor = drawn_N[-1] - drawn_N.flip(0)
    return distances_N


def statements(run: RunVerb, claims: Mapping[str, str], remark: str = "", drawn: bool = False) -> Finding:
    """What is a statement in the paper, rather than a measurement: judged by every number of these statements.

    claims: what each stands for, by its name. drawn: whether the paper has a sketch or a listing, made again of the
    same formula.
    """
    found = {name: checks_of(name)[0]() for name in claims}
    parts = [
        f"{meaning}: {sum(c.verdict != DIFFERS for c in found[name].comparisons)} of {len(found[name].comparisons)}"
        for name, meaning in claims.items()
    ]
    comparisons = [comparison for finding in found.values() for comparison in finding.comparisons]
    panels = {name: panel for finding in found.values() for name, panel in finding.panels.items()}
    return Finding(comparisons, panels, remark, "; ".join(parts), drawn=drawn)


FIGURES: dict[str, Figure] = {
    "rope.table1": Figure(
        shows="what NoPE, RoPE and p-RoPE can do: patterns of position, of meaning",
        published="NoPE no, yes; RoPE yes, no; p-RoPE yes, yes",
        command="roundround theory rope.prop_5_2 rope.thm_5_3 rope.thm_6_1 rope.table_1",
        measure=partial(
            statements,
            claims={
                "rope.prop_5_2": "NoPE has no positions",
                "rope.thm_5_3": "RoPE has",
                "rope.thm_6_1": "its slow channels do not last",
                "rope.table_1": "each by its own ladder, p-RoPE with p = 0.75 and 0.25",
            },
            remark="The table is about single heads. What p-RoPE keeps at any distance is the order of two keys; a "
            "weight among many keys it does not guarantee. The paper has ticks and no numbers, so that their "
            "direction is all that can agree.",
        ),
    ),
    "softmax.fig1": Figure(
        shows="every softmax head disperses as inputs grow (a sketch in the paper)",
        published="every weight tends to 0",
        command="roundround theory softmax.thm_2_2",
        measure=partial(
            statements, claims={"softmax.thm_2_2": "largest weight of every row below exp(delta) / n"}, drawn=True
        ),
    ),
    "softmax.fig4": Figure(
        shows="the adaptive temperature as code",
        published="-0.037, 0.481, -2.3, 4.917, -1.791",
        command="roundround theory softmax.polynomial",
        measure=partial(statements, claims={"softmax.polynomial": "the published listing"}, drawn=True),
    ),
    "rope.fig1": Figure(
        shows="one frequency suffices to attend to the token before",
        published="row i on token i - 1",
        measure=previous_token,
    ),
    "rope.fig2": Figure(
        shows="aligned vectors decay with distance, Gaussian ones do not",
        published="0.185 at 1,000, 0.014 at 5,000",
        measure=decay,
    ),
    "rope.fig8": Figure(
        shows="the same over randomly spaced positions",
        published="larger L decays faster; Gaussian ones do not",
        measure=random_positions,
    ),
    "rope.fig9": Figure(
        shows="one Gaussian query and key, theta 10,000 and 500,000", published="no decay", measure=one_query_one_key
    ),
}
