"""By how much remedies lift the constant in Theorem 2.2, and where each disperses after all."""

from __future__ import annotations

import math
from typing import ClassVar, final

import numpy as np
import torch

from roundround.papers.claim import Claim, Comparison, Finding, at_least, at_most, near
from roundround.papers.constructions import SHAPE, first_length, lone_weight, slope, weights
from roundround.papers.softmax.temperature import adaptive, beta_by_listing
from roundround.softmax.log_n import LogN
from roundround.softmax.row_scale import RowScale
from roundround.softmax.softmax import Softmax
from roundround.softmax.ssmax import SSMax
from roundround.support.panels import Curve, Panel

DELTA = 5.69  # nats: the mean spread of Gemma 2B's heads
TRAINED = 2048  # tokens: SSMax and log-n are the plain softmax there, beta = ln n / ln 2048
LONGEST = 10**15
AT = 131_072  # a long context of today


@final
class LiftedConstant(Claim):
    """By how much do adaptive temperature, SSMax and log-n lift the constant in Theorem 2.2, and where do they
    disperse after all? For one item above the rest the temperature lifts it up to 3.7-fold (5.69 nats, 855 keys), and
    by nothing once the row's entropy passes 5.945 nats; SSMax and log-n turn 1/n into n^(s delta - 1); for items
    spread evenly both lift it by a factor of s ln n alone.

    alone at the top: n alpha -> exp(beta delta); beta <= 2.42 (temperature), s ln n (SSMax), max(1, ln n / ln
    n_train) (log-n)

    evenly spread in [0, delta]: n max alpha -> beta delta / (1 - exp(-beta delta))

    Asked of Velickovic et al. 2024, arXiv:2410.01104, Theorem 2.2; SSMax: arXiv:2501.19399. Derived and measured here.
    """

    title: ClassVar[str] = "what remedies lift, and for how long"

    def check(self) -> Finding:
        comparisons: list[Comparison] = []
        curves, told = [], []
        lengths = np.unique(np.logspace(0.5, 7, 150).astype(int))
        for name, softmax in remedies().items():
            alone = [lone_weight(DELTA, int(n), softmax) for n in lengths]
            every = 8 if name == "log-n" else 1  # separate points: it lies on the others' lines
            curves.append(Curve(name, lengths[::every], alone[::every], points=name == "log-n"))
            below = {p: last_above(softmax, p) for p in (0.5, 0.1)}
            lift = lone_weight(DELTA, AT, softmax) / lone_weight(DELTA, AT)
            told.append(
                f"{name} holds half to n = {below[0.5]:,}, a tenth to {below[0.1]:,}, lifts {lift:.3g} times at 131,072"
            )
        comparisons += [*self.temperature(), *self.powers(), *self.spread_evenly()]
        remark = (
            f"One item {DELTA} nats above all others: {'; '.join(told)}. "
            "Where s delta exceeds 1, SSMax and log-n never disperse on such a row: their logits have no bound."
        )
        return Finding(
            comparisons, Panel("keys n", f"weight of one key {DELTA} nats above the rest", curves, log="xy"), remark
        )

    def temperature(self) -> list[Comparison]:
        """What the published polynomial can do, and the length from which it does nothing."""
        softmax = remedies()["adaptive temperature"]
        lengths = np.unique(np.logspace(0.5, 4, 60).astype(int))
        lifts = [lone_weight(DELTA, int(n), softmax) / lone_weight(DELTA, int(n)) for n in lengths]
        expected = [lift_by_formula(int(n)) for n in lengths]
        off = first_length(lambda n: n > 20 and lone_entropy_by_formula(n) > 5.945, 10**7)
        after, before, far = (
            lone_weight(DELTA, n, softmax) / lone_weight(DELTA, n) for n in (off + 20, off - 20, 10**6)
        )
        return [
            near(
                f"largest lift of the temperature, at n = {lengths[np.argmax(lifts)]:,}",
                max(lifts),
                max(expected),
                1e-9,
            ),
            at_most(
                "the same over exp(1.42142 delta), what its largest beta could do",
                max(lifts) / math.exp(1.42142 * DELTA),
                1.0,
            ),
            near(f"its lift 20 keys beyond n = {off:,.0f}, where the entropy passes 5.945 nats", after, 1.0, 1e-12),
            at_least("its lift 20 keys before", before, 1.0 + 1e-6),
            near("its lift at n = 1,000,000", far, 1.0, 1e-12),
        ]

    def powers(self) -> list[Comparison]:
        """SSMax and log-n: the slope of the weight, and where it passes one half."""
        s = 1 / math.log(TRAINED)
        lengths = (10**10, 10**11, 10**12)
        found = []
        for name in ("SSMax", "log-n"):
            softmax = remedies()[name]
            measured = slope(lengths, [lone_weight(DELTA, n, softmax) for n in lengths])
            strong = remedies(strength=1.3 / DELTA)[name]
            found += [
                near(f"slope of the weight from n = 1e10 to 1e12, {name}", measured, s * DELTA - 1, 0.01),
                at_least(f"weight at n = 1e12 where s delta = 1.3, {name}", lone_weight(DELTA, 1e12, strong), 0.99),
            ]
        plain = slope(lengths, [lone_weight(DELTA, n) for n in lengths])
        return [*found, near("slope of the weight from n = 1e10 to 1e12, softmax", plain, -1.0, 0.001)]

    def spread_evenly(self) -> list[Comparison]:
        """n max alpha of logits at even steps over [0, delta], in full rows."""
        n, found = AT, []
        row = torch.linspace(0, DELTA, n, dtype=torch.float64)[None]
        for name, softmax in remedies().items():
            beta = {"SSMax": 1.0, "log-n": 1.0}.get(name, 0.0) * math.log(n) / math.log(TRAINED) or 1.0
            expected = beta * DELTA / -math.expm1(-beta * DELTA)
            ours = n * float(weights(row, softmax).max())
            found.append(
                near(
                    f"n times the largest weight, evenly spread, n = 131,072, {name}", ours, expected, 0.001 * expected
                )
            )
        return found


