"""What follows from Lemma 2.1 of arXiv:2410.01104 and does not stand there: derived here, checked like the others."""

from __future__ import annotations

import math
from typing import ClassVar, final

import numpy as np
import torch
from torch import Tensor

from roundround.attention.keys import Keys
from roundround.papers.claim import Claim, Comparison, Finding, Trained, at_least, at_most, near
from roundround.papers.constructions import SHAPE, first_length, lone_weight, random_vector, weights
from roundround.papers.trained import rows_of_model
from roundround.softmax.softmax import Softmax
from roundround.support.panels import Curve, Panel

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
        gone = Curve("outputs equal from here", [length_of_floats(d) for d in DTYPES.values()],
                     [torch.finfo(d).eps / 2 for d in DTYPES.values()], points=True)  # fmt: skip
        return Finding(comparisons, Panel("items n", "difference", [*curves, gone], log="xy"), ABOUT_ITEM)

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


ABOUT_ITEM = (
    "The decisive item leads all others by 5.69 nats, Gemma 2B's mean spread; its value is 1 or 2, all others are 1. "
    "Continuous layers behind the head can magnify a difference, but not one that rounding has made zero."
)


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

    def of_other_rows(self, delta: float, best: float) -> Comparison:
        """Random rows stretched to this spread: one key at the top is the best case."""
        rows_RN = random_vector(8, CONTEXT, seed=0)
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
        picture = Panel("keys n", "largest possible weight", curves, log="x")
        return Finding(comparisons, picture, remark, can_fail=False)


ABOUT_DELTAS = (
    "The paper prints the deltas (pooled over heads, layers and unknown query positions); lengths and weights follow "
    "from them in the best case, one key at the top and all others at the bottom. Real rows are flatter."
)
