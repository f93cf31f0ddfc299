"""What tests allow for rounding, and what they skip where torch refuses."""

from __future__ import annotations

import math

import conftest
import pytest
import torch
from rounding import rounding


@pytest.mark.parametrize("n", [10, 1000, 100_000])
def test_a_sum_in_any_order_stays_within_what_is_allowed(n: int) -> None:
    terms = torch.rand(n, generator=torch.Generator().manual_seed(0))
    exact = math.fsum(terms.tolist())
    one_by_one = float(terms.cumsum(0)[-1])
    for found in (one_by_one, float(terms.sum()), float(terms.flip(0).cumsum(0)[-1])):
        assert abs(found - exact) < rounding(n, exact)


def test_less_precision_than_is_claimed_is_more_than_is_allowed() -> None:
    terms = torch.rand(1000, generator=torch.Generator().manual_seed(0))
    exact = math.fsum(terms.tolist())
    assert abs(float(terms.bfloat16().double().sum()) - exact) > rounding(1000, exact / 1000)
    assert rounding(dtype=torch.float64) < rounding() < rounding(dtype=torch.bfloat16)


def test_what_torch_refuses_on_a_cpu_with_amx_is_skipped_with_the_reason_and_nothing_else() -> None:
    line = "pack_vnni2 is only supported when avx512 is supported"
    for error, outcome in (
        (RuntimeError(line), pytest.skip.Exception),
        (AssertionError(f"failed: RuntimeError: {line}"), pytest.skip.Exception),  # of a command
        (RuntimeError("another"), RuntimeError),
    ):
        call = conftest.pytest_runtest_call(None)
        next(call)
        with pytest.raises(outcome):
            call.throw(error)
