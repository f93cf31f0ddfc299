"""Contextual positions: equal to another implementation and to a loop, and NoPE before training.

Shapes: B batch, T tokens, H heads, C head channels, N positions.
"""

from __future__ import annotations

import math

import pytest
import torch
from helpers_pe import attention_shape, build, golden, keys_at, noise, positions, wave
from torch import Tensor

from roundround.kernels.documents import documents_of
from roundround.pe.cope import ContextualBias
from roundround.softmax.softmax import Softmax


def test_the_bias_is_that_of_another_implementation() -> None:
    bias = ContextualBias(wave(1, 2, 6, 4, step=0.9), wave(5, 4, step=0.7))
    logits = 2 * wave(1, 2, 6, 6, step=1.3)
    found = (bias.applied(logits, keys_at(positions(6)), 0, 6) - logits)[0]
    past = torch.ones(6, 6).tril().bool()
    expected = torch.tensor(golden("pe_cope_bias"), dtype=torch.float64)
    torch.testing.assert_close(found[:, past], expected[:, past], rtol=1e-12, atol=1e-12)


def test_the_bias_is_a_loop_over_gates() -> None:
    q, table, logits = noise(1, 1, 7, 3, seed=1), noise(4, 3, seed=2), 2 * noise(1, 1, 7, 7, seed=3)
    found = ContextualBias(q, table).applied(logits, keys_at(positions(7), window=5), 0, 7)[0, 0]
    for i in range(7):
        for j in range(max(0, i - 4), i + 1):
            gates = sum(1 / (1 + math.exp(-float(logits[0, 0, i, m]))) for m in range(j, i + 1))
            p = min(gates, 3.0)
            below, share = int(p), p - int(p)
            above = table[min(below + 1, 3)]
            expected = logits[0, 0, i, j] + q[0, 0, i] @ ((1 - share) * table[below] + share * above)
            assert abs(float(found[i, j] - expected)) < 1e-12


def test_it_begins_as_nope() -> None:
    encoding = build("cope").double()
    q, k, v = (noise(1, 4, 12, 16, seed=seed) for seed in range(3))
    keys = keys_at(positions(12))
    outs = [
        Softmax(attention_shape())(q, k, v, scale=0.25, keys=keys, bias=bias, rows={})
        for bias in (encoding.bias(q, k, None), None)
    ]
    assert (outs[0] - outs[1]).abs().max() < 1e-12


def test_documents_count_by_themselves() -> None:
    q, k, v = (noise(1, 2, 12, 4, seed=seed) for seed in range(3))
    ends_1T = torch.zeros(1, 12, dtype=torch.bool)
    ends_1T[0, 4] = True
    documents = documents_of(ends_1T, lambda pos_1T: pos_1T)
    softmax, table = Softmax(attention_shape(n_heads=2, n_key_heads=2, head_dim=4)), noise(6, 4, seed=5)

    def attended(part: slice, documents: object = None) -> Tensor:
        pos_1T = positions(len(range(12)[part]))
        own = [x[:, :, part] for x in (q, k, v)]
        keys = keys_at(pos_1T, documents=documents)
        return softmax(*own, scale=0.5, keys=keys, bias=ContextualBias(own[0], table), rows={})

    whole = attended(slice(None), documents)
    torch.testing.assert_close(whole[:, :, :5], attended(slice(0, 5)))
    torch.testing.assert_close(whole[:, :, 5:], attended(slice(5, 12)))


def test_a_number_of_positions_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="n_positions=0 must be at least 1"):
        build("cope", n_positions=0)
