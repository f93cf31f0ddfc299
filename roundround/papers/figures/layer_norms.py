"""Figures 3, 10, 13 and 19 of arXiv:2410.06205: mean norms of the 2-D chunks of queries, keys and values, by layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import final

import numpy as np

from roundround.papers.claim import Comparison, shown
from roundround.papers.figures.item import HeatMap, Item, Outcome, RunVerb, Subject
from roundround.papers.figures.norm_maps import alike, best_fit, compare_maps, correlation, side_by_side
from roundround.papers.figures.probed import (
    Array,
    Probed,
    even_share,
    fastest_mean,
    probed,
    sentences,
    slowest_share,
    whose,
)
from roundround.papers.figures.published import heat_map

PLURALS = {"query": "queries", "key": "keys", "value": "values"}
NEARLY_EVEN = 0.05  # from an even share, the mean over layers: values of Gemma 7B have 0.250 and of Llama 3.1 8B 0.265
ALIKE = 0.9  # correlation of the maps of two texts: those of the paper have 0.923 at least


@final
@dataclass(frozen=True, kw_only=True)
class LayerNorms(Item):
    """maps: the published map of each kind of vector."""

    maps: Mapping[str, str]

    def make(self, run: RunVerb, subject: Subject | None) -> Outcome:
        assert subject is not None
        seen = probed(run, subject)
        comparisons: list[Comparison] = []
        panels: dict[str, HeatMap] = {}
        remarks, ours, chosen = [], [], ""
        for kind, name in self.maps.items():
            map_PL, published, what = seen.by_layer(kind), heat_map(name), PLURALS[kind]
            if subject.is_the_papers:
                fit, map_PL, chosen = fitted(seen, kind, published)
                remarks.append(f"Of {what} fits best: {fit}.")
            comparisons += compare_maps(what, map_PL, published) + compare_ends(what, map_PL, published)
            panels |= side_by_side(what, map_PL, published, "layer")
            remarks.append(statement(seen, kind))
            ours.append(f"{what} {slowest_share(map_PL).mean():.2f}{f' ({chosen})' if chosen else ''}")
        told = f"share of the slowest quarter: {', '.join(ours)}"
        remark = sentences([*remarks, about_layers(seen)])
        return whose(Outcome(told, comparisons, panels, remark), subject, self.model)


@final
@dataclass(frozen=True, kw_only=True)
class DomainNorms(Item):
    """maps: the published map of queries on each of the package's other texts."""

    maps: Mapping[str, str] = field(
        default_factory=lambda: {
            "italian": "Fig19a_Italian_q",
            "chinese": "Fig19b_Chinese_q",
            "code": "Fig19c_Code_q",
            "sums": "Fig19d_Arith_q",
        }
    )

    def make(self, run: RunVerb, subject: Subject | None) -> Outcome:
        assert subject is not None
        comparisons: list[Comparison] = []
        panels: dict[str, HeatMap] = {}
        remarks, ours, chosen = [], {}, ""
        for texts, name in self.maps.items():
            seen, published = probed(run, subject, texts), heat_map(name)
            map_PL = ours[texts] = seen.by_layer("query")
            if subject.is_the_papers:
                fit, map_PL, chosen = fitted(seen, "query", published)
                remarks.append(f"On {texts} fits best: {fit}.")
            comparisons += compare_maps(texts, map_PL, published) + compare_ends(texts, map_PL, published)
            panels |= side_by_side(texts, map_PL, published, "layer")
        least, published_least = least_alike(ours), least_alike({text: heat_map(n) for text, n in self.maps.items()})
        comparisons.append(alike("smallest correlation of two texts' maps", least, ALIKE))
        comparisons.append(shown("the same of the paper's maps", published_least, published_least))
        remarks.append(f"The maps of all texts are {'' if least >= ALIKE else 'not '}alike here.")
        told = f"smallest correlation of two texts' maps {least:.2f}{f'; each {chosen}' if chosen else ''}"
        return whose(Outcome(told, comparisons, panels, sentences(remarks)), subject, self.model)


