"""Figures 5 to 7, 12 and 14 to 18 of arXiv:2410.06205: single heads on one short prompt, token by token.

The paper counts heads from 1, and its layer "1" is the first: norms of repeated tokens are equal in its pictures. It
does not print its prompt. So patterns are compared as it words them, norms by their means over tokens, and only its
first token, which sees nothing but itself, number by number. In another model, the head with most of the pattern is
looked at.
Shapes: L layers, H heads, P pairs, T tokens.

Tested by tests/papers/test_papers_models.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from roundround.papers.claim import DIFFERS, CheckedNumber, as_printed, at_least, at_most
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
    check_shape,
    compare_strongest,
    correlation,
    heat_map,
    numbers,
    probed,
    side_by_side,
)
from roundround.probing.prompt import PromptRecord
from roundround.support.errors import UserError
from roundround.support.panels import HeatMap

MOST = 0.5  # of a row's weight: what "attends to" means at least; by Figure 12 the apostrophe head gives 0.92 to 0.99
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


@dataclass(frozen=True)
class NamedHead:
    """A head of Gemma 7B.

    layers: from 0; where two are given, the paper's label can mean either. pattern: `diagonal`, `previous`, `semantic`
    or `apostrophe`. queries, keys: the published norms [P, T] of a prompt that is not printed. late: in another model,
    look in the second half of the layers.
    """

    label: str
    layers: tuple[int, ...]
    head: int
    pattern: str
    queries: str
    keys: str
    late: bool = False


DIAGONAL = NamedHead("layer 1, head 5", (0,), 4, "diagonal", "Fig14a_L1H5_query_tok", "Fig14b_L1H5_key_tok")
LATE_DIAGONAL = NamedHead(
    "layer 27, head 8", (26, 27), 7, "diagonal", "Fig6a_L27H8_query_tok", "Fig6b_L27H8_key_tok", late=True
)
PREVIOUS = NamedHead("layer 1, head 8", (0,), 7, "previous", "Fig16a_L1H8_query_tok", "Fig16b_L1H8_key_tok")
APOSTROPHE = NamedHead("layer 1, head 10", (0,), 9, "apostrophe", "Fig17a_L1H10_query_tok", "Fig17b_L1H10_key_tok")
SEMANTIC = NamedHead("layer 1, head 13", (0,), 12, "semantic", "Fig18a_L1H13_query_tok", "Fig18b_L1H13_key_tok")


@dataclass(frozen=True)
class Found:
    """A head of the model at hand. title: which one, and why; remark: what was chosen where the paper leaves a choice.

    shares: where its weight goes, beside where the paper's goes. query_norms, key_norms: [P, T]; weights, logits:
    [T, T].
    """

    layer: int
    head: int
    pattern: str
    title: str
    remark: str
    shares: list[CheckedNumber]
    query_norms: Array
    key_norms: Array
    weights: Array
    logits: Array

    @property
    def panel(self) -> dict[str, HeatMap]:
        return {f"weights, {self.title}": HeatMap(self.weights, "key", "query", most=1.0, label="weight")}

    def in_words(self) -> str:
        shares = ", ".join(f"{share.ours:.2f}" for share in self.shares)
        return f"{self.pattern}: {shares} (layer {self.layer}, head {self.head})"

    def about(self) -> str:
        """Whether its weight goes where the paper's goes, and on which pair its queries are strongest."""
        there = "has" if all(share.verdict != DIFFERS for share in self.shares) else "does not have"
        strongest, n_pairs = int(self.query_norms[:, 1:].mean(1).argmax()) + 1, len(self.query_norms)
        return (
            f"{self.remark} The head of layer {self.layer} {there} the pattern here; its queries are strongest on pair "
            f"{strongest} of {n_pairs}, from the fastest."
        ).lstrip()


