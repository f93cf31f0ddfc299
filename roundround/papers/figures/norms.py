"""Mean norms of the 2-D chunks of queries, keys and values in arXiv:2410.06205, by layer and by head.

By layer: figures 3, 10, 13 and 19; by head of one layer: figures 4 and 11.

Tested by tests/papers/test_papers_models.py and tests/papers/test_other_models.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import final

import numpy as np

from roundround.papers.claim import CheckedNumber, at_least, shown
from roundround.papers.figures import (
    Figure,
    Outcome,
    RunVerb,
    Subject,
)
from roundround.papers.figures.probed import (
    Array,
    ModelFigure,
    Probed,
    alike,
    best_fit,
    check_shape,
    compare_maps,
    compare_strongest,
    correlation,
    even_share,
    fastest_mean,
    filled,
    heat_map,
    probed,
    side_by_side,
    slowest_share,
)
from roundround.support.panels import HeatMap

PLURALS = {"query": "queries", "key": "keys", "value": "values"}
NEARLY_EVEN = 0.05  # from an even share, the mean over layers: values of Gemma 7B have 0.250 and of Llama 3.1 8B 0.265
ALIKE = 0.9  # correlation of the maps of two texts: those of the paper have 0.923 at least
FAST_HEADS = (4, 7)  # labelled 5 and 8
GROUP_SIZE = 4  # query heads of Llama 3.1 8B that share a key head
GROUPS = (3, 4)  # "group 4" counted from 1 or from 0
FAST_IN_GROUP = 2  # labelled 3


@final
@dataclass(frozen=True, kw_only=True)
class LayerNorms(ModelFigure):
    """maps: the published map of each kind of vector."""

    maps: Mapping[str, str]

    def look(self, run: RunVerb, subject: Subject) -> Outcome:
        seen = probed(run, subject)
        comparisons: list[CheckedNumber] = []
        panels: dict[str, HeatMap] = {}
        remarks, ours = list[str](), []
        for kind, name in self.maps.items():
            what = PLURALS[kind]
            map_PL, found, pictures, fit, chosen = compared(what, f"Of {what}", seen, kind, name, subject)
            comparisons += found
            panels |= pictures
            remarks += [*fit, statement(seen, kind)]
            ours.append(f"{what} {slowest_share(map_PL).mean():.2f}{f' ({chosen})' if chosen else ''}")
        summary = f"share of the slowest quarter: {', '.join(ours)}"
        return Outcome(summary, comparisons, panels, " ".join([*remarks, *about_layers(seen)]))


@final
@dataclass(frozen=True, kw_only=True)
class DomainNorms(ModelFigure):
    """maps: the published map of queries on each of the package's other texts."""

    maps: Mapping[str, str]

    def look(self, run: RunVerb, subject: Subject) -> Outcome:
        comparisons: list[CheckedNumber] = []
        panels: dict[str, HeatMap] = {}
        remarks, ours = list[str](), {}
        for texts, name in self.maps.items():
            seen = probed(run, subject, texts)
            ours[texts] = seen.by_layer("query")
            _, found, pictures, fit, chosen = compared(texts, f"On {texts}", seen, "query", name, subject)
            comparisons += found
            panels |= pictures
            remarks += fit
        least, published_least = (  # the smallest correlation of two maps
            min(correlation(*pair) for pair in combinations(map(np.nan_to_num, maps), 2))
            for maps in (ours.values(), map(heat_map, self.maps.values()))
        )
        comparisons += [
            alike("smallest correlation of two texts' maps", least, ALIKE),
            shown("the same of the paper's maps", published_least, published_least),
        ]
        remarks.append(f"The maps of all texts are {'' if least >= ALIKE else 'not '}alike here.")
        summary = f"smallest correlation of two texts' maps {least:.2f}{f'; each {chosen}' if chosen else ''}"
        return Outcome(summary, comparisons, panels, " ".join(remarks))


