"""How large logits are in trained models.

Tables 3 to 5 of arXiv:2410.06205: how near a head's logits come to the bound of Cauchy and Schwarz. Figure 3 and the
deltas of arXiv:2410.01104: what Gemma 2B's heads do with longer lists, and with code.

Tested by tests/papers/test_papers_models.py and tests/papers/test_other_models.py.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from roundround.analysis.intervals import welch_width
from roundround.papers.claim import (
    CheckedNumber,
    as_printed,
    at_least,
    near,
    shown,
)
from roundround.papers.figures import Figure, Outcome, RunVerb, Subject
from roundround.papers.figures.probed import Array, ModelFigure, numbers, probed
from roundround.papers.figures.single_heads import DIAGONAL, LATE_DIAGONAL, PREVIOUS, NamedHead, find
from roundround.support.panels import Curve, Panel

N_TOKENS = 8  # columns of the tables, from the first token
HALF_PRECISION = 0.03  # of the first token's bound, which no prompt changes: eight bits twice, and the root of a sum
MARGIN = 0.25  # of the bound: as far as the token before is from 0 in these tables; diagonal heads are 0.75 from 0
# Gemma 2B: smallest, largest, mean and standard deviation of max - min of a row's logits, over heads and layers
SPREADS = {"smallest": 2.28, "largest": 14.78, "mean": 5.69, "standard deviation": 2.05}
N_HEADS = 18 * 8  # of Gemma 2B
SPREAD_MARGIN, WIDE_MARGIN = 0.1, 0.25  # of the mean; of what hangs on single heads. Gemma 7B's ends lie outside
GEMMA_7B = "Gemma 7B, as published: 0.09 to 32.74, mean 5.82, standard deviation 2.61."


@final
@dataclass(frozen=True, kw_only=True)
class Alignment(ModelFigure):
    """named: the head. bound, diagonal, previous: the rows of the table; previous has no first column."""

    named: NamedHead
    bound: Sequence[float]
    diagonal: Sequence[float]
    previous: Sequence[float]

    def look(self, run: RunVerb, subject: Subject) -> Outcome:
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
            *[
                as_printed(f"{name} of the first token", rows[name][0], published, HALF_PRECISION * self.bound[0])
                for name, published in (("bound", self.bound[0]), ("diagonal", self.diagonal[0]))  # it sees only itself
            ],
            beside("diagonal: mean share of the bound", diagonal[1:], published_diagonal[1:]),
            beside(f"previous, read as {nearest}: mean share of the bound", readings[nearest], published_previous),
            *[
                shown(f"previous, read as {reading}: mean share of the bound", float(np.nanmean(ratios)), target)
                for reading, ratios in readings.items()
                if reading != nearest
            ],
            shown("previous: mean share of the bound with the key of t - 1", float(np.nanmean(own_bound))),
        ]
        summary = (
            f"{diagonal.mean():.3f} of the bound on itself, {np.nanmean(readings[nearest]):.3f} on the token before"
        )
        remark = (
            f"{found.remark} The column of the token before fits better read as the logit of {nearest}. "
            "The paper divides it by the bound of a token with itself; its own bound stands beside that."
        ).lstrip()
        return Outcome(summary, comparisons, {found.title: self.picture(rows)}, remark)

    def picture(self, rows: dict[str, Array]) -> Panel:
        """Ours as lines, the paper's as points."""
        published = {"bound": self.bound, "diagonal": self.diagonal, "previous": [np.nan, *self.previous]}
        tokens = np.arange(len(rows["bound"]))
        return Panel(
            "token",
            "logit",
            [Curve(f"{name}, ours", tokens, rows[name]) for name in published]
            + [Curve(f"{name}, published", np.arange(N_TOKENS), row, points=True) for name, row in published.items()],
        )


def as_array(values: Sequence[float | None]) -> Array:
    """The columns of the table, NaN where there is none: at most [N_TOKENS]."""
    return np.array([np.nan if value is None else value for value in values[:N_TOKENS]])