def find(named: NamedHead, seen: Probed, prompt: PromptRecord, subject: Subject) -> Found:
    """The head that the paper names, or the one of another model that has most of the same pattern."""
    scores_LH = pattern_scores(named.pattern, seen, prompt)
    remark = ""
    if subject.is_the_papers:
        if scores_LH.shape[0] <= max(named.layers) or scores_LH.shape[1] <= named.head:
            raise UserError(
                f"this is not the paper's model: it has no {named.label}; give it by its own name in model="
            )
        head, why = named.head, "the paper's"
        scores = {layer: float(scores_LH[layer, head]) for layer in named.layers}
        layer = max(scores, key=lambda layer: scores[layer])  # of two that the label can mean
        if len(scores) > 1:
            shares = " and ".join(f"{score:.2f} at {layer}" for layer, score in scores.items())
            remark = f"The label's layer fits best as index {layer}, counted from 0: {named.pattern} {shares}."
    else:
        first = seen.n_layers // 2 if named.late else 0
        layer, head = (int(n) for n in np.unravel_index(np.nanargmax(scores_LH[first:]), scores_LH[first:].shape))
        layer += first
        why = f"{named.pattern} {scores_LH[layer, head]:.2f}, the most of all"
    record = prompt.layers[layer]
    key_head = head * len(record.key_norms) // len(record.query_norms)
    weights_TT = numbers(record.weights[head])
    return Found(
        layer=layer,
        head=head,
        pattern=named.pattern,
        title=f"layer {layer}, head {head}: {why}",
        remark=remark,
        shares=compare_pattern(named.pattern, f"layer {layer}, head {head}", weights_TT, prompt.words),
        query_norms=numbers(record.query_norms[head]).T,
        key_norms=numbers(record.key_norms[key_head]).T,
        weights=weights_TT,
        logits=numbers(record.logits[head]),
    )


def pattern_scores(pattern: str, seen: Probed, prompt: PromptRecord) -> Array:
    """How much of a pattern each head has, from 0 to 1: [L, H], NaN where a layer has fewer heads.

    The share of the weight on texts at the label's place; of `apostrophe`, on the prompt, the product of the weight of
    rows behind an apostrophe on it and that of all other rows on the first token.
    """
    if pattern != "apostrophe":
        return seen.share(pattern)
    behind, others = apostrophe_rows(prompt.words)
    scores_LH = np.full(seen.places.shape[:2], np.nan)
    for layer, record in prompt.layers.items():
        weights_HTT = numbers(record.weights)
        on_it_H, on_first_H = weights_HTT[:, behind, behind - 1].mean(1), weights_HTT[:, others, 0].mean(1)
        scores_LH[layer, : len(on_it_H)] = on_it_H * on_first_H
    return scores_LH


