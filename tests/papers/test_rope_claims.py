"""Every check of a statement about RoPE fails where its own formula is broken; a trained model answers."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from mutations import MUTATIONS, mutate
from torch import Tensor

from roundround.papers import rope
from roundround.papers.claim import checks_of
from roundround.papers.constructions import (
    before_rotation,
    frequencies,
    ladder_by_formula,
    stories260k,
    turned,
    weights,
)
from roundround.papers.rope import angles
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
    "the key for the token before is not turned": ("thm_5_3.turned", lambda x, angle: x),
    "a frequency is a fraction of pi": ("lemma_a_1.frequencies", lambda: torch.tensor([torch.pi / 100]).double()),
    "the angles are those of half the circle": ("lemma_a_2.angles", lambda g, n: angles(g, n) / 2),
    "weights add up to more than one": ("lemma_a_3.weights", lambda logits: 1.1 * weights(logits)),
    "the pair does not turn": ("thm_6_1.logits", lambda q, k, n, g: torch.ones(len(n)).double()),
    "theta is Llama's": ("side_computations.THETA", 500_000.0),
    "the pair is the next one": ("apostrophe.PAIR", 119),
    "equation 3 has the other sign": ("equation_3.ladder_by_formula", lambda *sizes: -ladder_by_formula(*sizes)),
}
NEEDED, TIMESCALES = rope.needed_by_formula, rope.timescales
LONG = ("prop_3_1", "prop_3_2", "thm_5_3", "thm_6_1", "lemma_a_2")  # half a second or more for a check


@pytest.fixture(scope="module")
def trained() -> tuple[ProbedDecoder, list[int]]:
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
    monkeypatch.setattr(rope, name, broken)
    assert checks_of(f"rope.{claim}")[0]().of_statement == "FAILS"


@pytest.mark.parametrize("mutation", list(MUTATIONS)[:2])
def test_a_wrong_rotation_is_seen_in_every_layer_of_a_trained_model(
    mutation: str, trained: tuple[ProbedDecoder, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate(monkeypatch, mutation)
    probed, tokens = trained
    finding = rope.equation_3_of_model(probed, [tokens])
    assert len(finding.comparisons) == 5
    assert {comparison.verdict for comparison in finding.comparisons} == {"differs"}


@pytest.mark.parametrize("encoding", [PRoPE, PartialRoPE])
def test_equation_3_holds_of_encodings_that_rotate_some_pairs(
    encoding: Any, trained: tuple[ProbedDecoder, list[int]]
) -> None:
    probed, tokens = trained
    decoder = copy.deepcopy(probed.decoder)
    decoder.encodings[0] = encoding(decoder.encoding.shape, theta=10_000.0, p=0.5)
    other = ProbedDecoder("other", decoder, probed.tokenizer, 1)
    assert rope.equation_3_of_model(other, [tokens]).of_statement == "holds"


def test_queries_before_rotation_are_the_projections(trained: tuple[ProbedDecoder, list[int]]) -> None:
    """Of the last layer, which sees what the rotations below it do."""
    (probed, story), inputs = trained, []
    tokens, attention = story[:6], probed.model.layers[-1].self_attn  # type: ignore[union-attr, index]
    with attention.register_forward_pre_hook(lambda _, args: inputs.append(args[0])), torch.no_grad():
        probed.hidden(torch.tensor([tokens]), torch.arange(6)[None])
        projected: Tensor = attention.heads(attention.q_proj(inputs[0]))
    assert torch.allclose(before_rotation(probed, tokens)[-1][0], projected[0], atol=1e-12)


def test_both_swaps_are_needed_and_none_helps_without_rotation() -> None:
    found = [rope.swaps_to_lose(draw, 4 * math.pi / rope.TOKENS) for draw in range(20)]
    assert set(found) == {1, 2}
    assert [rope.swaps_to_lose(draw, 0.0) for draw in range(20)] == [None] * 20


def test_the_ladder_by_formula_is_the_one_that_rotates() -> None:
    assert torch.allclose(ladder_by_formula(), frequencies(), rtol=1e-12)
