"""Figures 4 and 11 of arXiv:2410.06205: mean norms of the 2-D chunks of queries and keys, by head of one layer."""

from __future__ import annotations

from typing import final

import numpy as np

from roundround.papers.claim import Comparison, at_least, shown
from roundround.papers.figures.item import HeatMap, Item, Outcome, RunVerb, Subject
from roundround.papers.figures.norm_maps import best_fit, check_shape, compare_maps, compare_strongest, side_by_side
from roundround.papers.figures.probed import Array, Probed, fastest_mean, filled, probed, slowest_share, whose
from roundround.papers.figures.published import heat_map

FAST_HEADS = (4, 7)  # labelled 5 and 8
GROUP_SIZE = 4  # query heads of Llama 3.1 8B that share a key head
GROUPS = (3, 4)  # "group 4" counted from 1 or from 0
FAST_IN_GROUP = 2  # labelled 3


@final
class FirstLayerHeads(Item):
    """Figure 4: the first layer. Two heads stand out at the fast end, the others have one strong slow pair each."""

    def make(self, run: RunVerb, subject: Subject | None) -> Outcome:
        assert subject is not None
        seen = probed(run, subject)
        comparisons: list[Comparison] = []
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
        told, remark = in_words(seen)
        return whose(Outcome(told, comparisons, panels, remark), subject, self.model)


@final
class LastLayerGroup(Item):
    """Figure 11: a group of query heads of the last layer, of which the third is fast and diagonal."""

    def make(self, run: RunVerb, subject: Subject | None) -> Outcome:
        assert subject is not None
        seen = probed(run, subject)
        map_PH, published = filled(seen.by_head("query")[-1]).T, heat_map("Fig11_llama_L32_group4_query")
        if subject.is_the_papers:
            group, ours, remark = paper_group(map_PH, published)
        else:
            group, ours, remark = diagonal_group(seen, map_PH)
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
        told = f"head {group[fastest]} is the fast one, head {group[most_diagonal]} the most diagonal"
        panels = side_by_side(heads, ours, published, "head of the group")
        return whose(Outcome(told, comparisons, panels, remark), subject, self.model)


def stand_out(what: str, map_PH: Array, heads: tuple[int, ...]) -> Comparison:
    """The weakest of these heads against the strongest of the others, at the fast end."""
    fast_H = fastest_mean(map_PH)
    others = np.delete(fast_H, list(heads))
    named = " and ".join(str(head + 1) for head in heads)
    ratio = float(fast_H[list(heads)].min() / others.max())
    return at_least(f"{what}: fast norm of head {named}, of the largest of the other heads", ratio, 1.0)


def paper_group(map_PH: Array, published: Array) -> tuple[list[int], Array, str]:
    """Query heads 12 to 15 or 16 to 19 of the last layer, whichever fits better."""
    groups = {f"heads {4 * g} to {4 * g + 3}": map_PH[:, GROUP_SIZE * g : GROUP_SIZE * (g + 1)] for g in GROUPS}
    name, ours, chosen = best_fit(groups, published)
    first = GROUP_SIZE * GROUPS[list(groups).index(name)]
    return list(range(first, first + GROUP_SIZE)), ours, f"Of the readings of group 4, {name} fit best: {chosen}."


def diagonal_group(seen: Probed, map_PH: Array) -> tuple[list[int], Array, str]:
    """The heads of the last layer that share a key head with its most diagonal one; all where none are shared."""
    n_heads, n_key_heads = map_PH.shape[1], filled(seen.by_head("key")[-1]).shape[0]
    size = n_heads // n_key_heads
    group = list(range(n_heads))
    if size > 1:
        best = int(seen.share("diagonal")[-1][:n_heads].argmax())
        group = group[best // size * size :][:size]
    return group, map_PH[:, group], f"Heads of the last layer, layer {seen.n_layers - 1}, with its most diagonal one."


def in_words(seen: Probed) -> tuple[str, str]:
    """The fastest heads of the first layer, and how many of its heads have most of their norm at the slow end."""
    queries_PH = filled(seen.by_head("query")[0]).T
    fastest, shares = np.argsort(-fastest_mean(queries_PH))[: len(FAST_HEADS)], slowest_share(queries_PH)
    told = f"fastest heads, counted from 0: {', '.join(map(str, fastest))}"
    n_slow = (shares > 0.5).sum()
    return told, f"In {n_slow} of {len(shares)} heads, the slowest quarter has most of the queries' squared norm."


ITEMS: dict[str, Item] = {
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
