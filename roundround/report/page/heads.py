"""What the records of a probe say of every head: where its weight goes, its label, and how sharp it is.

Shapes: L layers, H heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from roundround.report.numbers import number
from roundround.report.page.sources import Record

SHARE = "share_on_"
MEASURES = ("entropy", "largest_weight", "logit_spread")
BEFORE = "none"  # the `ablate` of what is measured before frequencies are set to zero
LETTERS = {"diagonal": "D", "previous": "P", "sink": "K", "offset": "O", "semantic": "S", "local": "L", "diffuse": "-"}
NEIGHBOURHOOD = ("diagonal", "previous", "local")
MEANINGS = {
    "diagonal": "looks at the token itself",
    "previous": "looks at the token before",
    "sink": "looks at the text's first token, or another that most rows prefer",
    "offset": "looks at one other fixed distance, of 2 to 32 tokens",
    "semantic": "looks at a single token at no fixed distance",
    "local": "looks at the token itself and the seven before",
    "diffuse": "spreads its weight",
}


@dataclass
class Head:
    """A head: its label, the share of its weight at each place (by band that is set to zero), and its measures."""

    layer: int
    head: int
    label: str | None = None
    behind_label: float | None = None
    shares: dict[str, dict[str, float]] = field(default_factory=dict)
    measures: dict[str, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.layer}.{self.head}"

    def place(self) -> str:
        """Its label; of a run that has none the place of the largest share."""
        before = self.shares.get(BEFORE, {})
        return self.label or (max(before, key=lambda place: before[place]) if before else "")

    def share(self) -> float:
        """The weight behind its label; where it was not recorded, that at the label's place, of a local head less."""
        if self.behind_label is not None:
            return self.behind_label
        before = self.shares.get(BEFORE, {})
        return sum(before.get(place, 0.0) for place in (NEIGHBOURHOOD if self.place() == "local" else [self.place()]))

    def change(self) -> float | None:
        """The share of the weight that goes elsewhere with the frequencies set to zero; None where none were."""
        bands = [band for band in self.shares if band != BEFORE]
        if not bands or BEFORE not in self.shares:
            return None
        before, after = self.shares[BEFORE], self.shares[bands[-1]]
        return sum(abs(after.get(place, 0.0) - share) for place, share in before.items()) / 2


def places_of(records: Sequence[Record]) -> list[str]:
    """The places of the records, in their order, which is that of the arrays too."""
    return list(dict.fromkeys(r["metric"].removeprefix(SHARE) for r in records if r["metric"].startswith(SHARE)))


def heads_of(records: Sequence[Record]) -> list[Head]:
    """Every head of which the records know where its weight goes, layer by layer."""
    found: dict[tuple[int, int], Head] = {}
    for record in records:
        layer, head = record.get("layer"), record.get("head")
        if not isinstance(layer, int) or not isinstance(head, int) or min(layer, head) < 0 or "n" in record:
            continue
        here, metric, value = found.setdefault((layer, head), Head(layer, head)), record["metric"], record["value"]
        if metric == "label":
            here.label, here.behind_label = str(value), number(record.get("share"))
        elif (measured := number(value)) is None:
            continue
        elif metric.startswith(SHARE):
            here.shares.setdefault(str(record.get("ablate", BEFORE)), {})[metric.removeprefix(SHARE)] = measured
        elif metric in MEASURES:
            here.measures[metric] = measured
    return [found[key] for key in sorted(found) if found[key].shares]


def standing_out(heads: Sequence[Head], places: Sequence[str]) -> list[Head]:
    """All heads, those first that a page should show: of each label in turn the one with the largest share left."""
    by_label = [sorted((h for h in heads if h.place() == place), key=lambda h: -h.share()) for place in places]
    known = [head for turn in zip_longest(*by_label) for head in turn if head is not None]
    names = {head.name for head in known}
    return known + [head for head in heads if head.name not in names]
