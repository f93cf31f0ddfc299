"""Scale-invariant attention: the loop of its formula, its expected weights, and p-RoPE's rotation."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from helpers_pe import build, keys_at, logits, noise, positions

from roundround.pe.scale_invariant import EqualMass


def test_logits_are_the_formula_over_p_rope() -> None:
    q, k = noise(1, 4, 9, 16), noise(1, 4, 9, 16, seed=1)
    found, plain = (logits(build(name), q, k, positions(9, 50))[0] for name in ("scale_invariant", "p_rope"))
    for i in range(9):
        for j in range(i + 1):
            ln = math.log((i - j) / 10 + 1)
            expected = math.sqrt(2 * ln + 1) * plain[:, i, j] - 2 * ln
            torch.testing.assert_close(found[:, i, j], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("distance", [0, 1, 10, 1000, 10**6])
def test_standard_normal_logits_have_an_expected_weight_that_falls_with_the_distance(distance: int) -> None:
    nodes, weights = np.polynomial.hermite_e.hermegauss(120)
    changed = EqualMass(10.0).at_distance(torch.tensor(nodes), torch.tensor(distance)).exp()
    mean = float((torch.tensor(weights) * changed).sum()) / math.sqrt(2 * math.pi)
    assert mean == pytest.approx(math.sqrt(math.e) / (distance / 10 + 1), rel=1e-9)


def test_a_query_leaves_the_logit_of_its_own_token_alone() -> None:
    given = noise(1, 4, 6, 6)
    found = EqualMass(3.0).applied(given, keys_at(positions(6)), 0, 6)
    assert torch.equal(found.diagonal(dim1=-2, dim2=-1), given.diagonal(dim1=-2, dim2=-1))


def test_the_score_modification_is_the_change() -> None:
    keys, given = keys_at(positions(7, 3), n_queries=4), noise(1, 2, 4, 7)
    bias = EqualMass(10.0)
    modify, whole = bias.score_mod(keys), bias.applied(given, keys, 0, 4)
    for h in range(2):
        for i in range(4):
            for j in range(7):
                found = modify(given[0, h, i, j], *(torch.tensor(n) for n in (0, h, i, j)))
                torch.testing.assert_close(found, whole[0, h, i, j])


@pytest.mark.parametrize("tau", [0.0, -1.0, float("inf"), float("nan")])
def test_a_distance_that_is_not_above_zero_is_refused(tau: float) -> None:
    with pytest.raises(ValueError, match="tau="):
        build("scale_invariant", tau=tau)
