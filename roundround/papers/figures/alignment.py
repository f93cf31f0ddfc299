"""Tables 3 to 5 of arXiv:2410.06205: how near a head's logits come to the bound of Cauchy and Schwarz."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from roundround.analysis.intervals import welch_width
from roundround.papers.claim import Comparison, Curve, Picture, as_printed, near, shown
from roundround.papers.figures.item import Item, Outcome, RunVerb, Subject
from roundround.papers.figures.named_heads import DIAGONAL, LATE_DIAGONAL, PREVIOUS, NamedHead, find
from roundround.papers.figures.probed import Array, probed, sentences, whose

N_TOKENS = 8  # columns of the tables, from the first token
HALF_PRECISION = 0.03  # of the first token's bound, which no prompt changes: eight bits twice, and the root of a sum
MARGIN = 0.25  # of the bound: as far as the token before is from 0 in these tables; diagonal heads are 0.75 from 0


@final
@dataclass(frozen=True, kw_only=True)
class Alignment(Item):
    """named: the head. bound, diagonal, previous: the rows of the table; previous has no first column."""

    named: NamedHead
    bound: Sequence[float]
    diagonal: Sequence[float]
    previous: Sequence[float]

    def make(self, run: RunVerb, subject: Subject | None) -> Outcome:
        assert subject is not None
        seen = probed(run, subject)
        prompt = seen.prompt()
        found = find(self.named, seen, prompt, subject)
        rows = {name: as_array(values) for name, values in prompt.alignment(found.layer, found.head).items()}
        diagonal, published_diagonal = rows["diagonal"] / rows["bound"], as_array(self.diagonal) / as_array(self.bound)
        published_previous = as_array(self.previous) / as_array(self.bound[1:])
        before, after = (rows[name][1:] / rows["bound"][1:] for name in ("previous", "next"))
        own_bound = rows["previous"][1:] / rows["bound_previous"][1:]
        target = published_previous.mean()
        readings = {"t on t - 1": before, "t + 1 on t": after}
        nearest = min(readings, key=lambda reading: abs(float(np.nanmean(readings[reading])) - target))
        comparisons = [
            *self.compare_first(rows),
            beside("diagonal: mean share of the bound", diagonal[1:], published_diagonal[1:]),
            beside(f"previous, read as {nearest}: mean share of the bound", readings[nearest], published_previous),
            *[
                shown(f"previous, read as {reading}: mean share of the bound", float(np.nanmean(ratios)), target)
                for reading, ratios in readings.items()
                if reading != nearest
            ],
            shown("previous: mean share of the bound with the key of t - 1", float(np.nanmean(own_bound))),
        ]
        told = f"{diagonal.mean():.3f} of the bound on itself, {np.nanmean(readings[nearest]):.3f} on the token before"
        remark = sentences(
            [
                found.remark,
                f"The column of the token before fits better read as the logit of {nearest}.",
                "The paper divides it by the bound of a token with itself; its own bound stands beside that.",
            ]
        )
        panels = {found.title: self.picture(rows)}
        return whose(Outcome(told, comparisons, panels, remark), subject, self.model)

    def compare_first(self, rows: dict[str, Array]) -> list[Comparison]:
        """The first token sees nothing but itself, whatever the prompt."""
        tolerance = HALF_PRECISION * self.bound[0]
        return [
            as_printed(f"{name} of the first token", rows[name][0], published, tolerance)
            for name, published in (("bound", self.bound[0]), ("diagonal", self.diagonal[0]))
        ]

    def picture(self, rows: dict[str, Array]) -> Picture:
        """Ours as lines, the paper's as points."""
        published = {"bound": self.bound, "diagonal": self.diagonal, "previous": [np.nan, *self.previous]}
        tokens = np.arange(len(rows["bound"]))
        return Picture(
            "token",
            "logit",
            [Curve(f"{name}, ours", tokens, rows[name]) for name in published]
            + [Curve(f"{name}, published", np.arange(N_TOKENS), row, points=True) for name, row in published.items()],
        )


def as_array(values: Sequence[float | None]) -> Array:
    """The columns of the table, NaN where there is none: at most [N_TOKENS]."""
    return np.array([np.nan if value is None else value for value in values[:N_TOKENS]])


def beside(what: str, ours_T: Array, published_T: Array) -> Comparison:
    """The means over tokens, which are other ones in the paper; each mean has its error, that of its own tokens."""
    ours_T = ours_T[np.isfinite(ours_T)]
    means, errors = zip(*((x.mean(), x.std(ddof=1) / np.sqrt(len(x))) for x in (ours_T, published_T)), strict=True)
    error = welch_width(float(errors[0]), len(ours_T), float(errors[1]), len(published_T))
    return near(what, float(means[0]), float(means[1]), MARGIN, float(means[1]), error)


ITEMS: dict[str, Item] = {
    "rope.table3": Alignment(
        shows="Gemma 7B, layer 1, head 5 (diagonal): logits against their bound",
        published="0.755 of the bound on itself, 0.277 on the token before",
        command="roundround probe model=gemma-7b texts=shakespeare",
        model="gemma-7b",
        named=DIAGONAL,
        bound=(3.74, 182.34, 203.65, 483.97, 141.48, 130.71, 168.52, 122.31),
        diagonal=(3.25, 119.60, 156.93, 383.00, 98.47, 92.15, 137.10, 90.71),
        previous=(-8.45, 76.67, 82.13, 29.01, 45.33, 73.04, 55.25),
    ),
    "rope.table4": Alignment(
        shows="Gemma 7B, layer 27, head 8 (diagonal): logits against their bound",
        published="0.846 of the bound on itself, 0.252 on the token before",
        command="roundround probe model=gemma-7b texts=shakespeare",
        model="gemma-7b",
        named=LATE_DIAGONAL,
        bound=(7.91, 64.42, 112.43, 51.97, 52.69, 67.10, 116.41, 67.37),
        diagonal=(6.05, 55.84, 96.52, 45.75, 44.00, 53.83, 105.47, 57.78),
        previous=(-9.63, 32.51, 29.49, 25.96, 20.08, 19.95, 6.07),
    ),
    "rope.table5": Alignment(
        shows="Gemma 7B, layer 1, head 8 (previous token): logits against their bound",
        published="-0.008 of the bound on itself, 0.322 on the token before",
        command="roundround probe model=gemma-7b texts=shakespeare",
        model="gemma-7b",
        named=PREVIOUS,
        bound=(3.85, 76.54, 79.13, 102.41, 61.34, 54.54, 56.62, 57.2),
        diagonal=(-1.58, 3.29, 5.21, -1.46, 4.23, 4.61, 2.47, 3.08),
        previous=(31.04, 35.31, 18.91, 19.72, 18.96, 17.46, 13.67),
    ),
}
