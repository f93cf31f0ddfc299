"""Every check of a statement about RoPE fails where its own formula is broken; a trained model answers."""

from __future__ import annotations

import copy
import importlib
import math
from typing import Any

import pytest
import torch
from mutations import MUTATIONS, mutate
from torch import Tensor

from roundround.papers import CLAIMS, heads, rotations
from roundround.papers.claim import Trained, claim_of
from roundround.papers.constructions import (
    before_rotation,
    frequencies,
    ladder_by_formula,
    stories260k,
    turned,
    weights,
)
from roundround.papers.rotations import angles
from roundround.pe.p_rope import PRoPE
from roundround.pe.partial_rope import PartialRoPE
from roundround.pe.rope import RoPE
from roundround.probing.probed_model import ProbedDecoder

QUERIES_AS_KEYS = torch.randn(1, 20_000, 256, generator=torch.Generator().manual_seed(0)).double().expand(2, -1, -1)
BROKEN: dict[str, tuple[str, Any]] = {  # what a check gets wrong: statement, name in its module; what stands there
    "the key is turned the other way": ("prop_3_1.turned", lambda x, angle: turned(x, -angle)),
    "keys are the queries": ("prop_3_2.random_vector", lambda *sizes, seed: QUERIES_AS_KEYS),
    "the head has positions": ("prop_5_2.NoPE", lambda shape: RoPE(shape, theta=10_000.0)),
    "the formula's norm is for less weight": ("thm_5_3.needed_by_formula", lambda f: 0.9 * NEEDED(f)),
    "norms of 5 are taken for 10": ("figure_6.TEN", 5.0),
    "the listing rounds to the nearest": ("p_rope_listing.timescales", lambda d, p: TIMESCALES(d, p + 0.5 / d)),
    "p-RoPE has no patterns of meaning": (
        "table_1.encodings",
        lambda: {"0.75-RoPE": (ENCODINGS()["0.75-RoPE"][0], True, False)},
    ),
    "the key for the token before is not turned": ("thm_5_3.turned", lambda x, angle: x),
    "a frequency is a fraction of pi": ("lemma_a_1.frequencies", lambda: torch.tensor([torch.pi / 100]).double()),
    "the angles are those of half the circle": ("lemma_a_2.angles", lambda g, n: angles(g, n) / 2),
    "weights add up to more than one": ("lemma_a_3.weights", lambda logits: 1.1 * weights(logits)),
    "the pair does not turn": ("thm_6_1.logits", lambda q, k, n, g: torch.ones(len(n)).double()),
    "theta is Llama's": ("side_computations.THETA", 500_000.0),
    "the pair is the next one": ("apostrophe.PAIR", 119),
    "equation 3 has the other sign": ("equation_3.ladder_by_formula", lambda *sizes: -ladder_by_formula(*sizes)),
}
NEEDED, TIMESCALES, ENCODINGS = heads.needed_by_formula, rotations.timescales, heads.encodings
LONG = ("prop_3_1", "prop_3_2", "thm_5_3", "thm_6_1", "lemma_a_2")  # half a second or more for a check


@pytest.fixture(scope="module")
def trained() -> Trained:
    return stories260k()


@pytest.mark.parametrize(
    "what",
    [
        pytest.param(what, marks=[pytest.mark.slow] * (place.partition(".")[0] in LONG))
        for what, (place, _) in BROKEN.items()
    ],
)
def test_a_check_fails_where_its_formula_is_broken(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place, broken = BROKEN[what]
    claim, _, name = place.partition(".")
    module = CLAIMS[f"rope.{claim}"][0].partition(".")[0]
    monkeypatch.setattr(importlib.import_module(f"roundround.papers.{module}"), name, broken)
    assert claim_of(f"rope.{claim}").check().verdict == "FAILS"


def test_a_trained_model_answers(trained: Trained) -> None:
    finding = rotations.equation_3_of_model(trained)
    assert finding.verdict == "holds"
    assert finding.picture is not None


@pytest.mark.parametrize("mutation", list(MUTATIONS)[:2])
def test_a_wrong_rotation_is_seen_in_every_layer_of_a_trained_model(
    mutation: str, trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate(monkeypatch, mutation)
    finding = rotations.equation_3_of_model(trained)
    assert len(finding.comparisons) == 5
    assert {comparison.verdict for comparison in finding.comparisons} == {"differs"}


@pytest.mark.parametrize("encoding", [PRoPE, PartialRoPE])
def test_equation_3_holds_of_encodings_that_rotate_some_pairs(encoding: Any, trained: Trained) -> None:
    probed = trained.probed
    assert isinstance(probed, ProbedDecoder)
    decoder = copy.deepcopy(probed.decoder)
    decoder.encodings[0] = encoding(decoder.encoding.shape, theta=10_000.0, p=0.5)
    other = ProbedDecoder("other", decoder, probed.tokenizer, 1)
    finding = rotations.equation_3_of_model(Trained(other, trained.texts))
    assert finding.verdict == "holds"


def test_queries_before_rotation_are_the_projections(trained: Trained) -> None:
    """Of the last layer, which sees what the rotations below it do."""
    tokens, inputs = trained.texts[0][:6], []
    attention = trained.probed.model.layers[-1].self_attn  # type: ignore[union-attr, index]
    with attention.register_forward_pre_hook(lambda _, args: inputs.append(args[0])), torch.no_grad():
        trained.probed.hidden(torch.tensor([tokens]), torch.arange(6)[None])
        projected: Tensor = attention.heads(attention.q_proj(inputs[0]))
    assert torch.allclose(before_rotation(trained.probed, tokens)[-1][0], projected[0], atol=1e-12)


def test_the_vectors_of_figure_1_attend_one_token_ahead_under_equation_3() -> None:
    """The drawing turns the query where the appendix turns the key."""
    drawn = heads.of_figure_1()
    assert (drawn.ours, drawn.published) == (-1, 1)


def test_both_swaps_are_needed_and_none_helps_without_rotation() -> None:
    found = [heads.swaps_to_lose(draw, 4 * math.pi / heads.TOKENS) for draw in range(20)]
    assert set(found) == {1, 2}
    assert [heads.swaps_to_lose(draw, 0.0) for draw in range(20)] == [None] * 20


def test_half_the_places_lose_by_the_formula_for_logits_of_no_size_beside_the_target(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """64 cos x <= ln n + ln I_0(0) = ln n: of 1,000 places 0.534."""
    monkeypatch.setattr(heads, "OTHER", 0.0)
    assert heads.share_by_formula(1000) == pytest.approx(1 - math.acos(math.log(1000) / 64) / math.pi)


def test_the_ladder_by_formula_is_the_one_that_rotates() -> None:
    assert torch.allclose(ladder_by_formula(), frequencies(), rtol=1e-12)
