"""What follows from the papers and does not stand there: the results of docs/results/theory.md that a test can hold."""

from __future__ import annotations

import math

import pytest
import torch

from roundround.papers.constructions import (
    HEAD_DIM,
    SHAPE,
    aligned,
    frequencies,
    logits,
    p_rope_frequencies,
    random_vector,
    weights,
)
from roundround.papers.softmax import ADAPTIVE
from roundround.softmax.base import AttentionSoftmax
from roundround.softmax.ssmax import SSMax

FAR = torch.cat([torch.arange(64), torch.logspace(1.81, 6, 500, dtype=torch.float64).long()])  # tokens
LEAD = 5.69  # nats: the mean spread of the logits of Gemma 2B's heads


@pytest.mark.parametrize("p", [0.25, 0.5, 0.75])
def test_the_unrotated_pairs_of_p_rope_have_the_same_share_of_a_logit_at_every_distance(p: float) -> None:
    still = (p_rope_frequencies(p) == 0).repeat(2)
    q, k = random_vector(HEAD_DIM, seed=0) * still, random_vector(HEAD_DIM, seed=1) * still
    share_N = logits(q, k, FAR, p_rope_frequencies(p))
    assert float(share_N.max() - share_N.min()) < 1e-9
    assert float(aligned(FAR, frequencies()[int(p * HEAD_DIM // 2) :]).min()) < 0, "under RoPE they turn round"


@pytest.mark.parametrize(("first", "last", "lost"), [(110, 120, 0.92), (115, 115, 0.58)])
def test_a_band_of_low_frequencies_loses_its_target_more_often_than_one_frequency(
    first: int, last: int, lost: float
) -> None:
    """The target's logit is 64 at distance 0, that of every other key 8; it is put at each distance in turn."""
    unit_N = aligned(torch.arange(100_000), frequencies()[first - 1 : last])
    others_N = (8 * unit_N).exp()
    rest_N = (others_N.sum() - others_N).log()  # all other keys as one
    alpha_N = weights(torch.stack([64 * unit_N, rest_N], -1))[:, 0]
    assert float((alpha_N <= 0.5).double().mean()) == pytest.approx(lost, abs=0.005)


def lift(n: int, softmax: AttentionSoftmax) -> float:
    """By how much a normaliser raises the weight of one key that leads n - 1 others, all alike."""
    row_1N = torch.zeros(1, n, dtype=torch.float64)
    row_1N[0, 0] = LEAD
    return float(weights(row_1N, softmax)[0, 0] / weights(row_1N)[0, 0])


def test_the_adaptive_temperature_lifts_a_lone_weight_3_7_fold_at_most_and_from_1046_keys_on_not_at_all() -> None:
    found = {n: lift(n, ADAPTIVE) for n in (100, 853, 854, 855, 1045, 1046, 100_000)}
    assert max(found, key=lambda n: found[n]) == 854
    assert found[854] == pytest.approx(3.714, abs=1e-3)
    assert found[1045] > 1 + 1e-6
    assert [found[n] for n in (1046, 100_000)] == pytest.approx([1.0, 1.0], abs=1e-12)


def test_the_weight_falls_as_a_smaller_power_of_the_length_under_ssmax() -> None:
    ssmax = SSMax(SHAPE, s=1 / math.log(2048), bias=False, scaled_heads=None).requires_grad_(False)
    slope = math.log(lift(1_000_000, ssmax) / lift(100_000, ssmax)) / math.log(10) - 1
    assert slope == pytest.approx(LEAD / math.log(2048) - 1, abs=0.05)
