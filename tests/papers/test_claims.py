"""Every statement holds here, and every way of breaking the mathematics is seen by a check."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from mutations import MUTATIONS, mutate

from roundround.papers import statement_names
from roundround.papers.claim import checks_of

CHECKS = {name: checks_of(name)[0] for name in statement_names()}  # imported before anything is broken

SEEN_BY = {  # checks that each mutation must fail; together they are all
    "wrong sign of the rotation": ["rope.prop_3_1", "rope.thm_5_3", "rope.equation_3", "rope.apostrophe"],
    "interleaved for half-split pairs": ["rope.prop_3_1", "rope.equation_3", "rope.apostrophe"],
    "k for k-1 in the exponent": [
        *("rope.prop_3_1", "rope.lemma_a_1", "rope.lemma_a_2", "rope.side_computations", "rope.apostrophe"),
        "rope.p_rope_listing",
    ],
    "a reversed polynomial": ["softmax.polynomial"],
    "binary for natural logarithm": ["softmax.polynomial", "softmax.prop_3_2"],
    "no rotation": ["rope.thm_6_1", "rope.figure_6", "rope.table_1"],
    "a rotation without its sines": ["rope.prop_3_2"],
    "float32 angles": ["rope.p_rope_listing"],
    "p-RoPE without its fastest pairs": ["rope.table_1", "rope.p_rope_listing"],
    "partial RoPE for p-RoPE": ["rope.p_rope_listing"],
    "pairs rounded to the nearest": ["rope.p_rope_listing"],
    "rotated values": ["rope.equation_3"],
    "a mask that sees one token ahead": ["rope.thm_5_3", "softmax.thm_2_2"],
    "a mask that hides a token from itself": ["rope.prop_5_2"],
    "SSMax for softmax": ["softmax.thm_2_2"],
    "softmax of the negative logits": ["rope.lemma_a_3"],
    "softmax to the base of two": ["softmax.lemma_2_1"],
    "products of queries and keys twice as large": ["softmax.prop_3_1", "softmax.thm_2_2"],
    "half the spread in the bound on the entropy": ["softmax.lemma_2_1"],
    "an entropy without the mean logit": ["softmax.streaming_entropy"],
}


@pytest.mark.parametrize("name", statement_names())
def test_a_claim_holds_with_its_words(name: str) -> None:
    finding = CHECKS[name]()
    assert finding.of_statement == "holds", [c for c in finding.comparisons if c.verdict == "differs"]
    statement, *formula, source = (CHECKS[name].__doc__ or "").split("\n\n")
    assert statement
    assert all(formula)
    assert "arXiv" in source


def test_every_claim_sees_some_mutation_of_the_program() -> None:
    assert {name for found in SEEN_BY.values() for name in found} == set(statement_names())
    assert SEEN_BY.keys() == MUTATIONS.keys()


# half a second or more for a check; that each holds is tested above
LONG = {
    *("rope.thm_5_3", "rope.thm_6_1", "rope.prop_3_2", "rope.lemma_a_2"),
    "softmax.thm_2_2",
}


def cases() -> Iterator[Any]:
    """Each mutation and each statement once; slow are pairs of two that another pair has, and long checks."""
    seen: set[str] = set()
    for mutation, found in SEEN_BY.items():
        for name in found:
            again = mutation in seen and name in seen
            yield pytest.param(mutation, name, marks=[pytest.mark.slow] if again or name in LONG else [])
            seen |= {mutation, name}


@pytest.mark.parametrize(("mutation", "name"), list(cases()))
def test_a_mutation_is_seen(mutation: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch, mutation)
    assert CHECKS[name]().of_statement == "FAILS"
