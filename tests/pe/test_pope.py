"""Polar coordinates: equal to another implementation and to a loop over channels.

Shapes: B batch, T tokens, H heads, C head channels.
"""

from __future__ import annotations

import math

import pytest
import torch
from helpers_pe import attention_shape, build, golden, logits, noise, positions, wave


def test_logits_are_those_of_another_implementation() -> None:
    encoding = build("pope", attention_shape(n_heads=2, n_key_heads=2, head_dim=8), theta=100.0).double()
    encoding.delta.data = -2 * math.pi * (wave(2, 8, step=0.5) + 0.5)
    found = logits(encoding, 2 * wave(1, 2, 6, 8, step=0.9), 2 * wave(1, 2, 6, 8, step=1.1), positions(6))[0]
    expected = torch.tensor(golden("pe_pope_logits"), dtype=torch.float64)
    torch.testing.assert_close(found.detach(), expected, rtol=1e-12, atol=1e-12)


def test_logits_are_a_loop_over_channels() -> None:
    encoding = build("pope", attention_shape(head_dim=6), random_start=True, theta=50.0).double()
    q, k = noise(1, 4, 5, 6), noise(1, 4, 5, 6, seed=1)
    found, delta = logits(encoding, q, k, positions(5, 300))[0].detach(), encoding.delta.detach()
    for h in range(4):
        for i in range(5):
            for j in range(5):
                total = 0.0
                for c in range(6):
                    lengths = (math.log1p(math.exp(float(x))) for x in (q[0, h, i, c], k[0, h, j, c]))
                    total += math.prod(lengths) * math.cos((j - i) * 50.0 ** (-c / 6) + float(delta[h, c]))
                assert abs(float(found[h, i, j]) - total) < 1e-9


def test_content_changes_no_angle_and_position_no_length() -> None:
    encoding = build("pope", random_start=True).double()
    prepared = encoding.prepare(positions(9), torch.float64)
    turned = [encoding.rotate_keys(noise(1, 4, 9, 16, seed=seed), prepared).unflatten(-1, (2, 16)) for seed in (0, 1)]
    angles = [torch.atan2(x[..., 1, :], x[..., 0, :]) for x in turned]
    torch.testing.assert_close(angles[0], angles[1])
    lengths = torch.nn.functional.softplus(noise(1, 4, 9, 16))
    torch.testing.assert_close(turned[0].norm(dim=-2), lengths)


def test_the_learned_angle_starts_at_zero_or_anywhere_in_its_range() -> None:
    torch.manual_seed(0)
    assert not build("pope").delta.any()
    spread = build("pope", attention_shape(n_key_heads=64), random_start=True).delta
    assert spread.min() >= -2 * math.pi
    assert spread.max() <= 0
    assert spread.std() > 1.5


def test_a_base_of_one_is_refused() -> None:
    with pytest.raises(ValueError, match="theta=1"):
        build("pope", theta=1.0)
