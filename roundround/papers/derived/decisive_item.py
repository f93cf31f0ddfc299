"""What dispersion does to a function of one decisive item: from some length on, no float tells its inputs apart."""

from __future__ import annotations

import math
from typing import ClassVar, final

import numpy as np
import torch
from torch import Tensor

from roundround.attention.keys import Keys
from roundround.papers.claim import Claim, Comparison, Curve, Finding, Picture, at_least, at_most, near
from roundround.papers.constructions import SHAPE, first_length, lone_weight, weights
from roundround.softmax.softmax import Softmax

LEAD = 5.69  # nats: the mean spread of Gemma 2B's logits, all of it the decisive item's
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
TWICE = 2.0**-12  # relative: half precision is rounded to by way of float32, half a spacing met within 2^-24 / 2^-11
LONGEST, RUN_IN_FULL = 10**13, ("bfloat16", "float16")


def length_by_formula(dtype: torch.dtype) -> int:
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
            found = first_length(lambda n, d=dtype: rounded(n, 2.0, d) == rounded(n, 1.0, d), LONGEST)
            expected = length_by_formula(dtype)
            comparisons.append(
                near(f"first n at which {name} tells nothing apart", found, expected, TWICE * expected + 1)
            )
            if name in RUN_IN_FULL:
                comparisons += self.in_full(name, dtype, int(found))
            curves.append(
                Curve(f"half the spacing of {name} at 1", [lengths[0], lengths[-1]], [torch.finfo(dtype).eps / 2] * 2)
            )
        gone = Curve("outputs equal from here", [length_by_formula(d) for d in DTYPES.values()],
                     [torch.finfo(d).eps / 2 for d in DTYPES.values()], points=True)  # fmt: skip
        return Finding(comparisons, Picture("items n", "difference", [*curves, gone], log="xy"), REMARK)

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


REMARK = (
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
