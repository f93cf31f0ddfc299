"""What benchmarks/induction_heads.py measures is what the model does."""

from __future__ import annotations

from typing import Any

import induction_heads as script
import pytest
import torch
from helpers_hf import tiny
from transformers import PreTrainedModel

from roundround.hf.load import ProbedHuggingFaceModel
from roundround.hf.patching.attention import installed
from roundround.probing.ablation import parse_band, without

LENGTH, DISTANCES = 700, (64, 300, 380)


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return tiny("llama", vocab_size=49_000, max_position_embeddings=1024)


def rows_of(model: PreTrainedModel, *shares: float, resting: str = "") -> dict[tuple[int, str, float], Any]:
    """The numbers of two heads; resting: a band that rests in every layer."""
    with installed(model):
        probed = ProbedHuggingFaceModel("tiny", model, None)
        probed.first_token = 1
        tables = [without(table, [parse_band(resting)] if resting else []) for table in probed.tables()]
        with probed.with_frequencies(tables):
            found = script.read(probed, 3, (LENGTH, DISTANCES), [(0, 1), (1, 2)], *shares)
    return {(row["distance"], row["head"], row["at_rest"]): row for row in found}


def test_every_second_copy_follows_its_first_at_its_distance() -> None:
    for seed in range(4):
        tokens, starts = script.text(seed, LENGTH, DISTANCES, 1)
        assert len(tokens) == LENGTH
        assert max(starts.values()) == LENGTH - 64
        assert len(set(tokens)) == LENGTH - 64 * len(DISTANCES)  # nothing else comes twice
        for distance, start in starts.items():
            assert tokens[start : start + 64] == tokens[start - distance : start - distance + 64]


@pytest.mark.parametrize("name", ["gemma-3-270m", "smollm2-135m-instruct"])
def test_no_first_copy_of_a_plan_lies_among_second_copies(name: str) -> None:
    plan = script.PLANS[name]
    for seed in range(plan.n_texts):
        tokens, _ = script.text(seed, plan.length, plan.distances, 1)
        assert len(set(tokens)) == plan.length - 64 * len(plan.distances)


def test_numbers_are_those_of_the_models_own_attention(model: PreTrainedModel) -> None:
    tokens, starts = script.text(3, LENGTH, DISTANCES, 1)
    stock = model(torch.tensor([tokens]), output_attentions=True, use_cache=False).attentions
    found = rows_of(model, 0.0)
    for layer, head in ((0, 1), (1, 2)):
        for distance, start in starts.items():
            rows = torch.arange(start, start + 63)
            log_RK = stock[layer][0, head, rows].double().log()
            target = log_RK[torch.arange(63), rows - distance + 1]
            others = log_RK.clone()
            others[torch.arange(63), rows - distance + 1] = -torch.inf
            own = found[distance, f"{layer}.{head}", 0.0]
            expected = {
                "weight": target.exp().mean(),
                "odds": (target - (1 - target.exp()).log()).mean(),
                "over_first": (target - log_RK[:, 0]).mean(),
                "gap": (target - others[:, 1:].amax(-1)).mean(),
            }
            assert {name: own[name] for name in expected} == pytest.approx(
                {name: float(value) for name, value in expected.items()}, rel=1e-3, abs=1e-3
            )


def test_rest_in_the_head_is_rest_in_the_first_layer_and_not_in_the_second(model: PreTrainedModel) -> None:
    """The inputs of the first layer do not depend on the frequencies."""
    own = rows_of(model, 0.0, 0.375)
    everywhere = rows_of(model, 0.0, resting="lowest:0.375")
    for distance in DISTANCES:
        at_rest, turning = (own[distance, "0.1", share]["gap"] for share in (0.375, 0.0))
        assert at_rest == pytest.approx(everywhere[distance, "0.1", 0.0]["gap"], abs=1e-3)
        assert abs(at_rest - turning) > 0.01
    assert any(abs(own[d, "1.2", 0.375]["gap"] - everywhere[d, "1.2", 0.0]["gap"]) > 0.01 for d in DISTANCES)
