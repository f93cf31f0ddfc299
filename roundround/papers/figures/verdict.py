"""The verdict on a figure or table: one rule for all, on a number's 95 % interval and a margin written before."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from roundround.papers.claim import Comparison

AGREES, SIGN_AGREES, NOT_TOLD_APART, DIFFERS = "agrees", "sign agrees", "not told apart", "differs"
JUDGED = (AGREES, SIGN_AGREES, NOT_TOLD_APART, DIFFERS)  # from best to worst
NOT_TESTED, DRAWN, NOT_RUN = "not tested", "drawn", "not run"
LEARNED = 0.99  # exact match within the trained lengths, below which longer ones say nothing

RULE = f"""Each number is judged by the 95 % interval of its difference from the published value; the error of the
published value is taken in where it is known. The margin stands beside the number. The margins were written down with
this rule, from what the papers claim; most numbers of the page were known by then.

- *{AGREES}*: the whole interval is within the margin.
- *{DIFFERS}*: the whole interval is outside it.
- *{SIGN_AGREES}*: neither, but the interval of an effect leaves out 0, on the published side. Where the paper states a
  direction and no number, more than this is not possible.
- *{NOT_TOLD_APART}*: anything else, also a number whose interval is not known.

An item gets the verdict of its worst number, in the order *{AGREES}*, *{SIGN_AGREES}*, *{NOT_TOLD_APART}*,
*{DIFFERS}*. It is *{NOT_TESTED}* where another pretrained model stands in for the paper's, or where the exact match of
a task is below {LEARNED} within its trained lengths; *{DRAWN}* where a sketch or a listing is compared with itself;
*{NOT_RUN}* otherwise. Only *{DIFFERS}* makes `roundround reproduce` end with exit code 1.
"""


def of_number(comparison: Comparison) -> str:
    """The verdict on a number. NaN differs: it would hide what is broken."""
    c = comparison
    low, high = c.ours - c.error, c.ours + c.error
    if math.isnan(c.ours) or high < c.low or low > c.high:
        return DIFFERS
    if c.low <= low and high <= c.high:
        return AGREES if math.isfinite(c.low) and math.isfinite(c.high) else SIGN_AGREES
    if c.signed and c.published and (low > 0 if c.published > 0 else high < 0):
        return SIGN_AGREES
    return NOT_TOLD_APART


def of_item(comparisons: Sequence[Comparison], *, untested: bool = False, drawn: bool = False) -> str:
    """That of the worst of its judged numbers. drawn: a sketch or listing compared with itself."""
    if untested:
        return NOT_TESTED
    found = [of_number(comparison) for comparison in comparisons if comparison.is_judged]
    if not found:
        return NOT_RUN
    worst = max(found, key=JUDGED.index)
    return DRAWN if drawn and worst != DIFFERS else worst


def counts(verdicts: Iterable[str]) -> str:
    """How many items got each verdict: `agrees 1, sign agrees 5, ...`."""
    found = Counter(verdicts)
    return ", ".join(f"{name} {found[name]}" for name in (*JUDGED, NOT_TESTED, DRAWN, NOT_RUN) if found[name])
