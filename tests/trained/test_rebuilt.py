"""What a run kept, read again: a tokenizer that is not the run's is refused in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers_manifest import DATA, a_manifest

from roundround.data.tokenizers import Bytes
from roundround.support.errors import UserError
from roundround.trained.models import saved_tokenizer


@pytest.mark.parametrize(
    ("change", "message"),
    [({"end_of_document": 10**9}, "has no token 1000000000"), ({"n_vocab": 7}, "has ids up to 256 and .* n_vocab=7")],
)
def test_a_tokenizer_that_is_not_the_runs_is_refused(tmp_path: Path, change: dict[str, int], message: str) -> None:
    Bytes().build([]).tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert saved_tokenizer(tmp_path, a_manifest()).build([]).end_of_document == 256
    with pytest.raises(UserError, match=message):
        saved_tokenizer(tmp_path, a_manifest(data={**DATA, **change}))
