"""What benchmarks/gemma3_heads.py measures is what the model does."""

from __future__ import annotations

import gemma3_heads as script
import pytest
import torch
from helpers_hf import some_tokens, tiny
from transformers import PreTrainedModel

from roundround.hf.load import ProbedHuggingFaceModel
from roundround.hf.patching.attention import installed
from roundround.papers.constructions import calls

TOKENS = some_tokens(30).tolist()


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return tiny("gemma3_text")


@pytest.mark.parametrize("layer", [0, 1])
def test_weights_are_the_models_own_and_pairs_add_up_to_them(model: PreTrainedModel, layer: int) -> None:
    stock = model(torch.tensor([TOKENS]), output_attentions=True, use_cache=False).attentions[layer][0]
    rows = torch.tensor([7, 29])
    with installed(model):
        found = calls(ProbedHuggingFaceModel("tiny", model, None), [(TOKENS, 0)])[layer]
    some = script.Rows(found, 2, rows_R=rows)
    torch.testing.assert_close(some.weights(), stock[2, rows], rtol=1e-4, atol=1e-5)
    logit_R = some.by_pair(rows - 1).sum(-1) - some.by_pair(rows).sum(-1)
    torch.testing.assert_close(logit_R, (stock[2, rows, rows - 1] / stock[2, rows, rows]).log(), rtol=1e-3, atol=1e-4)


def test_a_silenced_head_changes_what_comes_after_it_and_nothing_else(model: PreTrainedModel) -> None:
    with installed(model):
        probed = ProbedHuggingFaceModel("tiny", model, None)
        before = calls(probed, [(TOKENS, 0)])
        with script.silenced(probed, [(1, 2)]):
            silent = calls(probed, [(TOKENS, 0)])
        after = calls(probed, [(TOKENS, 0)])
    same = [torch.equal(one.q_BHTC, other.q_BHTC) for one, other in zip(before, silent, strict=True)]
    assert same == [True, True, False, False]
    assert all(torch.equal(one.q_BHTC, other.q_BHTC) for one, other in zip(before, after, strict=True))