def compared(
    what: str, about: str, seen: Probed, kind: str, name: str, subject: Subject
) -> tuple[Array, list[CheckedNumber], dict[str, HeatMap], list[str], str]:
    """The map by layer of one kind of vector beside the published one: (map, comparisons, panels, remarks, chosen).

    Of the paper's own model, the reading that fits best is taken; `chosen` says of how many.
    """
    published, map_PL, remarks, chosen = heat_map(name), seen.by_layer(kind), list[str](), ""
    if subject.is_the_papers:
        candidates = {
            f"{'with' if first_token else 'without'} first tokens": seen.by_layer(kind, first_token=first_token)
            for first_token in (True, False)
        }
        fit, map_PL, chosen = best_fit(candidates, published)
        remarks.append(f"{about} fits best: {fit}.")
    ours_L, published_L = fastest_mean(map_PL), fastest_mean(published)
    ends = [  # the fast pairs of the first and the last layer, where the paper finds them in use
        shown(f"{what}: mean norm of the fastest sixteenth, {which} layer", ours_L[end], published_L[end])
        for which, end in (("first", 0), ("last", -1))
    ]
    panels = side_by_side(what, map_PL, published, "layer")
    return map_PL, compare_maps(what, map_PL, published) + ends, panels, remarks, chosen


def statement(seen: Probed, kind: str) -> str:
    """Whether what the paper says of these vectors holds in this model."""
    map_PL = seen.by_layer(kind)
    shares, even = slowest_share(map_PL), even_share(map_PL)
    if kind == "value":
        whether = "even" if abs(shares.mean() - even.mean()) <= NEARLY_EVEN else "not even"
        return f"Values are {whether}: the slowest quarter has {shares.mean():.2f} of their squared norm."
    low = (shares > even)[np.nan_to_num(seen.frequencies()).any(axis=1)]
    whether = "dominate" if low.all() else "do not dominate everywhere"
    return f"Low frequencies {whether} in {PLURALS[kind]}: above an even share in {low.sum()} of {len(low)} layers."


def about_layers(seen: Probed) -> list[str]:
    """What a reader of the map has to know where layers differ."""
    frequencies_LP = seen.frequencies()
    rotates_L = np.nan_to_num(frequencies_LP).any(axis=1)
    n_without, n_still = int((~rotates_L).sum()), int((frequencies_LP[rotates_L] == 0).sum(1).max())
    n_tables = len(np.unique(np.nan_to_num(frequencies_LP, nan=-1)[rotates_L], axis=0))
    found = []
    if n_without:
        found.append(f"{n_without} of {seen.n_layers} layers have no RoPE: there the order of the pairs means nothing.")
    if n_still:
        found.append(f"{n_still} pairs do not rotate; they come last.")
    if n_tables > 1:
        found.append(f"The layers have {n_tables} different sets of frequencies: a row is a pair, not a frequency.")
    return found


@final
class FirstLayerHeads(ModelFigure):
    """Figure 4: the first layer. Two heads stand out at the fast end, the others have one strong slow pair each."""

    def look(self, run: RunVerb, subject: Subject) -> Outcome:
        seen = probed(run, subject)
        comparisons: list[CheckedNumber] = []
        panels: dict[str, HeatMap] = {}
        for kind, what, name in (
            ("query", "queries", "Fig4a_L1_query_by_head"),
            ("key", "keys", "Fig4b_L1_key_by_head"),
        ):
            map_PH, published = filled(seen.by_head(kind)[0]).T, heat_map(name)
            panels |= side_by_side(what, map_PH, published, "head")
            comparisons += compare_maps(what, map_PH, published)
            if subject.is_the_papers:
                check_shape(map_PH, published)
                for head in range(published.shape[1]):
                    comparisons += compare_strongest(f"{what}, head {head + 1}", map_PH[:, head], published[:, head])
                comparisons.append(stand_out(what, map_PH, FAST_HEADS))
        queries_PH = filled(seen.by_head("query")[0]).T
        fastest, shares = np.argsort(-fastest_mean(queries_PH))[: len(FAST_HEADS)], slowest_share(queries_PH)
        summary, n_slow = f"fastest heads, counted from 0: {', '.join(map(str, fastest))}", (shares > 0.5).sum()
        remark = f"In {n_slow} of {len(shares)} heads, the slowest quarter has most of the queries' squared norm."
        return Outcome(summary, comparisons, panels, remark)


