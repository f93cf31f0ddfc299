"""Every statement holds here, and every way of breaking the mathematics is seen by a check."""

from __future__ import annotations

import pytest
from mutations import MUTATIONS

from roundround.theory import names
from roundround.theory.claim import claim_of

SEEN_BY = {  # a check that each mutation must fail
    "wrong sign of the rotation": ["rope.prop_3_1", "rope.thm_5_3", "rope.equation_3", "rope.apostrophe"],
    "interleaved for half-split pairs": ["rope.prop_3_1", "rope.thm_5_3", "rope.equation_3", "rope.apostrophe"],
    "k for k-1 in the exponent": [
        *("rope.prop_3_1", "rope.lemma_a_1", "rope.side_computations", "rope.apostrophe"),
        *("beyond.thm_6_1_wide", "beyond.p_rope_guarantee", "beyond.soft_cut"),
    ],
    "a reversed polynomial": ["softmax.polynomial", "beyond.lifted_constant"],
    "binary for natural logarithm": ["softmax.polynomial", "softmax.prop_3_2", "beyond.lifted_constant"],
}


@pytest.mark.parametrize("name", names())
def test_a_claim_holds_with_its_words_and_a_figure(name: str) -> None:
    claim = claim_of(name)
    finding = claim.check()
    assert finding.holds, [c for c in finding.comparisons if not c.holds]
    assert finding.picture is not None
    assert claim.title
    assert all(claim.words())
    assert "arXiv" in claim.words()[2] or "docs/" in claim.words()[2]


@pytest.mark.parametrize(("mutation", "name"), [(m, name) for m, found in SEEN_BY.items() for name in found])
def test_a_mutation_is_seen(mutation: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTATIONS[mutation](monkeypatch)
    assert not claim_of(name).check().holds