def apostrophe_rows(words: list[str]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The rows behind an apostrophe, and all others but the first row.

    Raises UserError where the tokenizer has no apostrophe apart from letters.
    """
    after = [word.strip() in ("'", "\u2019") for word in words[:-1]]
    if not any(after):
        raise UserError("this model's tokenizer joins the apostrophe of I'm to letters: no head can look for it alone")
    behind = np.array(after)
    return np.flatnonzero(behind) + 1, np.flatnonzero(~behind) + 1


def compare_pattern(pattern: str, head: str, weights_TT: Array, words: list[str]) -> list[CheckedNumber]:
    """Where the weight of the prompt's rows goes, the first row left out."""
    on_itself, on_previous = float(np.diag(weights_TT)[1:].mean()), float(np.diag(weights_TT, -1).mean())
    if pattern == "diagonal":
        return [at_least(f"{head}: weight on the token itself", on_itself, MOST)]
    if pattern == "previous":
        return [at_least(f"{head}: weight on the token before", on_previous, MOST)]
    if pattern == "semantic":
        return [
            at_most(f"{head}: weight on the token itself", on_itself, MOST),
            at_most(f"{head}: weight on the token before", on_previous, MOST),
        ]
    behind, others = apostrophe_rows(words)
    on_it, on_first = float(weights_TT[behind, behind - 1].mean()), float(weights_TT[others, 0].mean())
    return [
        at_least(f"{head}: weight of rows behind an apostrophe on it", on_it, MOST),
        at_least(f"{head}: weight of other rows on the first token", on_first, MOST),
    ]


@final
@dataclass(frozen=True, kw_only=True)
class AttentionMaps(ModelFigure):
    """heads: whose weights are shown."""

    heads: tuple[NamedHead, ...]

    def look(self, run: RunVerb, subject: Subject) -> Outcome:
        seen = probed(run, subject)
        prompt = seen.prompt()
        found = [find(named, seen, prompt, subject) for named in self.heads]
        return Outcome(
            ours="; ".join(head.in_words() for head in found),
            comparisons=[share for head in found for share in head.shares],
            panels={title: panel for head in found for title, panel in head.panel.items()},
            remark=" ".join([*(head.about() for head in found), NO_PROMPT]),
        )


@final
@dataclass(frozen=True, kw_only=True)
class TokenNorms(ModelFigure):
    """named: the head whose chunk norms are shown, and its weights."""

    named: NamedHead

    def look(self, run: RunVerb, subject: Subject) -> Outcome:
        seen = probed(run, subject)
        prompt = seen.prompt()
        found = find(self.named, seen, prompt, subject)
        comparisons, panels = list(found.shares), found.panel
        for what, ours, name in (
            ("queries", found.query_norms, self.named.queries),
            ("keys", found.key_norms, self.named.keys),
        ):
            published = heat_map(name)
            titles = (found.title, f"published: {self.named.label}")
            panels |= side_by_side(what, ours, published, "token", titles=titles)
            if subject.is_the_papers:  # means over all tokens but the first, and the length of its whole vector
                check_shape(ours[:, :1], published[:, :1])
                ours_P, published_P = ours[:, 1:].mean(1), published[:, 1:].mean(1)
                profile = correlation(ours_P, published_P)
                first, published_first = (float(np.linalg.norm(norms[:, 0])) for norms in (ours, published))
                comparisons += [
                    *compare_strongest(what, ours_P, published_P),
                    alike(f"{what}: correlation of the pairs' mean norms", profile, LEAST_PROFILE),
                    as_printed(
                        f"{what}: norm of the first token", first, published_first, FIRST_TOKEN * published_first
                    ),
                ]
        strongest = ", ".join(str(pair + 1) for pair in np.argsort(-found.query_norms[:, 1:].mean(1))[:3])
        summary = f"{found.in_words()}; strongest pairs of queries, counted from 1: {strongest}"
        return Outcome(summary, comparisons, panels, f"{found.about()} {NO_PROMPT}")


@final
class Logits(ModelFigure):
    """Figure 12: logits of the apostrophe head. The first token by default, an apostrophe from the row behind it."""

    def look(self, run: RunVerb, subject: Subject) -> Outcome:
        seen = probed(run, subject)
        prompt = seen.prompt()
        found = find(APOSTROPHE, seen, prompt, subject)
        published = heat_map("Fig12_L1H10_logits")
        seen_TT = np.where(np.tril(np.ones_like(published)) > 0, published, np.nan)  # the picture has -10 elsewhere
        behind, others = apostrophe_rows(prompt.words)  # of a layer with a window, the rows that see it
        theirs_behind = np.array([row for row, _ in APOSTROPHE_CELLS])
        theirs_others = np.setdiff1d(np.arange(1, len(published)), theirs_behind)
        on_it, on_first = (float(np.nanmean(x)) for x in (found.logits[behind, behind - 1], found.logits[others, 0]))
        published_on_it = published[theirs_behind, theirs_behind - 1].mean()
        published_on_first = published[theirs_others, 0].mean()
        return Outcome(
            ours=found.in_words(),
            comparisons=[
                *found.shares,
                as_printed("logit of the first token on itself", found.logits[0, 0], published[0, 0], READING),
                as_printed("mean logit of other rows on the first token", on_first, published_on_first, OTHER_WORDS),
                as_printed("mean logit on an apostrophe, from behind it", on_it, published_on_it, OTHER_WORDS),
            ],
            panels={
                f"logits, {found.title}": HeatMap(found.logits, "key", "query", label="logit (nats)"),
                "logits, published": HeatMap(seen_TT, "key", "query", label="logit (nats)"),
            },
            remark=f"{found.about()} {NO_PROMPT}",
        )


FIGURES: dict[str, Figure] = {
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
}
for number, named, strongest in (
    (6, LATE_DIAGONAL, "1, 2, 3"),
    (14, DIAGONAL, "1, 3, 2"),
    (15, LATE_DIAGONAL, "1, 2, 3"),
    (16, PREVIOUS, "1, 126, 113"),
    (17, APOSTROPHE, "120, 98, 91"),
    (18, SEMANTIC, "111, 123, 88"),
):
    FIGURES[f"rope.fig{number}"] = TokenNorms(
        shows=f"Gemma 7B: norms of {named.label} ({named.pattern}), token by token",
        published=f"strongest pairs of queries, counted from 1: {strongest}",
        command="roundround probe model=gemma-7b texts=shakespeare",
        model="gemma-7b",
        named=named,
    )
