"""Figures 5 to 7, 12 and 14 to 18 of arXiv:2410.06205: single heads on one short prompt, token by token.

The paper does not print its prompt. So patterns are compared as it words them, norms by their means over tokens, and
only its first token, which sees nothing but itself, number by number.
Shapes: P pairs, T tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from roundround.papers.claim import Comparison, as_printed
from roundround.papers.figures.item import HeatMap, Item, Outcome, RunVerb, Subject
from roundround.papers.figures.named_heads import (
    APOSTROPHE,
    DIAGONAL,
    LATE_DIAGONAL,
    PREVIOUS,
    SEMANTIC,
    Found,
    NamedHead,
    apostrophe_rows,
    compare_pattern,
    find,
    statement,
)
from roundround.papers.figures.norm_maps import alike, check_shape, compare_strongest, correlation, side_by_side
from roundround.papers.figures.probed import Array, probed, sentences, whose
from roundround.papers.figures.published import heat_map

NO_PROMPT = "The paper does not print its prompt; ours is another one with three apostrophes."
# Of a head's mean norms: those of Figures 14 to 18 correlate from 0.74 to 0.996 with Figure 4, of the same heads on
# other texts.
LEAST_PROFILE = 0.7
# Norms read off the picture multiply to 4.06, 8.15 and 4.10 where Tables 3 to 5 print 3.74, 7.91 and 3.85: each may be
# 5 % too large, and half precision adds 1 %.
FIRST_TOKEN = 0.1  # of the published norm
READING = 0.25  # of a logit: 1 % of the range of Figure 12's colour bar, and half precision
APOSTROPHE_CELLS = ((3, 2), (9, 8), (15, 14))  # (row, column) of Figure 12
OTHER_WORDS = 1.5  # of a logit: the three cells of Figure 12 lie within 0.7, for other words behind the apostrophe


@final
@dataclass(frozen=True, kw_only=True)
class AttentionMaps(Item):
    """heads: whose weights are shown."""

    heads: tuple[NamedHead, ...]

    def make(self, run: RunVerb, subject: Subject | None) -> Outcome:
        assert subject is not None
        seen = probed(run, subject)
        prompt = seen.prompt()
        comparisons: list[Comparison] = []
        panels: dict[str, HeatMap] = {}
        told, remarks = [], []
        for named in self.heads:
            found = find(named, seen, prompt, subject)
            pattern = compare_pattern(named.pattern, found, prompt.words)
            comparisons += pattern
            panels |= weights(found)
            told.append(in_words(found, named, pattern))
            remarks += [found.remark, statement(found, pattern)]
        remark = sentences([*remarks, NO_PROMPT])
        return whose(Outcome("; ".join(told), comparisons, panels, remark), subject, self.model)


@final
@dataclass(frozen=True, kw_only=True)
class TokenNorms(Item):
    """named: the head whose chunk norms are shown, and its weights."""

    named: NamedHead

    def make(self, run: RunVerb, subject: Subject | None) -> Outcome:
        assert subject is not None
        seen = probed(run, subject)
        prompt = seen.prompt()
        found = find(self.named, seen, prompt, subject)
        pattern = compare_pattern(self.named.pattern, found, prompt.words)
        comparisons, panels = list(pattern), weights(found)
        for what, ours, name in (
            ("queries", found.query_norms, self.named.queries),
            ("keys", found.key_norms, self.named.keys),
        ):
            published = heat_map(name)
            titles = (found.title, f"published: {self.named.label}")
            panels |= side_by_side(what, ours, published, "token", titles=titles)
            if subject.is_the_papers:
                comparisons += compare_norms(what, ours, published)
        told = f"strongest pairs of queries, counted from 1: {strongest_pairs(found.query_norms)}"
        remark = sentences([found.remark, statement(found, pattern), NO_PROMPT])
        told = f"{in_words(found, self.named, pattern)}; {told}"
        return whose(Outcome(told, comparisons, panels, remark), subject, self.model)


@final
class Logits(Item):
    """Figure 12: logits of the apostrophe head. The first token by default, an apostrophe from the row behind it."""

    def make(self, run: RunVerb, subject: Subject | None) -> Outcome:
        assert subject is not None
        seen = probed(run, subject)
        prompt = seen.prompt()
        found = find(APOSTROPHE, seen, prompt, subject)
        published = heat_map("Fig12_L1H10_logits")
        pattern = compare_pattern("apostrophe", found, prompt.words)
        panels = {
            f"logits, {found.title}": HeatMap(found.logits, "key", "query"),
            "logits, published": HeatMap(visible(published), "key", "query"),
        }
        outcome = Outcome(
            ours=in_words(found, APOSTROPHE, pattern),
            comparisons=[*pattern, *compare_logits(found.logits, published, prompt.words)],
            panels=panels,
            remark=sentences([found.remark, statement(found, pattern), NO_PROMPT]),
        )
        return whose(outcome, subject, self.model)


def weights(found: Found) -> dict[str, HeatMap]:
    return {f"weights, {found.title}": HeatMap(found.weights, "key", "query", most=1.0)}


def visible(logits_TT: Array) -> Array:
    """Without the cells that a causal head does not see, which the picture fills with -10."""
    return np.where(np.tril(np.ones_like(logits_TT)) > 0, logits_TT, np.nan)


def in_words(found: Found, named: NamedHead, pattern: list[Comparison]) -> str:
    shares = ", ".join(f"{comparison.ours:.2f}" for comparison in pattern)
    return f"{named.pattern}: {shares} (layer {found.layer}, head {found.head})"


def strongest_pairs(norms_PT: Array, n: int = 3) -> str:
    """By the mean over all tokens but the first."""
    return ", ".join(str(pair + 1) for pair in np.argsort(-norms_PT[:, 1:].mean(1))[:n])


def compare_norms(what: str, ours: Array, published: Array) -> list[Comparison]:
    """Mean norms over all tokens but the first, and the length of the whole first vector."""
    check_shape(ours[:, :1], published[:, :1])
    ours_P, published_P = ours[:, 1:].mean(1), published[:, 1:].mean(1)
    first, published_first = float(np.linalg.norm(ours[:, 0])), float(np.linalg.norm(published[:, 0]))
    return [
        *compare_strongest(what, ours_P, published_P),
        alike(f"{what}: correlation of the pairs' mean norms", correlation(ours_P, published_P), LEAST_PROFILE),
        as_printed(f"{what}: norm of the first token", first, published_first, FIRST_TOKEN * published_first),
    ]


def compare_logits(ours: Array, published: Array, words: list[str]) -> list[Comparison]:
    """The first token with itself, with the rows behind an apostrophe and with the others; the apostrophes.

    Of a layer with a window, the rows that see it.
    """
    behind, others = apostrophe_rows(words)
    theirs_behind = np.array([row for row, _ in APOSTROPHE_CELLS])
    theirs_others = np.setdiff1d(np.arange(1, len(published)), theirs_behind)
    on_it, published_on_it = (
        float(np.nanmean(ours[behind, behind - 1])),
        published[theirs_behind, theirs_behind - 1].mean(),
    )
    on_first, published_on_first = float(np.nanmean(ours[others, 0])), published[theirs_others, 0].mean()
    return [
        as_printed("logit of the first token on itself", ours[0, 0], published[0, 0], READING),
        as_printed("mean logit of other rows on the first token", on_first, published_on_first, OTHER_WORDS),
        as_printed("mean logit on an apostrophe, from behind it", on_it, published_on_it, OTHER_WORDS),
    ]


ITEMS: dict[str, Item] = {
    "rope.fig5": AttentionMaps(
        shows="Gemma 7B: weights of a diagonal and a previous-token head",
        published="layer 27, head 8 and layer 1, head 8",
        command="roundround probe model=gemma-7b texts=shakespeare",
        model="gemma-7b",
        heads=(LATE_DIAGONAL, PREVIOUS),
    ),
    "rope.fig7": AttentionMaps(
        shows="Gemma 7B: weights of a head that looks for apostrophes",
        published="layer 1, head 10: the apostrophe from the token behind it, else the first token",
        command="roundround probe model=gemma-7b texts=shakespeare",
        model="gemma-7b",
        heads=(APOSTROPHE,),
    ),
    "rope.fig12": Logits(
        shows="Gemma 7B: logits of the apostrophe head",
        published="about 2 on the first token, 7 on an apostrophe",
        command="roundround probe model=gemma-7b texts=shakespeare",
        model="gemma-7b",
    ),
} | {
    f"rope.fig{number}": TokenNorms(
        shows=f"Gemma 7B: norms of {named.label} ({named.pattern}), token by token",
        published=f"strongest pairs of queries, counted from 1: {strongest}",
        command="roundround probe model=gemma-7b texts=shakespeare",
        model="gemma-7b",
        named=named,
    )
    for number, named, strongest in (
        (6, LATE_DIAGONAL, "1, 2, 3"),
        (14, DIAGONAL, "1, 3, 2"),
        (15, LATE_DIAGONAL, "1, 2, 3"),
        (16, PREVIOUS, "1, 126, 113"),
        (17, APOSTROPHE, "120, 98, 91"),
        (18, SEMANTIC, "111, 123, 88"),
    )
}