def fitted(seen: Probed, kind: str, published: Array) -> tuple[str, Array, str]:
    """How the model's map fits the paper's best, the map, and of how many readings."""
    candidates = {
        f"{'with' if first_token else 'without'} first tokens": seen.by_layer(kind, first_token=first_token)
        for first_token in (True, False)
    }
    return best_fit(candidates, published)


def compare_ends(what: str, ours: Array, published: Array) -> list[Comparison]:
    """The fast pairs of the first and the last layer, where the paper finds them in use."""
    ours_L, published_L = fastest_mean(ours), fastest_mean(published)
    return [
        shown(f"{what}: mean norm of the fastest sixteenth, {which} layer", ours_L[end], published_L[end])
        for which, end in (("first", 0), ("last", -1))
    ]


def least_alike(maps: Mapping[str, Array]) -> float:
    """The smallest correlation of two maps."""
    filled = [np.nan_to_num(x) for x in maps.values()]
    return min(correlation(one, other) for one, other in combinations(filled, 2))


def statement(seen: Probed, kind: str) -> str:
    """Whether what the paper says of these vectors holds in this model."""
    map_PL = seen.by_layer(kind)
    shares, even = slowest_share(map_PL), even_share(map_PL)
    if kind == "value":
        whether = "even" if abs(shares.mean() - even.mean()) <= NEARLY_EVEN else "not even"
        return f"Values are {whether}: the slowest quarter has {shares.mean():.2f} of their squared norm."
    low = (shares > even)[seen.rotates()]
    whether = "dominate" if low.all() else "do not dominate everywhere"
    return f"Low frequencies {whether} in {PLURALS[kind]}: above an even share in {low.sum()} of {len(low)} layers."


def about_layers(seen: Probed) -> str:
    """What a reader of the map has to know where layers differ."""
    n_without, n_tables = int((~seen.rotates()).sum()), seen.n_frequency_tables()
    parts = []
    if n_without:
        parts.append(f"{n_without} of {seen.n_layers} layers have no RoPE: there the order of the pairs means nothing.")
    if seen.n_still():
        parts.append(f"{seen.n_still()} pairs do not rotate; they come last.")
    if n_tables > 1:
        parts.append(f"The layers have {n_tables} different sets of frequencies: a row is a pair, not a frequency.")
    return sentences(parts)


ITEMS: dict[str, Item] = {
    "rope.fig3": LayerNorms(
        shows="Gemma 7B: norms of queries and keys by pair and layer",
        published="share of the slowest quarter: queries 0.50, keys 0.42",
        command="roundround probe model=gemma-7b texts=shakespeare",
        model="gemma-7b",
        maps={"query": "G7B_Fig3a_query_layer", "key": "G7B_Fig3b_key_layer"},
    ),
    "rope.fig10": LayerNorms(
        shows="Llama 3.1 8B: norms of queries, keys and values by pair and layer",
        published="share of the slowest quarter: queries 0.39, keys 0.31, values 0.27",
        command="roundround probe model=llama-3.1-8b texts=shakespeare",
        model="llama-3.1-8b",
        maps={"query": "L3.1_Fig10a_query", "key": "L3.1_Fig10b_key", "value": "L3.1_Fig10c_value"},
    ),
    "rope.fig13": LayerNorms(
        shows="Gemma 7B: norms of values by pair and layer",
        published="share of the slowest quarter: values 0.25",
        command="roundround probe model=gemma-7b texts=shakespeare",
        model="gemma-7b",
        maps={"value": "G7B_Fig13c_value_layer"},
    ),
    "rope.fig19": DomainNorms(
        shows="Gemma 7B: norms of queries on Italian, Chinese, code and sums",
        published="the maps are nearly identical",
        command="roundround probe model=gemma-7b texts=italian (chinese, code, sums)",
        model="gemma-7b",
    ),
}
