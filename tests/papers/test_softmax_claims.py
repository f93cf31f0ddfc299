"""Each statement about softmax fails when its own formula is broken, and can be asked of a model."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from roundround.papers import constructions, softmax
from roundround.papers.claim import checks_of
from roundround.softmax.hard import Hard
from roundround.softmax.ssmax import SSMax


def twice(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **named: 2 * function(*args, **named)


BREAKAGES: dict[str, tuple[str, Any, str, Any]] = {
    "the lemma's bounds without the exponential": (
        "softmax.lemma_2_1", softmax, "weight_bounds", lambda n, spread, theta: (1 / n, 1 / n)
    ),
    "the attained maximum with n for n - 1": (
        "softmax.lemma_2_1", softmax, "attainable", lambda n, spread, theta: 1 / (1 + n * math.exp(-spread / theta))
    ),
    "a temperature that multiplies": (
        "softmax.lemma_2_1", softmax, "weights_at", lambda theta, logits: constructions.weights_at(1 / theta, logits)
    ),
    "a bound on delta without its factor of two": (
        "softmax.prop_3_1", softmax, "spread_bound", lambda *made: SPECTRAL(*made) / 2
    ),
    "an entropy that falls by twice the variance": (
        "softmax.prop_3_2", softmax, "slope_by_formula", twice(softmax.slope_by_formula)
    ),
    "a polynomial of binary entropies": (
        "softmax.polynomial", softmax, "beta_by_listing", lambda h: LISTING(h / math.log(2))
    ),
    "the recurrence without its shrinking": (
        "softmax.streaming_entropy", softmax, "entropy_in_tiles", lambda row: math.log(len(row))
    ),
    "another coefficient": ("softmax.polynomial", softmax, "FIGURE_4", (-0.037, 0.481, -2.3, 4.917, -1.79)),
}  # fmt: skip
SPECTRAL, LISTING = softmax.spread_bound, softmax.beta_by_listing


@pytest.mark.parametrize("breakage", BREAKAGES)
def test_a_statement_fails_when_its_formula_is_broken(breakage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    claim, module, name, broken = BREAKAGES[breakage]
    monkeypatch.setattr(module, name, broken)
    assert checks_of(claim)[0]().of_statement == "FAILS"


@pytest.mark.parametrize(
    "make_softmax",
    [
        pytest.param(Hard, marks=pytest.mark.slow),
        lambda shape: SSMax(shape, s=1 / math.log(64), bias=False, scaled_heads=None),
    ],
)
def test_theorem_2_2_fails_where_attention_does_not_disperse(
    make_softmax: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = softmax.random_decoder
    monkeypatch.setattr(softmax, "random_decoder", lambda: whole(make_softmax))
    failed = [c.what for c in checks_of("softmax.thm_2_2")[0]().comparisons if c.verdict == "differs"]
    assert "largest weight of a row of 1,024 keys, any head and text" in failed


def test_the_delta_of_theorem_2_2_is_that_of_the_weights_and_no_text_exceeds_it() -> None:
    """Also where a text is searched for: each token of the vocabulary once among each other."""
    decoder = softmax.random_decoder()
    assert softmax.delta_of_weights(decoder) == pytest.approx(np.full((3, 4), softmax.DELTA))
    texts = torch.arange(16)[:, None, None].repeat(1, 16, 64)
    texts[:, :, 40] = torch.arange(16)
    _, spreads = softmax.rows_of_decoder(decoder, texts.flatten(0, 1))
    assert max(spreads) <= softmax.DELTA
