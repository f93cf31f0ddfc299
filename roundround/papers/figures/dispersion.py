"""Figure 3 of arXiv:2410.01104 and its table of logit spreads: what Gemma 2B's heads do with longer lists and code."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import final

import numpy as np

from roundround.analysis.intervals import welch_width
from roundround.papers.claim import Curve, Picture, as_printed, at_least
from roundround.papers.figures.item import Item, Outcome, RunVerb, Subject
from roundround.papers.figures.probed import numbers, probed, whose

# Gemma 2B: smallest, largest, mean and standard deviation of max - min of a row's logits, over heads and layers
PUBLISHED = {"smallest": 2.28, "largest": 14.78, "mean": 5.69, "standard deviation": 2.05}
N_HEADS = 18 * 8  # of Gemma 2B
MARGIN, WIDE_MARGIN = 0.1, 0.25  # of the mean; of what hangs on single heads. Gemma 7B's ends lie outside
GEMMA_7B = "Gemma 7B, as published: 0.09 to 32.74, mean 5.82, standard deviation 2.61."


@final
class EntropyOfLists(Item):
    """Figure 3: entropy of the first layer's heads at the end of a question about the largest of ever more numbers."""

    def make(self, run: RunVerb, subject: Subject | None) -> Outcome:
        assert subject is not None
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
        outcome = Outcome(
            ours=f"entropy grows in {n_growing} of {len(gains)} heads, from 1 to {last} numbers",
            comparisons=[at_least(f"head {head}: entropy gained (nats)", gain, 0.0) for head, gain in gains.items()],
            panels={"entropy of the last row, first layer": Picture("listed numbers", "nats", curves, log="x")},
            remark=remark,
        )
        return whose(outcome, subject, self.model)


@final
class Spreads(Item):
    """The table of delta, the largest less the smallest logit of a row, over all heads and layers, on source code."""

    def make(self, run: RunVerb, subject: Subject | None) -> Outcome:
        assert subject is not None
        spread_LH = numbers(probed(run, subject, "code").arrays["logit_spread"])
        spreads = np.sort(spread_LH[np.isfinite(spread_LH)])
        ours = {
            "smallest": spreads[0],
            "largest": spreads[-1],
            "mean": spreads.mean(),
            "standard deviation": spreads.std(),
        }
        n, mean, deviation = len(spreads), PUBLISHED["mean"], PUBLISHED["standard deviation"]
        error = welch_width(ours["standard deviation"] / np.sqrt(n), n, deviation / np.sqrt(N_HEADS), N_HEADS)
        published = Curve("published: smallest, mean, largest", [0, 0.5, 1], [2.28, mean, 14.78], points=True)
        share = np.linspace(0, 1, len(spreads)) if len(spreads) > 1 else [0.5]
        outcome = Outcome(
            ours=f"{ours['smallest']:.2f} to {ours['largest']:.2f}, mean {ours['mean']:.2f}",
            comparisons=[
                as_printed("mean of the spreads", ours["mean"], mean, MARGIN * mean, error),
                *[
                    as_printed(f"{name} of the spreads", ours[name], published, WIDE_MARGIN * published)
                    for name, published in PUBLISHED.items()
                    if name != "mean"
                ],
            ],
            panels={"sorted": Picture("share of the heads", "spread", [Curve("ours", share, spreads), published])},
            remark="Ours are each head's mean over rows, on other code; the paper does not say which rows. The "
            f"interval is over the heads. {GEMMA_7B}",
        )
        return whose(outcome, subject, self.model)


ITEMS: dict[str, Item] = {
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
