"""Weights that are not the model's, and a tokenizer that is not the run's, are one line."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers_manifest import DATA, a_manifest
from torch import nn

from roundround.data.tokenizers import Bytes
from roundround.loading.rebuilt import saved_tokenizer
from roundround.loading.weights import check_weights, load_into
from roundround.support.errors import UserError


def test_weights_of_another_shape_or_name_are_named_before_they_are_loaded() -> None:
    weights = nn.Linear(3, 2).state_dict()
    for model, message in (
        (nn.Linear(4, 2), r"weight is of shape \[2, 3\] there and of shape \[2, 4\] in the model"),
        (nn.Linear(3, 2, bias=False), r"bias is of shape \[2\] there and missing in the model"),
        (nn.Sequential(nn.Linear(3, 2)), r"0\.bias is missing there and .* in the model, and 3 more differ"),
    ):
        with pytest.raises(UserError, match=rf"^there/model.safetensors does not fit the model of the run: {message}"):
            load_into(model, weights, Path("there"))


def test_a_model_that_no_memory_holds_is_compared_all_the_same() -> None:
    with torch.device("meta"):
        model = nn.Linear(10**9, 10**6)
    with pytest.raises(UserError, match="does not fit"):
        check_weights(model, nn.Linear(3, 2).state_dict(), Path("there"))


def test_weights_that_fit_are_the_models() -> None:
    model, other = nn.Linear(3, 2), nn.Linear(3, 2)
    load_into(model, other.state_dict(), Path("there"))
    assert torch.equal(model.weight, other.weight)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"end_of_document": 10**9}, "has no token 1000000000"), ({"n_vocab": 7}, "has ids up to 256 and .* n_vocab=7")],
)
def test_a_tokenizer_that_is_not_the_runs_is_refused(tmp_path: Path, change: dict[str, int], message: str) -> None:
    Bytes().build([]).tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert saved_tokenizer(tmp_path, a_manifest()).build([]).end_of_document == 256
    with pytest.raises(UserError, match=message):
        saved_tokenizer(tmp_path, a_manifest(data={**DATA, **change}))
