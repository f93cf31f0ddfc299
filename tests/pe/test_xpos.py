"""xPos: RoPE with a decay, in which queries and keys are treated differently."""

from __future__ import annotations

import math

import pytest
import torch
from helpers_pe import attention_shape, build, golden, logits, noise, positions, wave


def test_logits_are_those_of_another_implementation() -> None:
    expected = golden("pe_xpos_logits")
    pos_1T = torch.tensor([expected["positions"]])
    q, k = (wave(1, 1, pos_1T.shape[1], 8, step=step) for step in (1.7, 0.9))
    encoding = build("xpos", attention_shape(n_heads=1, n_key_heads=1, head_dim=8))
    found = logits(encoding, q, k, pos_1T)[0, 0]
    torch.testing.assert_close(found, torch.tensor(expected["logits"], dtype=torch.float64), rtol=1e-9, atol=1e-12)


def test_logits_are_a_loop_over_pairs() -> None:
    encoding, q, k = build("xpos"), noise(1, 1, 6, 16), noise(1, 1, 6, 16, seed=1)
    found = logits(encoding, q, k, positions(6, 700))[0, 0]
    for i in range(6):
        for j in range(6):
            total = 0.0
            for pair in range(8):
                angle, decay = 10000.0 ** (-pair / 8) * (i - j), ((pair / 8 + 0.4) / 1.4) ** ((i - j) / 512)
                (a, b), (c, d) = ((float(x[0, 0, t, pair]), float(x[0, 0, t, pair + 8])) for x, t in ((q, i), (k, j)))
                total += decay * ((a * c + b * d) * math.cos(angle) - (b * c - a * d) * math.sin(angle))
            assert found[i, j].item() == pytest.approx(total, rel=1e-10, abs=1e-10)


def test_a_large_gamma_is_rope() -> None:
    q, k = noise(1, 4, 9, 16), noise(1, 4, 9, 16, seed=1)
    found, rope = (logits(encoding, q, k, positions(9)) for encoding in (build("xpos", gamma=1e12), build("rope")))
    torch.testing.assert_close(found, rope)


def test_a_key_weighs_less_the_further_it_lies() -> None:
    ones = torch.ones(1, 4, 1, 16, dtype=torch.float64)
    lengths = []
    for distance in (0, 512, 1024):
        pos_1T = torch.tensor([[0, distance]])
        q, k = ones.expand(-1, -1, 2, -1), ones.expand(-1, -1, 2, -1)
        encoding = build("xpos", theta=1e300)  # all but the first pair stand still
        lengths.append(logits(encoding, q, k, pos_1T)[0, 0, 1, 0].item())
    assert lengths[0] > lengths[1] > lengths[2] > 0


def test_factors_stay_finite_at_32768_positions() -> None:
    q = noise(1, 1, 2, 16, dtype=torch.float32)
    pos_1T = torch.tensor([[0, 32767]])
    encoding = build("xpos")
    prepared = encoding.prepare(pos_1T, torch.float32)
    for x_rotated in (encoding.rotate_queries(q, prepared), encoding.rotate_keys(q, prepared)):
        assert x_rotated.isfinite().all()
        assert x_rotated.abs().max() < 1e20, "counted from the middle; from an end the factors reach 1e34"


@pytest.mark.parametrize("name", ["gamma", "scale_base"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_its_numbers_must_be_positive(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"^{name}={value} must be a finite number above 0$"):
        build("xpos", **{name: value})


def test_channels_must_be_even_and_theta_above_one() -> None:
    with pytest.raises(ValueError, match="head_dim=7 is odd"):
        build("xpos", attention_shape(head_dim=7))
    with pytest.raises(ValueError, match=r"theta=1\.0 must be a finite number above 1"):
        build("xpos", theta=1.0)
