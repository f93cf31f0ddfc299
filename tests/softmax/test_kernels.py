"""The doors to kernels that this machine may not have: what is passed to them, and what they are asked to give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers_attention import KEYS, SCALE, in_blocks, inputs, keys_of, shape_of
from torch import Tensor

from roundround.attention import kernels
from roundround.attention.kernels import Kernel
from roundround.softmax import projection
from roundround.softmax.alpha_entmax import AlphaEntmax
from roundround.softmax.entmax15 import Entmax15
from roundround.softmax.projection import Projection, entmax_of
from roundround.softmax.sparsemax import Sparsemax


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_the_calls_for_cuda_have_the_signatures_of_its_kernels(dtype: torch.dtype, causal: bool, masked: bool) -> None:
    """On meta tensors: PyTorch checks every argument and gives shapes, and computes nothing."""
    options: dict[str, Any] = {"device": "meta", "dtype": dtype}
    q, k, v = (torch.empty(2, heads, n, 64, **options) for heads, n in ((8, 40), (4, 50), (4, 50)))
    mask = torch.zeros(2, 1, 40, 50, **options) if masked else None
    kernel = Kernel.EFFICIENT if masked or dtype == torch.float32 else Kernel.FLASH
    out, log_sum_exp, state = kernels.attend_on_cuda(kernel, q, k, v, 0.1, causal, mask)
    assert (out.shape, out.dtype) == (q.shape, dtype)
    assert (log_sum_exp.shape, log_sum_exp.dtype) == (q.shape[:3], torch.float32)
    grads = kernels.gradients_on_cuda(torch.empty_like(out), q, k, v, out, log_sum_exp, state, 0.1, causal, mask)
    assert [grad.shape for grad in grads] == [q.shape, k.shape, v.shape]


def test_a_mask_for_cuda_starts_each_row_on_a_boundary() -> None:
    mask = torch.randn(2, 1, 3, 13)
    wide = kernels.aligned(mask, torch.empty(2, 4, 3, 8), torch.empty(2, 4, 13, 8))
    assert wide is not None
    assert torch.equal(wide, mask.expand(2, 4, 3, 13))
    assert wide.stride(2) % kernels.MASK_ALIGNMENT == 0


def test_key_heads_are_repeated_in_the_order_of_query_heads() -> None:
    k_BGKC = torch.randn(2, 3, 5, 7)
    assert torch.equal(kernels.repeated(k_BGKC, torch.empty(2, 12, 5, 7)), k_BGKC.repeat_interleave(4, 1))


def test_the_cpu_kernel_gives_output_log_sum_exp_and_zeros_for_rows_that_are_hidden() -> None:
    q, k, v = (torch.randn(1, 2, 4, 8, dtype=torch.float64) for _ in range(3))
    mask = torch.zeros(1, 1, 4, 4, dtype=torch.float64)
    mask[..., 1, :] = -torch.inf
    out, log_sum_exp, _ = kernels.attend(q_BHQC=q, k_BGKC=k, v_BGKC=v, scale=0.3, causal=False, mask=mask)
    logits = 0.3 * q @ k.mT
    rows = [0, 2, 3]
    torch.testing.assert_close(log_sum_exp[:, :, rows], logits.logsumexp(-1)[:, :, rows])
    torch.testing.assert_close(out[:, :, rows], (logits.softmax(-1) @ v)[:, :, rows])
    assert not out[:, :, 1].any()
    assert not log_sum_exp[:, :, 1].any()


def imitation(calls: list[tuple[float, bool]]) -> Callable[..., Tensor]:
    """What `adasplash` promises: alpha-entmax of q . k / sqrt(channels), equal numbers of heads."""

    def adasplash(q: Tensor, k: Tensor, v: Tensor, *, alpha: float, is_causal: bool) -> Tensor:
        assert q.shape == k.shape == v.shape
        calls.append((alpha, is_causal))
        logits = q @ k.mT / q.shape[-1] ** 0.5
        if is_causal:
            n = q.shape[2]
            logits = logits.masked_fill(~torch.ones(n, n, dtype=torch.bool).tril(), -torch.inf)
        return entmax_of(logits, alpha) @ v

    return adasplash


@pytest.mark.parametrize("mode", ["plain causal", "both ways"])
@pytest.mark.parametrize(
    "softmax",
    [Entmax15(shape_of(2)), Sparsemax(shape_of(2)), AlphaEntmax(shape_of(2), alpha=1.3, learned=False)],
    ids=["entmax15", "sparsemax", "alpha_entmax"],
)
def test_adasplash_is_given_what_makes_it_the_definition(
    softmax: Projection, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[float, bool]] = []
    monkeypatch.setattr(projection, "adasplash", imitation(calls))
    monkeypatch.setattr(projection, "splashes", lambda q, keys: True)
    keys = KEYS[mode]
    q, k, v, _ = inputs(keys, 2)
    out = softmax(q, k, v, scale=SCALE, keys=keys, bias=None, rows={})
    torch.testing.assert_close(out, in_blocks(softmax, q, k, v, keys, None))
    assert calls == [(softmax.fixed_alpha, mode == "plain causal")]


@pytest.mark.parametrize(
    ("keys", "n_channels", "takes"),
    [
        (keys_of(), 64, True),
        (keys_of(causal=False), 64, True),
        (keys_of(), 48, False),  # no power of two
        (keys_of(1), 64, False),  # one query and its cache
        (keys_of(window=4), 64, False),
        (KEYS["padded"], 64, False),
    ],
)
def test_adasplash_takes_whole_sequences_alone(
    keys: Any, n_channels: int, takes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class OnCuda:
        shape = (1, 4, keys.n_queries, n_channels)
        device = torch.device("cuda")

    assert not projection.splashes(OnCuda(), keys)  # type: ignore[arg-type]  # not installed here
    monkeypatch.setattr(projection, "adasplash", imitation([]))
    assert projection.splashes(OnCuda(), keys) == takes  # type: ignore[arg-type]


def test_a_learned_alpha_and_alpha_one_are_no_kernels() -> None:
    assert AlphaEntmax(shape_of(), alpha=1.5, learned=True).fixed_alpha is None
    assert AlphaEntmax(shape_of(), alpha=1, learned=False).fixed_alpha is None


@pytest.mark.parametrize("gain", [0.01, 0.3, 1.0, 5.0])
@pytest.mark.parametrize("alpha", [1.5, 2.0])
def test_sorting_the_largest_alone_changes_nothing(alpha: float, gain: float) -> None:
    import entmax

    x = torch.randn(40, 700, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * gain
    whole = (entmax.entmax15 if alpha == 1.5 else entmax.sparsemax)(x, dim=-1)
    torch.testing.assert_close(entmax_of(x, alpha), whole, rtol=0, atol=1e-12)
