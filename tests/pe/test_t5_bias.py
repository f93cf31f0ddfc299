"""The relative bias of T5."""

from __future__ import annotations

import math

import pytest
import torch
from helpers_pe import attention_shape, bias_of, build, golden, keys_at, layer_bias, positions

from roundround.pe.t5_bias import bucket


def test_buckets_start_where_hugging_face_starts_them() -> None:
    buckets = bucket(torch.arange(500), n_buckets=32, max_distance=128)
    starts = [int((buckets == b).nonzero()[0]) for b in range(32)]
    assert starts == golden("pe_t5_buckets")
    assert (buckets.diff() >= 0).all()
    assert (buckets[128:] == 31).all()


def test_bias_is_the_formula() -> None:
    encoding = build("t5_bias").double()
    bias_HTT = bias_of(encoding, 150, start=3)
    for i in range(0, 150, 7):
        for j in range(150):
            distance = max(i - j, 0)
            octaves = math.log(max(distance, 1) / 16) / math.log(128 / 16)
            row = distance if distance < 16 else min(31, 16 + int(octaves * 16))
            assert torch.equal(bias_HTT[:, i, j], encoding.table[row].detach()), (i, j)


def test_a_zero_table_is_nope() -> None:
    encoding = build("t5_bias")
    torch.nn.init.zeros_(encoding.table)
    assert not bias_of(encoding, 30).any()


def test_one_table_serves_all_layers() -> None:
    assert not build("t5_bias").per_layer


def test_every_bucket_learns() -> None:
    encoding = build("t5_bias")
    keys = keys_at(positions(160))
    layer_bias(encoding, keys).block(keys, 0, 160).tril().sum().backward()
    assert (encoding.table.grad > 0).all()


def test_the_table_starts_as_t5s_does() -> None:
    table = build("t5_bias", attention_shape(n_heads=64, n_key_heads=64, d_model=256)).table
    assert table.std().item() == pytest.approx(1 / 16, rel=0.05)


def test_bad_bucket_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^num_buckets=1 must be 2 or more$"):
        build("t5_bias", num_buckets=1)
    with pytest.raises(ValueError, match=r"^max_distance=16 must exceed 16: .* \(num_buckets=32\) hold one distance"):
        build("t5_bias", max_distance=16)