def beside(what: str, ours_T: Array, published_T: Array) -> CheckedNumber:
    """The means over tokens, which are other ones in the paper; each mean has its error, that of its own tokens."""
    ours_T = ours_T[np.isfinite(ours_T)]
    means, errors = zip(*((x.mean(), x.std(ddof=1) / np.sqrt(len(x))) for x in (ours_T, published_T)), strict=True)
    error = welch_width(float(errors[0]), len(ours_T), float(errors[1]), len(published_T))
    return near(what, float(means[0]), float(means[1]), MARGIN, float(means[1]), error)


@final
class EntropyOfLists(ModelFigure):
    """Figure 3: entropy of the first layer's heads at the end of a question about the largest of ever more numbers."""

    def look(self, run: RunVerb, subject: Subject) -> Outcome:
        directory = run("probe", *subject.overrides, "prompt=maximum")
        by_head: dict[int, dict[int, float]] = defaultdict(dict)
        for record in json.loads((directory / "results.json").read_text(encoding="utf-8")):
            if record["metric"] == "entropy" and record["layer"] == 0:
                by_head[record["head"]][record["n"]] = record["value"]
        gains = {head: entropies[max(entropies)] - entropies[min(entropies)] for head, entropies in by_head.items()}
        n_growing = sum(gain > 0 for gain in gains.values())
        last = max(by_head[0])
        curves = [Curve(f"head {head}", list(found), list(found.values())) for head, found in by_head.items()]
        remark = (
            f"Entropy {'grows' if n_growing == len(gains) else 'does not grow'} in every head here. "
            "The paper does not print its prompt, and the values of its figure are not known here: that entropy grows "
            "is all that is compared."
        )
        return Outcome(
            ours=f"entropy grows in {n_growing} of {len(gains)} heads, from 1 to {last} numbers",
            comparisons=[at_least(f"head {head}: entropy gained (nats)", gain, 0.0) for head, gain in gains.items()],
            panels={"entropy of the last row, first layer": Panel("listed numbers", "entropy (nats)", curves, log="x")},
            remark=remark,
        )


@final
class Spreads(ModelFigure):
    """The table of delta, the largest less the smallest logit of a row, over all heads and layers, on source code."""

    def look(self, run: RunVerb, subject: Subject) -> Outcome:
        spread_LH = numbers(probed(run, subject, "code").arrays["logit_spread"])
        spreads = np.sort(spread_LH[np.isfinite(spread_LH)])
        ours = {
            "smallest": spreads[0],
            "largest": spreads[-1],
            "mean": spreads.mean(),
            "standard deviation": spreads.std(),
        }
        n, mean, deviation = len(spreads), SPREADS["mean"], SPREADS["standard deviation"]
        error = welch_width(ours["standard deviation"] / np.sqrt(n), n, deviation / np.sqrt(N_HEADS), N_HEADS)
        published = Curve("published: smallest, mean, largest", [0, 0.5, 1], [2.28, mean, 14.78], points=True)
        share = np.linspace(0, 1, len(spreads)) if len(spreads) > 1 else [0.5]
        return Outcome(
            ours=f"{ours['smallest']:.2f} to {ours['largest']:.2f}, mean {ours['mean']:.2f}",
            comparisons=[
                as_printed("mean of the spreads", ours["mean"], mean, SPREAD_MARGIN * mean, error),
                *[
                    as_printed(f"{name} of the spreads", ours[name], published, WIDE_MARGIN * published)
                    for name, published in SPREADS.items()
                    if name != "mean"
                ],
            ],
            panels={"sorted": Panel("share of the heads", "spread", [Curve("ours", share, spreads), published])},
            remark="Ours are each head's mean over rows, on other code; the paper does not say which rows. The "
            f"interval is over the heads. {GEMMA_7B}",
        )


FIGURES: dict[str, Figure] = {
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
    "softmax.fig3": EntropyOfLists(
        shows="Gemma 2B, first layer: entropy of each head against the length of a list",
        published="entropy grows with the list in every head",
        command="roundround probe model=gemma-2b prompt=maximum",
        model="gemma-2b",
    ),
    "softmax.deltas": Spreads(
        shows="Gemma 2B: spread of the logits, over heads and layers, on source code",
        published="2.28 to 14.78, mean 5.69",
        command="roundround probe model=gemma-2b texts=code",
        model="gemma-2b",
    ),
}
