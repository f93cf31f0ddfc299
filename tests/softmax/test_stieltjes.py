"""The Stieltjes normaliser against roots found by scipy, and against alpha-entmax with alpha below 1."""

from __future__ import annotations

import math

import entmax
import numpy as np
import pytest
import scipy.optimize
import torch
from helpers_attention import build
from helpers_pe import noise
from rounding import rounding
from torch import Tensor

QS = [1.0, 1.5, 4.0, 16.0, 1000.0]


def weights_of(q: float, logits_RK: Tensor) -> Tensor:
    """The weights of rows that see all keys, [R, K]."""
    softmax, everything = build("stieltjes", q=q), torch.ones(1, 1, *logits_RK.shape, dtype=torch.bool)
    return softmax.weights(logits_RK[None, None], everything, {})[0, 0]


def by_brent(row: np.ndarray, q: float) -> np.ndarray:
    """(lambda - e)^(-q), in float64, with the lambda at which it sums to one, from a search for a sign change."""
    below = row.max() - row

    def excess(u: float) -> float:
        return float(np.exp(-q * np.log(u + below)).sum() - 1)

    u = scipy.optimize.brentq(excess, 1 - 1e-9, len(row) ** (1 / q) * (1 + 1e-9), xtol=1e-15, rtol=1e-15)
    return np.asarray(np.exp(-q * np.log(u + below)))


def rows_of(n: int) -> dict[str, Tensor]:
    """Rows of n logits, in float64, that are hard for a search: equal ones, spreads from 1e-3 to 1e4, and outliers."""
    one_above = torch.zeros(n, dtype=torch.float64)
    one_above[n // 2] = 5.0
    rows = {"equal": torch.zeros(n, dtype=torch.float64), "one above all others": one_above}
    rows |= {f"spread {spread:g}": spread * noise(n, seed=n) for spread in (1e-3, 0.1, 1.0, 10.0, 100.0, 1e4)}
    return rows | {"heavy tails": torch.tan(1.5 * torch.sin(3.0 * noise(n, seed=n + 1)))}


@pytest.mark.parametrize("n", [2, 30, 1000, 10_000])
@pytest.mark.parametrize("q", QS)
def test_weights_are_those_of_the_root_that_scipy_finds(q: float, n: int) -> None:
    for name, row in rows_of(n).items():
        expected = by_brent(row.numpy(), q)
        found = weights_of(q, row[None])[0].numpy()
        # scipy's root is right to 1e-15, which is raised to the power q
        assert np.abs(found / np.maximum(expected, 1e-300) - 1)[expected > 1e-34].max() < 1e-12 * max(q, 10), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("q", QS)
def test_rows_of_any_width_and_spread_sum_to_one_and_are_precise(q: float, dtype: torch.dtype) -> None:
    """The published code, with three Newton steps, has sums of 98 to 124 at 4,096 normal logits and q 1."""
    for n in (2, 4096, 10_000):
        for name, row in rows_of(n).items():
            row = row.to(dtype)[None]
            found, exact = weights_of(q, row), weights_of(q, row.double())
            assert found.dtype == dtype
            # the sum that divides is added in pairs, and 10,000 numbers take 14 levels
            assert abs(float(found.double().sum()) - 1) < rounding(14, dtype=dtype), name
            # as of a softmax: the logarithm of a weight, q ln(1 + x) to 16 nats, is rounded before exp
            assert (found - exact).abs().max() <= rounding(16, 4.0 * float(exact.max()), dtype), name


@pytest.mark.parametrize("q", [1.0, 2.0, 4.0, 16.0])
def test_it_is_alpha_entmax_of_q_times_the_logits_with_an_alpha_below_one(q: float) -> None:
    logits = 2 * noise(20, 50)
    expected = entmax.entmax_bisect(q * logits, 1 - 1 / q, dim=-1, n_iter=100)
    assert (weights_of(q, logits) - expected).abs().max() < 1e-12


def test_the_softmax_of_q_times_the_logits_is_the_limit_of_large_q() -> None:
    logits, off = noise(20, 50), []
    for q in (10.0, 1e2, 1e4, 1e6):
        off.append(float((weights_of(q, logits / q) - logits.softmax(-1)).abs().max()))
    assert off == sorted(off, reverse=True)
    assert off[0] > 0.01
    assert off[-1] < 5e-6, "off by about p e^2 / 2 q"
    single = (weights_of(1e6, logits.float() / 1e6) - logits.softmax(-1)).abs().max()
    assert single < 5e-6, "in float32 too, although 1 + e / q is rounded to a tenth of e / q"


@pytest.mark.parametrize("q", [1.0, 1.5, 4.0])
def test_its_tails_are_powers_and_two_equal_logits_share(q: float) -> None:
    row = torch.tensor([[3.0, 3.0, 3.0 - 1e3, 3.0 - 2e3]], dtype=torch.float64)
    first, second, far, farther = weights_of(q, row)[0].tolist()
    assert first == second == pytest.approx(0.5, abs=2e-3)
    u = first ** (-1 / q)
    assert farther / far == pytest.approx(((u + 1e3) / (u + 2e3)) ** q, rel=1e-9)


@pytest.mark.parametrize("q", QS)
def test_its_gradient_is_that_of_finite_differences(q: float) -> None:
    logits = noise(3, 6).div(min(q, 10)).requires_grad_()
    assert torch.autograd.gradcheck(lambda rows: weights_of(q, rows), logits)
    assert weights_of(q, logits).std(-1).min() > 0.01, "weights to differentiate"


@pytest.mark.parametrize("q", [1.0, 4.0, 16.0])
def test_the_gradient_in_float32_is_that_of_float64_at_logits_of_any_size(q: float) -> None:
    for spread in (1e-3, 1.0, 1e4):
        grads = []
        for dtype in (torch.float32, torch.float64):
            logits = (spread * noise(4, 500)).float().to(dtype).requires_grad_()
            (grad,) = torch.autograd.grad((weights_of(q, logits) * noise(4, 500, seed=1).to(dtype)).sum(), logits)
            assert grad.isfinite().all()
            grads.append(grad.double())
        # q w (g - mean g), where g is up to 4, a weight up to 1, and the mean is a sum of 500
        assert (grads[0] - grads[1]).abs().max() <= rounding(500, 4 * q)


@pytest.mark.parametrize("q", [0.0, 0.5, -1.0, math.nan, math.inf])
def test_a_q_below_one_or_without_end_is_rejected_by_name(q: float) -> None:
    with pytest.raises(ValueError, match=rf"^q={q} must be a finite number of at least 1"):
        build("stieltjes", q=q)
