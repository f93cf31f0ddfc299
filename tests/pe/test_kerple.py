"""KERPLE, logarithmic."""

from __future__ import annotations

import math

import pytest
import torch
from helpers_pe import attention_shape, bias_of, build, keys_at, layer_bias, positions


def test_bias_is_the_formula() -> None:
    encoding = build("kerple").double()
    r1, r2 = encoding.log_r1.exp().tolist(), encoding.log_r2.exp().tolist()
    bias_HTT = bias_of(encoding, 20, start=5)
    for h in range(4):
        for i in range(20):
            for j in range(20):
                expected = -r1[h] * math.log(1 + r2[h] * abs(i - j))
                assert bias_HTT[h, i, j].item() == pytest.approx(expected, rel=1e-12)


def test_a_vanishing_strength_is_nope() -> None:
    encoding = build("kerple")
    torch.nn.init.constant_(encoding.log_r1, -200.0)
    assert not bias_of(encoding, 30).any()


def test_a_vanishing_scale_is_alibi() -> None:
    # -r1 log(1 + r2 d) -> -(r1 r2) d as r2 -> 0
    encoding, alibi = build("kerple").double(), build("alibi").double()
    torch.nn.init.constant_(encoding.log_r2, math.log(1e-9))
    with torch.no_grad():
        encoding.log_r1.copy_((alibi.slopes() * 1e9).log())
    torch.testing.assert_close(bias_of(encoding, 30).tril(), bias_of(alibi, 30).tril(), rtol=1e-6, atol=0)


def test_it_starts_as_the_authors_code_does() -> None:
    encoding = build("kerple", attention_shape(n_heads=4000, n_key_heads=4000))
    for parameter, largest in ((encoding.log_r1, 2.0), (encoding.log_r2, 1.0)):
        r = parameter.exp()
        assert 0.0099 < r.min() <= r.max() <= largest * 1.0001
        assert r.mean().item() == pytest.approx((0.01 + largest) / 2, rel=0.03)


def test_the_strength_stays_positive_where_a_step_would_take_it_below_zero() -> None:
    encoding = build("kerple")
    optimiser = torch.optim.SGD(encoding.parameters(), lr=1.0)
    for _ in range(50):  # always toward a weaker bias
        optimiser.zero_grad()
        bias = layer_bias(encoding, keys_at(positions(2)))
        (10 * (bias.r1_H + bias.r2_H).sum()).backward()
        optimiser.step()
    bias = layer_bias(encoding, keys_at(positions(2)))
    assert (bias.r1_H > 0).all()
    assert (bias.r2_H > 0).all()
    assert (bias.r1_H < 0.01).all()


def test_each_layer_has_its_own() -> None:
    assert build("kerple").per_layer


@pytest.mark.parametrize("name", ["init_r1", "init_r2"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_bad_starting_points_are_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"^{name}={value} must be a finite number, 0.01 or above$"):
        build("kerple", **{name: value})
