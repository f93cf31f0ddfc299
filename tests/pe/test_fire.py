"""FIRE."""

from __future__ import annotations

import math

import pytest
import torch
from helpers_pe import bias_of, build


def naive(encoding: torch.nn.Module, i: int, j: int) -> list[float]:
    """b(i, j) for every head, in Python's float64, from the paper's formula."""
    c, threshold = encoding.log_c.exp().item(), encoding.log_threshold.exp().item()
    share = math.log(c * abs(i - j) + 1) / math.log(c * max(threshold, i) + 1)
    w1, b1 = encoding.enter.weight[:, 0].tolist(), encoding.enter.bias.tolist()
    hidden = [max(0.0, w * share + b) for w, b in zip(w1, b1, strict=True)]
    w2, b2 = encoding.leave.weight.tolist(), encoding.leave.bias.tolist()
    return [sum(w * x for w, x in zip(row, hidden, strict=True)) + b for row, b in zip(w2, b2, strict=True)]


@pytest.mark.parametrize("start", [0, 505, 2000])
def test_bias_is_the_formula(start: int) -> None:
    encoding = build("fire").double()
    bias_HTT = bias_of(encoding, 20, start)
    for i in range(0, 20, 3):
        for j in range(20):
            expected = torch.tensor(naive(encoding, start + i, start + j), dtype=torch.float64)
            torch.testing.assert_close(bias_HTT[:, i, j], expected, rtol=1e-10, atol=1e-12)


def test_beyond_the_threshold_the_first_token_always_looks_the_same() -> None:
    bias_HTT = bias_of(build("fire", init_threshold=8.0).double(), 64)
    far = bias_HTT[:, 8:, 0]
    torch.testing.assert_close(far, far[:, :1].expand_as(far))
    near = bias_HTT[:, :9, 0]
    assert (near.diff().abs() > 1e-6).any(1).all()


def test_beyond_the_threshold_a_distance_counts_for_less() -> None:
    encoding = build("fire", init_threshold=8.0).double()
    here, there = bias_of(encoding, 6, 2), bias_of(encoding, 6, 500)
    assert (here - there).abs().max() > 1e-3


def test_a_network_that_says_zero_is_nope() -> None:
    encoding = build("fire")
    torch.nn.init.zeros_(encoding.leave.weight)
    torch.nn.init.zeros_(encoding.leave.bias)
    assert not bias_of(encoding, 30).any()


def test_it_starts_where_the_paper_does() -> None:
    encoding = build("fire")
    assert encoding.log_c.exp().item() == pytest.approx(0.1)
    assert encoding.log_threshold.exp().item() == pytest.approx(512)
    assert [p.numel() for p in encoding.parameters()] == [1, 1, 32, 32, 32 * 4, 4]


def test_each_layer_has_its_own() -> None:
    assert build("fire").per_layer


@pytest.mark.parametrize("name", ["init_c", "init_threshold"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_bad_starting_points_are_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"^{name}={value} must be a finite number above 0$"):
        build("fire", **{name: value})


def test_a_network_without_units_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^hidden=0 must be 1 or more$"):
        build("fire", hidden=0)
