"""Holding out goes by the text alone, streams, and never lets a duplicate straddle."""

from __future__ import annotations

import hashlib

import pytest
from helpers_corpora import Listed

from roundround.data.corpora import is_held_out, well_formed

TEXTS = [f"document number {n}" for n in range(4000)]


@pytest.mark.parametrize("fraction", [0.1, 0.5, 0.93])
def test_the_held_out_share_is_near_the_fraction(fraction: float) -> None:
    share = sum(held_out for held_out, _ in Listed(TEXTS, held_out=fraction).documents()) / len(TEXTS)
    four_sigmas = 4 * (fraction * (1 - fraction) / len(TEXTS)) ** 0.5
    assert abs(share - fraction) < four_sigmas


def test_held_out_is_the_hash_read_as_a_fraction() -> None:
    for text in TEXTS[:50]:
        as_fraction = int(hashlib.sha256(text.encode()).hexdigest(), 16) / 2**256
        assert is_held_out(text, as_fraction + 1e-12)
        assert not is_held_out(text, as_fraction - 1e-12)


def test_training_texts_are_exactly_those_not_held_out() -> None:
    corpus = Listed(TEXTS, held_out=0.3)
    held_out = {text for side, text in corpus.documents() if side}
    assert list(corpus.training_texts()) == [text for text in TEXTS if text not in held_out]


def test_documents_with_nothing_visible_are_dropped() -> None:
    assert [text for _, text in Listed(["", " \n\t", "a", "\u2003"], held_out=0.5).documents()] == ["a"]


def test_half_surrogates_become_the_replacement_character() -> None:
    assert well_formed("a\ud800b \U0001f600") == "a\ufffdb \U0001f600"
    assert [text for _, text in Listed(["x\udfff"], held_out=0.5).documents()] == ["x\ufffd"]


@pytest.mark.parametrize("fraction", [1.1, -0.1])
def test_a_fraction_outside_zero_to_one_is_refused(fraction: float) -> None:
    with pytest.raises(ValueError, match=rf"held_out is {fraction}"):
        Listed(TEXTS, held_out=fraction)
