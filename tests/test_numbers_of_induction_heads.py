"""The claims of docs/results/induction_heads.md, from the values of each text in docs/results/induction_heads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from helpers_stored import check_claim, check_listed, text_of
from results import induction_heads
from results.induction_heads import Head, change, distances, fall, heads, mostly, stored, values, verdict, weights
from results.stored import DOCS, Array

from roundround.analysis.intervals import half_width

GEMMA, SMOLLM2 = "gemma-3-270m", "smollm2-135m-instruct"
PAGE = "induction_heads"


def of(model: str) -> list[Head]:
    return [own for own in heads() if own[0] == model]


def span(number: Callable[[Head], Array], some: list[Head]) -> str:
    """The least and the largest mean over texts of some heads."""
    means = [float(number(own).mean()) for own in some]
    return f"{min(means):+.1f} to {max(means):+.1f}"


def signs(number: Callable[[Head], Array], some: list[Head]) -> Counter[int]:
    """How many heads have an interval above 0 (1), below it (-1), and around it (0)."""
    found = [(float(number(own).mean()), float(half_width(number(own)))) for own in some]
    return Counter(0 if abs(mean) <= half else 1 if mean > 0 else -1 for mean, half in found)


def words(of_heads: Counter[str]) -> str:
    return ", ".join(f"{n} {word}" for word, n in of_heads.most_common())


def test_texts_and_heads_are_those_that_the_page_names() -> None:
    n_texts = {model: len(fall(of(model)[0])) for model in (GEMMA, SMOLLM2)}
    assert f"32,768 tokens, {n_texts[GEMMA]} texts" in " ".join(text_of(PAGE).split())
    assert f"8,192 tokens, {n_texts[SMOLLM2]} texts" in " ".join(text_of(PAGE).split())
    assert [distances(model)[-1] for model in (GEMMA, SMOLLM2)] == [32_256, 7_680]
    for model in (GEMMA, SMOLLM2):
        chosen = [head for head, (weight, window) in weights(model).items() if weight >= 0.3 and not window]
        assert chosen == [head for _, head in of(model)]
    assert not any(weight >= 0.3 and window for weight, window in weights(GEMMA).values())


def test_the_answer_counts_verdicts() -> None:
    n = Counter(verdict(own) for own in heads())
    part = Counter(mostly(own) for own in heads())
    check_claim(PAGE, "ANSWER", [f"{n['confirms']} of {len(heads())}"])
    assert n["contradicts"] == 0
    print(n, part)


def test_rest_gives_back_far_and_takes_near() -> None:
    far = signs(lambda own: change(own, distances(own[0])[-1]), heads())
    near = signs(lambda own: change(own, 64), heads())
    print(far, near, [signs(lambda own, d=d: change(own, d), of(SMOLLM2)) for d in distances(SMOLLM2)])


def test_all_pairs_at_rest() -> None:
    print([span(lambda own: fall(own, rest=1.0), of(model)) for model in (GEMMA,)])


def test_a_quarter_at_rest() -> None:
    print([span(lambda own: fall(own, rest=0.25) - fall(own), of(model)) for model in (GEMMA, SMOLLM2)])


def test_against_the_first_token() -> None:
    print([span(lambda own: fall(own, "over_first"), of(model)) for model in (GEMMA, SMOLLM2)])


def test_every_claim_of_the_page_is_checked() -> None:
    check_listed(PAGE, __file__, ["Text", "Heads", "Verdict", "Parts"])
