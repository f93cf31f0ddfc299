"""What follows from Lemma 2.1 and Theorem 2.2 of arXiv:2410.01104 and does not stand there: heads that disperse.

Derived here and checked like the others; by how much remedies lift the constant, and where each disperses after all.

Tested by tests/papers/test_softmax_claims.py and test_beyond_claims.py.
"""

from __future__ import annotations

import math
from typing import ClassVar, final

import numpy as np
import torch
from torch import Tensor

from roundround.kernels.keys import Keys
from roundround.papers.claim import (
    Claim,
    Comparison,
    Finding,
    at_least,
    at_most,
    near,
)
from roundround.papers.constructions import (
    SHAPE,
    first_length,
    lone_weight,
    random_vector,
    slope,
    weights,
)
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
    disperse after all? For one item above the rest the temperature lifts it up to 3.71-fold (5.69 nats, 854 keys), and
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
        curves, summary = [], []
        lengths = np.unique(np.logspace(0.5, 7, 150).astype(int))
        for name, softmax in remedies().items():
            alone = [lone_weight(DELTA, int(n), softmax) for n in lengths]
            every = 8 if name == "log-n" else 1  # separate points: it lies on the others' lines
            curves.append(Curve(name, lengths[::every], alone[::every], points=name == "log-n"))
            below = {p: last_above(softmax, p) for p in (0.5, 0.1)}
            lift = lone_weight(DELTA, AT, softmax) / lone_weight(DELTA, AT)
            summary.append(
                f"{name} holds half to n = {below[0.5]:,}, a tenth to {below[0.1]:,}, lifts {lift:.3g} times at 131,072"
            )
        comparisons += [*self.temperature(), *self.powers(), *self.spread_evenly()]
        remark = (
            f"One item {DELTA} nats above all others: {'; '.join(summary)}. "
            "Where s delta exceeds 1, SSMax and log-n never disperse on such a row: their logits have no bound."
        )
        return Finding(
            comparisons, Panel("keys n", f"weight of one key {DELTA} nats above the rest", curves, log="xy"), remark
        )

    def temperature(self) -> list[Comparison]:
        """What the published polynomial can do, and the length from which it does nothing."""
        softmax = remedies()["adaptive temperature"]
        lengths = np.unique([*np.logspace(0.5, 4, 60).astype(int), *range(500, 1301)])
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
            near("that lift", max(lifts), 3.714, 0.001),
            near("its place", float(lengths[np.argmax(lifts)]), 854, 0),
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


LEAD = 5.69  # nats: the mean spread of Gemma 2B's logits, all of it the decisive item's
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
TWICE = 2.0**-12  # relative: half precision is rounded to by way of float32, half a spacing met within 2^-24 / 2^-11
LONGEST_OF_FLOATS, RUN_IN_FULL = 10**13, ("bfloat16", "float16")


def length_of_floats(dtype: torch.dtype) -> int:
    """Smallest n at which 1 + alpha rounds to 1, ties to even: alpha = 1 / (1 + (n - 1) e^-LEAD) <= spacing / 2."""
    half = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2.0**-24}[dtype]
    return math.ceil(math.exp(LEAD) * (1 / half - 1) + 1)


