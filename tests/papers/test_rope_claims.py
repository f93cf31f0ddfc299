"""Equation 3 asked of trained models, and the constructions behind the statements about RoPE."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from mutations import MUTATIONS, mutate
from torch import Tensor

from roundround.papers import rope
from roundround.papers.constructions import (
    before_rotation,
    frequencies,
    ladder_by_formula,
    stories260k,
)
from roundround.pe.p_rope import PRoPE
from roundround.pe.partial_rope import PartialRoPE
from roundround.probing.probed_model import ProbedDecoder


@pytest.fixture(scope="module")
def trained() -> tuple[ProbedDecoder, list[int]]:
    return stories260k()


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
