"""Selective RoPE: equal to the authors' module and to a loop over tokens; parts and documents change nothing.

Shapes: B batch, T tokens, H heads, C head channels, P pairs, D model width.
"""

from __future__ import annotations

import math

import pytest
import torch
from helpers_pe import attention_shape, build, golden, keys_at, logits, noise, positions, wave
from torch import Tensor

from roundround.kernels.documents import documents_of
from roundround.kernels.keys import Keys
from roundround.pe.selective_rope import SelectiveRoPE

SHAPE = attention_shape(n_heads=2, n_key_heads=2, head_dim=4, d_model=12)


def of_waves() -> SelectiveRoPE:
    encoding = build("selective_rope", SHAPE, rank=3, theta=100.0).double()
    assert isinstance(encoding, SelectiveRoPE)
    encoding.down.data, encoding.up.data = wave(3, 12, step=0.7), wave(4, 3, step=1.7)
    encoding.filter.data = wave(4, 1, 4, step=0.6)
    return encoding


def test_logits_are_those_of_the_authors() -> None:
    q, k = (wave(1, 7, 2, 4, step=step).transpose(1, 2) for step in (0.9, 1.1))
    found = logits(of_waves(), q, k, positions(7), wave(1, 7, 12, step=0.37))[0].detach()
    expected = torch.tensor(golden("pe_selective_rope_logits"), dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-6)  # theirs rotates in float32, and has an epsilon


def test_angles_are_a_loop_over_tokens() -> None:
    encoding, x_BTD = build("selective_rope", SHAPE).double(), noise(1, 6, 12, seed=3)
    cos, sin = encoding.prepare_layer(x_BTD, None, keys_at(positions(6)))
    assert cos.requires_grad
    encoding.requires_grad_(False)
    cos, sin = cos.detach(), sin.detach()
    total, phi = torch.zeros(4, dtype=torch.float64), []
    for t in range(6):
        heads = torch.cat([x / x.norm() for x in x_BTD[0, t].split(6)])
        phi.append(encoding.up @ (encoding.down @ heads))
        for back in range(4):
            if t >= back:
                total = total + encoding.filter[:, 0, 3 - back] * phi[t - back]
        for head in range(2):
            for pair in range(2):
                angle = float(total[2 * head + pair]) * 500_000.0 ** (-2 * pair / 4)
                assert float(cos[0, head, t, pair]) == pytest.approx(math.cos(angle), abs=1e-12)
                assert float(sin[0, head, t, 2 + pair]) == pytest.approx(math.sin(angle), abs=1e-12)


def angles(encoding: SelectiveRoPE, x_BTD: Tensor, keys: Keys) -> Tensor:
    cos, sin = encoding.prepare_layer(x_BTD, None, keys)
    return torch.atan2(sin[..., 2:], cos[..., 2:]).detach()


def test_documents_differ_from_texts_of_their_own_by_one_angle_for_all_tokens() -> None:
    encoding, x_BTD = of_waves(), noise(1, 12, 12, seed=3)
    ends_1T = torch.zeros(1, 12, dtype=torch.bool)
    ends_1T[0, 4] = True
    documents = documents_of(ends_1T, lambda pos_1T: pos_1T)
    together = angles(encoding, x_BTD, Keys(q_pos_BQ=positions(12), k_pos_BK=positions(12), documents=documents))
    alone = angles(encoding, x_BTD[:, 5:], keys_at(positions(7)))
    apart = together[:, :, 5:] - alone
    turns = (apart - apart[:, :, :1]) / (2 * math.pi)
    assert (turns - turns.round()).abs().max() < 1e-12


def test_what_stands_at_padding_changes_no_angle_between_tokens() -> None:
    encoding, valid_BK = of_waves(), torch.ones(1, 9, dtype=torch.bool)
    valid_BK[0, 3:6] = False
    keys = keys_at(positions(9), valid_BK=valid_BK)
    both = []
    for seed in (4, 5):
        x_BTD = noise(1, 9, 12, seed=3).where(valid_BK[..., None], noise(1, 9, 12, seed=seed))
        both.append(angles(encoding, x_BTD, keys)[:, :, valid_BK[0]])
    assert torch.equal(*both)


def test_with_fewer_key_heads_a_query_has_the_angles_of_its_key() -> None:
    encoding = build("selective_rope", attention_shape(n_heads=4, n_key_heads=2)).double()
    prepared = encoding.prepare_layer(noise(1, 5, 64), None, keys_at(positions(5)))
    x = noise(1, 2, 5, 16)
    found = encoding.rotate_queries(x.repeat_interleave(2, 1), prepared)
    torch.testing.assert_close(found, encoding.rotate_keys(x, prepared).repeat_interleave(2, 1))


def test_wrong_numbers_are_refused() -> None:
    for shape, values, message in (
        (SHAPE, {"rank": 0}, "rank=0 must be at least 1"),
        (SHAPE, {"theta": 1.0}, "theta=1.0"),
        (attention_shape(d_model=62), {}, "d_model=62 must be a multiple of n_heads=4"),
        (attention_shape(head_dim=5), {}, "head_dim=5 is odd"),
    ):
        with pytest.raises(ValueError, match=message):
            build("selective_rope", shape, **values)
