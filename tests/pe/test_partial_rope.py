"""Partial rotary encoding, GPT-NeoX's."""

from __future__ import annotations

import math

import pytest
import torch
from helpers_pe import attention_shape, build, noise, positions, rotated


def test_p_one_is_rope() -> None:
    partial, rope = build("partial_rope", p=1.0), build("rope")
    x_BHTC = noise(2, 4, 50, 16, dtype=torch.float32)
    assert torch.equal(partial.frequencies(), rope.frequencies())
    assert torch.equal(rotated(partial, x_BHTC, positions(50)), rotated(rope, x_BHTC, positions(50)))


def test_p_zero_is_nope() -> None:
    x_BHTC = noise(2, 4, 50, 16, dtype=torch.float32)
    assert torch.equal(rotated(build("partial_rope", p=0.0), x_BHTC, positions(50)), x_BHTC)


def test_it_compresses_the_ladder_where_p_rope_cuts_it() -> None:
    shape = attention_shape(head_dim=256)
    partial = build("partial_rope", shape, p=0.75).frequencies(torch.float64)
    p_rope = build("p_rope", shape, p=0.75).frequencies(torch.float64)[:96]
    assert partial.shape == p_rope.shape
    assert partial[-1].item() == pytest.approx(10000 ** (-190 / 192))  # about 1 / theta: still the slowest
    assert p_rope[-1].item() == pytest.approx(10000 ** (-190 / 256))


def test_rotation_is_the_formula() -> None:
    # p = 0.7 of 16 channels is 11.2, an even 10 of which rotate: 5 pairs (m, m + 5)
    x_BHTC, expected = noise(1, 1, 9, 16), noise(1, 1, 9, 16)
    for t in range(9):
        for pair in range(5):
            angle = (t + 40) * 10000.0 ** (-2 * pair / 10)
            u, v = x_BHTC[0, 0, t, pair].item(), x_BHTC[0, 0, t, pair + 5].item()
            expected[0, 0, t, pair] = u * math.cos(angle) - v * math.sin(angle)
            expected[0, 0, t, pair + 5] = v * math.cos(angle) + u * math.sin(angle)
    torch.testing.assert_close(rotated(build("partial_rope", p=0.7), x_BHTC, positions(9, 40)), expected)


def test_channels_beyond_the_slice_pass_unchanged() -> None:
    x_BHTC = noise(2, 4, 50, 16, dtype=torch.float32)
    x_rotated = rotated(build("partial_rope", p=0.25), x_BHTC, positions(50, 1))
    assert torch.equal(x_rotated[..., 4:], x_BHTC[..., 4:])
    assert not torch.equal(x_rotated[..., :4], x_BHTC[..., :4])


@pytest.mark.parametrize("p", [-0.1, 1.01, math.nan])
def test_p_outside_zero_to_one_is_refused(p: float) -> None:
    with pytest.raises(ValueError, match=f"^p={p} must lie between 0 .* and 1"):
        build("partial_rope", p=p)