@final
class LastLayerGroup(ModelFigure):
    """Figure 11: a group of query heads of the last layer, of which the third is fast and diagonal."""

    def look(self, run: RunVerb, subject: Subject) -> Outcome:
        seen = probed(run, subject)
        map_PH, published = filled(seen.by_head("query")[-1]).T, heat_map("Fig11_llama_L32_group4_query")
        if subject.is_the_papers:  # query heads 12 to 15 or 16 to 19 of the last layer, as they fit better
            read = {f"heads {4 * g} to {4 * g + 3}": map_PH[:, GROUP_SIZE * g : GROUP_SIZE * (g + 1)] for g in GROUPS}
            name, ours, chosen = best_fit(read, published)
            first = GROUP_SIZE * GROUPS[list(read).index(name)]
            group = list(range(first, first + GROUP_SIZE))
            remark = f"Of the readings of group 4, {name} fit best: {chosen}."
        else:  # the heads that share a key head with the most diagonal one; all where none are shared
            n_heads = map_PH.shape[1]
            size, group = n_heads // filled(seen.by_head("key")[-1]).shape[0], list(range(n_heads))
            if size > 1:
                group = group[int(seen.share("diagonal")[-1][:n_heads].argmax()) // size * size :][:size]
            ours = map_PH[:, group]
            remark = f"Heads of the last layer, layer {seen.n_layers - 1}, with its most diagonal one."
        heads = f"queries of the heads {group[0]} to {group[-1]}"
        comparisons = compare_maps(heads, ours, published)
        if subject.is_the_papers:
            for head in range(GROUP_SIZE):
                comparisons += compare_strongest(f"head {head + 1} of the group", ours[:, head], published[:, head])
            comparisons.append(stand_out(heads, ours, (FAST_IN_GROUP,)))
        diagonal_H = seen.share("diagonal")[-1][group]
        comparisons += [
            shown(f"share of head {head} on the token itself", share)
            for head, share in zip(group, diagonal_H, strict=True)
        ]
        fastest, most_diagonal = int(fastest_mean(ours).argmax()), int(diagonal_H.argmax())
        if subject.is_the_papers:
            comparisons.append(at_least("the fast head is the diagonal one", float(fastest == most_diagonal), 1.0))
        summary = f"head {group[fastest]} is the fast one, head {group[most_diagonal]} the most diagonal"
        panels = side_by_side(heads, ours, published, "head of the group")
        return Outcome(summary, comparisons, panels, remark)


def stand_out(what: str, map_PH: Array, heads: tuple[int, ...]) -> CheckedNumber:
    """The weakest of these heads against the strongest of the others, at the fast end."""
    fast_H = fastest_mean(map_PH)
    others = np.delete(fast_H, list(heads))
    named = " and ".join(str(head + 1) for head in heads)
    ratio = float(fast_H[list(heads)].min() / others.max())
    return at_least(f"{what}: fast norm of head {named}, of the largest of the other heads", ratio, 1.0)


FIGURES: dict[str, Figure] = {
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
        maps={
            "italian": "Fig19a_Italian_q",
            "chinese": "Fig19b_Chinese_q",
            "code": "Fig19c_Code_q",
            "sums": "Fig19d_Arith_q",
        },
    ),
    "rope.fig4": FirstLayerHeads(
        shows="Gemma 7B, first layer: norms of queries and keys by pair and head",
        published="fastest heads, counted from 1: 5, 8",
        command="roundround probe model=gemma-7b texts=shakespeare",
        model="gemma-7b",
    ),
    "rope.fig11": LastLayerGroup(
        shows="Llama 3.1 8B, last layer, head group 4: norms of queries",
        published="head 3 of the group is the fast and diagonal one",
        command="roundround probe model=llama-3.1-8b texts=shakespeare",
        model="llama-3.1-8b",
    ),
}
