"""Each statement about softmax fails when its own formula is broken, and can be asked of a model."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from rounding import rounding

from roundround.kernels.keys import Keys
from roundround.papers import constructions
from roundround.papers.claim import Trained, claim_of
from roundround.papers.constructions import inverse_temperature_of, rows_of_model, sampled
from roundround.papers.softmax import bounds, temperature, thm_2_2
from roundround.probing.probed_model import ProbedDecoder
from roundround.softmax.hard import Hard
from roundround.softmax.softmax import Softmax
from roundround.softmax.sparsemax import Sparsemax
from roundround.softmax.ssmax import SSMax
from roundround.softmax.temperature import Temperature


def twice(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **named: 2 * function(*args, **named)


BREAKAGES: dict[str, tuple[str, Any, str, Any]] = {
    "the lemma's bounds without the exponential": (
        "softmax.lemma_2_1", bounds, "weight_bounds", lambda n, spread, theta: (1 / n, 1 / n)
    ),
    "the attained maximum with n for n - 1": (
        "softmax.lemma_2_1", bounds, "attainable", lambda n, spread, theta: 1 / (1 + n * math.exp(-spread / theta))
    ),
    "a temperature that multiplies": (
        "softmax.lemma_2_1", bounds, "weights_at", lambda theta, logits: constructions.weights_at(1 / theta, logits)
    ),
    "a bound on delta without its factor of two": (
        "softmax.prop_3_1", bounds, "spread_bound", lambda *made: SPECTRAL(*made) / 2
    ),
    "an entropy that falls by twice the variance": (
        "softmax.prop_3_2", temperature, "slope_by_formula", twice(temperature.slope_by_formula)
    ),
    "a polynomial of binary entropies": (
        "softmax.polynomial", temperature, "beta_by_listing", lambda h: LISTING(h / math.log(2))
    ),
    "the recurrence without its shrinking": (
        "softmax.streaming_entropy", temperature, "entropy_in_tiles", lambda row: math.log(len(row))
    ),
    "another coefficient": ("softmax.polynomial", temperature, "FIGURE_4", (-0.037, 0.481, -2.3, 4.917, -1.79)),
}  # fmt: skip
SPECTRAL, LISTING = bounds.spread_bound, temperature.beta_by_listing


@pytest.mark.parametrize("breakage", BREAKAGES)
def test_a_statement_fails_when_its_formula_is_broken(breakage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    claim, module, name, broken = BREAKAGES[breakage]
    monkeypatch.setattr(module, name, broken)
    assert not claim_of(claim).check().holds


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
    whole = thm_2_2.random_decoder
    monkeypatch.setattr(thm_2_2, "random_decoder", lambda: whole(make_softmax))
    failed = [c.what for c in claim_of("softmax.thm_2_2").check().comparisons if not c.holds]
    assert "largest weight of a row of 1,024 keys, any head and text" in failed


def test_the_delta_of_theorem_2_2_is_that_of_the_weights_and_no_text_exceeds_it() -> None:
    """Also where a text is searched for: each token of the vocabulary once among each other."""
    decoder = thm_2_2.random_decoder()
    assert thm_2_2.delta_of_weights(decoder) == pytest.approx(np.full((3, 4), thm_2_2.DELTA))
    texts = torch.arange(16)[:, None, None].repeat(1, 16, 64)
    texts[:, :, 40] = torch.arange(16)
    _, spreads = thm_2_2.rows_of_decoder(decoder, texts.flatten(0, 1))
    assert max(spreads) <= thm_2_2.DELTA


@pytest.fixture(scope="module")
def random_model() -> Trained:
    decoder = thm_2_2.random_decoder()
    texts = torch.randint(thm_2_2.VOCABULARY, (2, 64), generator=torch.Generator().manual_seed(0)).tolist()
    return Trained(ProbedDecoder("random", decoder, None, 0), texts)  # type: ignore[arg-type]


def test_the_listing_holds_of_a_models_own_rows(random_model: Trained) -> None:
    finding = claim_of("softmax.polynomial").check_model(random_model)
    assert finding is not None
    assert finding.verdict == "holds", [c for c in finding.comparisons if not c.holds]
    assert finding.picture is not None


def test_rows_of_a_model_are_its_own_weights(random_model: Trained) -> None:
    for rows in rows_of_model(random_model.probed, random_model.texts):
        by_hand = torch.einsum("hrc,hkc->hrk", rows.q_HRC, rows.k_HKC)
        expected = by_hand.masked_fill(~rows.visible_RK, -torch.inf).softmax(-1)
        allowed = rounding(rows.q_HRC.shape[-1], float(by_hand.abs().max()))
        torch.testing.assert_close(rows.alpha_HRK, expected, atol=allowed, rtol=0)
        assert rows.n_R.tolist() == list(range(1, 65))


def test_a_row_scale_counts_into_the_logits_and_another_normaliser_does_not() -> None:
    logits = torch.tensor([[[[0.0, 1.0, 2.0]]]], dtype=torch.float64)
    seen, n = torch.ones(1, 1, 1, 3, dtype=torch.bool), torch.tensor([[[[3]]]])
    cold = Temperature(constructions.SHAPE, temperature=0.5)
    assert inverse_temperature_of(cold, logits, seen, n) == (2.0, cold)
    beta, normaliser = inverse_temperature_of(Sparsemax(constructions.SHAPE), logits, seen, n)
    assert beta == 1.0
    assert isinstance(normaliser, Softmax)


def test_rows_of_a_windowed_layer_see_their_window() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(1, 2, 6, 4, generator=generator), torch.randn(1, 1, 6, 4, generator=generator)
    places = torch.arange(6)[None]
    keys = Keys(q_pos_BQ=places, k_pos_BK=places, window=3)
    options = {"scale": 0.5, "keys": keys, "bias": None, "rows": {}}
    rows = sampled(Softmax(constructions.SHAPE), q, k, torch.tensor([1, 5]), options)
    assert rows.visible_RK.tolist() == [
        [True, True, False, False, False, False],
        [False, False, False, True, True, True],
    ]
    by_hand = (0.5 * q[0, :, 5] @ k[0, 0, 3:].T).double().softmax(-1)
    torch.testing.assert_close(rows.alpha_HRK[:, 1, 3:], by_hand, atol=rounding(4, 4.0), rtol=0)
    torch.testing.assert_close(rows.alpha_HRK.sum(-1), torch.ones(2, 2, dtype=torch.float64))
