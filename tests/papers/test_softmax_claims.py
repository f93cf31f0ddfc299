"""Theorem 2.2: it fails where attention does not disperse, and its delta is that of the weights."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from roundround.papers import softmax
from roundround.papers.claim import checks_of
from roundround.softmax.hard import Hard
from roundround.softmax.ssmax import SSMax


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