@final
class DecisiveItem(Claim):
    """Two inputs that differ in the one decisive item give outputs that no float of a given width tells apart, from
    some length on.

    f(x) = v of the decisive item, whatever n; the head gives z = sum_i alpha_i v_i, so |z - z'| = alpha |v - v'| <=
    exp(delta) |v - v'| / n

    equal in floating point from alpha <= half the spacing of numbers at z

    Derived here from Lemma 2.1 of Velickovic et al. 2024, arXiv:2410.01104. Corollary B.1 of that paper is about
    functions of a fixed number of items too; its wording was not seen, so this is not it.
    """

    title: ClassVar[str] = "the decisive item drowns"

    def check(self) -> Finding:
        comparisons: list[Comparison] = [self.gap_within_bound()]
        lengths = np.logspace(0.5, 12, 140)
        curves = [Curve("difference of the outputs", lengths, [lone_weight(LEAD, n) for n in lengths])]
        for name, dtype in DTYPES.items():
            found = first_length(lambda n, d=dtype: rounded(n, 2.0, d) == rounded(n, 1.0, d), LONGEST_OF_FLOATS)
            expected = length_of_floats(dtype)
            comparisons.append(
                near(f"first n at which {name} tells nothing apart", found, expected, TWICE * expected + 1)
            )
            if name in RUN_IN_FULL:
                comparisons += self.in_full(name, dtype, int(found))
            curves.append(
                Curve(f"half the spacing of {name} at 1", [lengths[0], lengths[-1]], [torch.finfo(dtype).eps / 2] * 2)
            )
        remark = (
            "The decisive item leads all others by 5.69 nats, Gemma 2B's mean spread; its value is 1 or 2, all others "
            "are 1. Continuous layers behind the head can magnify a difference, but not one that rounding has made "
            "zero."
        )
        gone = Curve("outputs equal from here", [length_of_floats(d) for d in DTYPES.values()],
                     [torch.finfo(d).eps / 2 for d in DTYPES.values()], points=True)  # fmt: skip
        return Finding(comparisons, Panel("items n", "difference", [*curves, gone], log="xy"), remark)

    def gap_within_bound(self) -> Comparison:
        """Random rows and values: the outputs differ by at most exp(delta) / n of the items' difference."""
        generator, closest = torch.Generator().manual_seed(0), 0.0
        for n in (4, 32, 256, 2048, 16384):
            logits_N = torch.randn(n, generator=generator, dtype=torch.float64)
            values_N = torch.randn(n, generator=generator, dtype=torch.float64)
            other_N = values_N.clone()
            other_N[logits_N.argmax()] += 1.0
            alpha_N = weights(logits_N[None])[0]
            limit = math.exp(float(logits_N.max() - logits_N.min())) / n
            closest = max(closest, abs(float(alpha_N @ other_N - alpha_N @ values_N)) / limit)
        return at_most("difference of outputs over exp(delta) / n, closest of 5 random rows", closest, 1.0)

    def in_full(self, name: str, dtype: torch.dtype, n: int) -> list[Comparison]:
        """The same by attention over all items in that precision, well before and well after the length."""
        before, after = (float((attended(m, 2.0, dtype) - attended(m, 1.0, dtype)).abs()) for m in (n // 4, n * 2))
        return [
            at_least(f"difference by attention in {name} at a quarter of that length", before, torch.finfo(dtype).eps),
            near(f"difference by attention in {name} at twice that length", after, 0.0, 0.0),
        ]


def rounded(n: float, value: float, dtype: torch.dtype) -> float:
    """The head's output where the decisive item has this value and all others 1, rounded to this precision."""
    return float(torch.tensor(1.0 + lone_weight(LEAD, n) * (value - 1), dtype=torch.float64).to(dtype))


def attended(n: int, value: float, dtype: torch.dtype) -> Tensor:
    """The same output by this program's attention, all n keys and values in this precision."""
    k_NC = torch.zeros(n, SHAPE.head_dim, dtype=dtype)
    k_NC[n // 2, 0] = 1.0
    v_NC = torch.ones(n, SHAPE.head_dim, dtype=dtype)
    v_NC[n // 2] = value
    q = torch.zeros(1, 1, 1, SHAPE.head_dim, dtype=dtype)
    q[..., 0] = LEAD
    keys = Keys(q_pos_BQ=torch.tensor([[n - 1]]), k_pos_BK=torch.arange(n)[None])
    out: Tensor = Softmax(SHAPE)(q, k_NC[None, None], v_NC[None, None], scale=1.0, keys=keys, bias=None, rows={})[
        0, 0, 0, 0
    ]
    return out


DELTAS = {"2B, least": 2.28, "2B, mean": 5.69, "7B, mean": 5.82, "2B, most": 14.78, "7B, most": 32.74}
LEVELS, CONTEXT, LONGEST_ROW = (0.5, 0.1), 8192, 10**17


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
                found = first_length(lambda n, d=delta, p=level: lone_weight(d, n) < p, LONGEST_ROW)
                expected = length_by_formula(delta, level)
                what = f"first n with weight below {level:g}, delta {delta:g} ({name})"
                comparisons.append(near(what, found, expected, 1e-9 * expected + 1))
                if expected <= CONTEXT:
                    comparisons += self.in_full(delta, level, expected)
            best = 1 / (1 + (CONTEXT - 1) * math.exp(-delta))
            ours = lone_weight(delta, CONTEXT)
            comparisons.append(near(f"best weight at n = 8,192, delta {delta:g} ({name})", ours, best, 1e-12))
            rows_RN = random_vector(8, CONTEXT, seed=0)  # one key at the top is the best case
            rows_RN = delta * rows_RN / (rows_RN.amax(-1, keepdim=True) - rows_RN.amin(-1, keepdim=True))
            what = f"largest weight of 8 random rows of 8,192 keys over the best, delta {delta:g}"
            comparisons.append(at_most(what, float(weights(rows_RN).max()) / best, 1.0))
        lengths = np.logspace(0.31, 16, 160)
        curves = [
            Curve(f"Gemma {name}: {delta:g}", lengths, [lone_weight(delta, n) for n in lengths])
            for name, delta in DELTAS.items()
        ]
        return Finding(comparisons, Panel("keys n", "largest possible weight", curves, log="x"), ABOUT_DELTAS)

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


ABOUT_DELTAS = (
    "The paper prints the deltas (pooled over heads, layers and unknown query positions); lengths and weights follow "
    "from them in the best case, one key at the top and all others at the bottom. Real rows are flatter."
)