def remedies(strength: float = 1 / math.log(TRAINED)) -> dict[str, RowScale]:
    """The normalisers; `strength` is s, and 1 / ln n_train."""
    return {
        "softmax": Softmax(SHAPE),
        "adaptive temperature": adaptive(),
        "SSMax": SSMax(SHAPE, s=strength, bias=False, scaled_heads=None).requires_grad_(False),
        "log-n": LogN(SHAPE, n_train=max(2, round(math.exp(1 / strength)))),
    }


def last_above(softmax: RowScale, level: float) -> int | float:
    """Largest n up to 1e15 at which the lone item has at least this weight; it may lie below before."""
    grid = np.unique(np.logspace(0.31, 15, 600).astype(np.int64))
    above = [int(n) for n in grid if lone_weight(DELTA, int(n), softmax) >= level]
    if not above:
        return 0
    last = above[-1]
    behind = first_length(lambda k: lone_weight(DELTA, last + k, softmax) < level, int(0.2 * last) + 10)
    return last + int(behind) - 1 if math.isfinite(behind) else math.inf


def lone_entropy_by_formula(n: float) -> float:
    """Of the row under the plain softmax, in nats, written out."""
    share = 1 / (1 + (n - 1) * math.exp(-DELTA))
    rest = 1 - share
    return -share * math.log(share) - rest * math.log(rest / (n - 1))


def lift_by_formula(n: int) -> float:
    """Of the lone item's weight by the paper's listing, written out."""
    beta = beta_by_listing(lone_entropy_by_formula(n))
    return (1 + (n - 1) * math.exp(-DELTA)) / (1 + (n - 1) * math.exp(-beta * DELTA))
