"""The heads that arXiv:2410.06205 names, and the ones to look at in their place in another model.

The paper counts heads from 1, and its layer "1" is the first: norms of repeated tokens are equal in its pictures.
Shapes: L layers, H heads, T tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from roundround.papers.claim import Comparison, at_least, at_most
from roundround.papers.figures.item import Subject
from roundround.papers.figures.probed import Array, Probed, numbers
from roundround.probing.prompt import LayerRecord, PromptRecord
from roundround.support.errors import UserError

MOST = 0.5  # of a row's weight: what "attends to" means at least; by Figure 12 the apostrophe head gives 0.92 to 0.99


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

    query_norms, key_norms: [P, T]; weights, logits: [T, T].
    """

    layer: int
    head: int
    title: str
    remark: str
    query_norms: Array
    key_norms: Array
    weights: Array
    logits: Array


def find(named: NamedHead, seen: Probed, prompt: PromptRecord, subject: Subject) -> Found:
    """The head that the paper names, or the one of another model that has most of the same pattern."""
    scores_LH = pattern_scores(named.pattern, seen, prompt)
    if subject.is_the_papers:
        layer, remark = paper_layer(named, scores_LH)
        head, why = named.head, "the paper's"
    else:
        first = seen.n_layers // 2 if named.late else 0
        layer, head = (int(n) for n in np.unravel_index(np.nanargmax(scores_LH[first:]), scores_LH[first:].shape))
        layer += first
        why, remark = f"{named.pattern} {scores_LH[layer, head]:.2f}, the most of all", ""
    record = prompt.layers[layer]
    key_head = head * len(record.key_norms) // len(record.query_norms)
    return Found(
        layer,
        head,
        f"layer {layer}, head {head}: {why}",
        remark,
        numbers(record.query_norms[head]).T,
        numbers(record.key_norms[key_head]).T,
        numbers(record.weights[head]),
        numbers(record.logits[head]),
    )


def paper_layer(named: NamedHead, scores_LH: Array) -> tuple[int, str]:
    """The layer that the paper's label means; of two that it can mean, the one whose head has more of the pattern."""
    if scores_LH.shape[0] <= max(named.layers) or scores_LH.shape[1] <= named.head:
        raise UserError(f"this is not the paper's model: it has no {named.label}; give it by its own name in model=")
    scores = {layer: float(scores_LH[layer, named.head]) for layer in named.layers}
    best = max(scores, key=lambda layer: scores[layer])
    if len(scores) == 1:
        return best, ""
    shares = " and ".join(f"{score:.2f} at {layer}" for layer, score in scores.items())
    return best, f"The label's layer fits best as index {best}, counted from 0: {named.pattern} {shares}."


def pattern_scores(pattern: str, seen: Probed, prompt: PromptRecord) -> Array:
    """How much of a pattern each head has, from 0 to 1: [L, H], NaN where a layer has fewer heads.

    The share of the weight on texts at the label's place; of `apostrophe`, on the prompt, the product of the weight of
    rows behind an apostrophe on it and that of all other rows on the first token.
    """
    if pattern != "apostrophe":
        return seen.share(pattern)
    scores_LH = np.full(seen.places.shape[:2], np.nan)
    for layer, record in enumerate(prompt.layers):
        for head, (on_it, on_first) in enumerate(apostrophe_weights(record, prompt.words)):
            scores_LH[layer, head] = on_it * on_first
    return scores_LH


def apostrophe_weights(record: LayerRecord, words: list[str]) -> list[tuple[float, float]]:
    """Of every head: mean weight on the apostrophe of the rows behind one, and of all others but the first on it."""
    behind, others = apostrophe_rows(words)
    weights_HTT = numbers(record.weights)
    on_it_H, on_first_H = weights_HTT[:, behind, behind - 1].mean(1), weights_HTT[:, others, 0].mean(1)
    return list(zip(on_it_H.tolist(), on_first_H.tolist(), strict=True))


def apostrophe_rows(words: list[str]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The rows behind an apostrophe, and all others but the first row.

    Raises UserError where the tokenizer has no apostrophe apart from letters.
    """
    after = [word.strip() in ("'", "\u2019") for word in words[:-1]]
    if not any(after):
        raise UserError("this model's tokenizer joins the apostrophe of I'm to letters: no head can look for it alone")
    behind = np.array(after)
    return np.flatnonzero(behind) + 1, np.flatnonzero(~behind) + 1


def compare_pattern(pattern: str, found: Found, words: list[str]) -> list[Comparison]:
    """Where the weight of the prompt's rows goes, the first row left out."""
    weights_TT = found.weights
    on_itself, on_previous = float(np.diag(weights_TT)[1:].mean()), float(np.diag(weights_TT, -1).mean())
    named = f"layer {found.layer}, head {found.head}: weight"
    if pattern == "diagonal":
        return [at_least(f"{named} on the token itself", on_itself, MOST)]
    if pattern == "previous":
        return [at_least(f"{named} on the token before", on_previous, MOST)]
    if pattern == "semantic":
        return [
            at_most(f"{named} on the token itself", on_itself, MOST),
            at_most(f"{named} on the token before", on_previous, MOST),
        ]
    behind, others = apostrophe_rows(words)
    return [
        at_least(f"{named} of rows behind an apostrophe on it", float(weights_TT[behind, behind - 1].mean()), MOST),
        at_least(f"{named} of other rows on the first token", float(weights_TT[others, 0].mean()), MOST),
    ]


def statement(found: Found, pattern: Sequence[Comparison]) -> str:
    """Whether the head's weight goes where the paper's goes, and on which pair its queries are strongest."""
    there = all(comparison.holds for comparison in pattern)
    strongest, n_pairs = int(found.query_norms[:, 1:].mean(1).argmax()) + 1, len(found.query_norms)
    return (
        f"The head of layer {found.layer} {'has' if there else 'does not have'} the pattern here; "
        f"its queries are strongest on pair {strongest} of {n_pairs}, from the fastest."
    )
