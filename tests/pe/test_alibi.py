"""ALiBi."""

from __future__ import annotations

import math

import pytest
import torch
from helpers_pe import attention_shape, bias_of, build, golden, keys_at, layer_bias, noise, positions
from rounding import rounding


@pytest.mark.parametrize("case", golden("pe_alibi_slopes"), ids=lambda case: str(case["n_heads"]))
def test_slopes_are_the_published_ones(case: dict[str, object]) -> None:
    encoding = build("alibi", attention_shape(n_heads=case["n_heads"], n_key_heads=case["n_heads"]))
    torch.testing.assert_close(encoding.slopes(), torch.tensor(case["slopes"]), rtol=1e-6, atol=0)


@pytest.mark.parametrize("n_heads", range(1, 34))
def test_any_number_of_heads_has_as_many_distinct_slopes(n_heads: int) -> None:
    slopes = build("alibi", attention_shape(n_heads=n_heads, n_key_heads=n_heads)).slopes()
    assert slopes.shape == (n_heads,)
    assert len(set(slopes.tolist())) == n_heads
    assert 2**-8 <= slopes.min() <= slopes.max() < 1


def test_bias_is_the_formula() -> None:
    bias_HTT = bias_of(build("alibi").double(), 20, start=5)
    for h in range(4):
        for i in range(20):
            for j in range(20):
                assert bias_HTT[h, i, j].item() == -(2.0 ** (-8 * (h + 1) / 4)) * (i - j)


def test_the_slopes_say_all_that_a_fused_kernel_needs() -> None:
    keys = keys_at(positions(9, 30), n_queries=4)
    bias = layer_bias(build("alibi"), keys)
    distance_BQK = keys.k_pos_BK[:, None] - keys.q_pos_BQ[..., None]
    assert torch.equal(bias.block(keys, 0, 4), bias.slopes * distance_BQK[:, None])
    q_coordinates, k_coordinates = bias.coordinates(keys)
    assert torch.equal(k_coordinates[:, :, None] - q_coordinates[..., None], distance_BQK[:, None])


def test_slopes_beside_bfloat16_are_float32() -> None:
    encoding, keys = build("alibi", attention_shape(n_heads=6, n_key_heads=6)), keys_at(positions(3))
    bias = layer_bias(encoding.bfloat16(), keys, noise(1, 3, 64, dtype=torch.bfloat16))
    assert bias.slopes.dtype == torch.float32
    assert torch.equal(bias.slopes.flatten(), encoding.slopes())


def test_slopes_beside_float64_are_float64() -> None:
    encoding, keys = build("alibi", attention_shape(n_heads=16, n_key_heads=16)), keys_at(positions(3))
    slopes = layer_bias(encoding, keys, noise(1, 3, 64)).slopes.flatten()
    expected = torch.tensor([2.0 ** (-(h + 1) / 2) for h in range(16)], dtype=torch.float64)
    torch.testing.assert_close(slopes, expected, rtol=rounding(dtype=torch.float64), atol=0)


@pytest.mark.parametrize("exponent", [0.0, -8.0, math.inf, math.nan])
def test_exponent_must_be_positive(exponent: float) -> None:
    with pytest.raises(ValueError, match=f"^exponent={exponent} must be a finite number above 0$"):
        build("alibi", exponent=exponent)
