"""The doors to kernels that this machine may not have: what is passed to them, and what they are asked to give."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from helpers_attention import SCALE, in_blocks, keys_of, shape_of
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from roundround.kernels import sdpa, trial, whole_rows
from roundround.kernels.sdpa import Kernel
from roundround.softmax import projection
from roundround.softmax.alpha_entmax import AlphaEntmax
from roundround.softmax.entmax15 import Entmax15
from roundround.softmax.projection import entmax_of
from roundround.softmax.sparsemax import Sparsemax


class Calls(TorchDispatchMode):
    """The operators that are called inside, and their arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[tuple[str, Any]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.made.append((str(function), args))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_the_calls_for_cuda_have_the_signatures_of_its_kernels(dtype: torch.dtype, causal: bool, masked: bool) -> None:
    """On meta tensors: PyTorch checks every argument and gives shapes, and computes nothing."""
    options: dict[str, Any] = {"device": "meta", "dtype": dtype}
    q, k, v = (torch.empty(2, heads, n, 64, **options) for heads, n in ((8, 40), (4, 50), (4, 50)))
    mask = torch.zeros(2, 1, 40, 50, **options) if masked else None
    kernel = Kernel.EFFICIENT if masked or dtype == torch.float32 else Kernel.FLASH
    out, log_sum_exp, state = sdpa.attend_on_cuda(kernel, q, k, v, 0.1, causal, mask)
    assert (out.shape, out.dtype) == (q.shape, dtype)
    assert (log_sum_exp.shape, log_sum_exp.dtype) == (q.shape[:3], torch.float32)
    merged = out.contiguous()  # as outputs are that come from several calls
    with Calls() as calls:
        grads = sdpa.gradients_on_cuda(torch.empty_like(out), q, k, v, merged, log_sum_exp, state, 0.1, causal, mask)
    assert [grad.shape for grad in grads] == [q.shape, k.shape, v.shape]
    if kernel is Kernel.EFFICIENT:
        [args] = [args for name, args in calls.made if "efficient_attention_backward" in name]
        assert args[5].transpose(1, 2).is_contiguous(), "in half precision it reads [B, Q, H, C] whatever the strides"


def test_a_mask_for_cuda_starts_each_row_on_a_boundary() -> None:
    mask = torch.randn(2, 1, 3, 13)
    wide = sdpa.aligned(mask, torch.empty(2, 4, 3, 8), torch.empty(2, 4, 13, 8))
    assert wide is not None
    assert torch.equal(wide, mask.expand(2, 4, 3, 13))
    assert wide.stride(2) % sdpa.MASK_ALIGNMENT == 0


def test_key_heads_are_repeated_in_the_order_of_query_heads() -> None:
    k_BGKC = torch.randn(2, 3, 5, 7)
    assert torch.equal(sdpa.repeated(k_BGKC, torch.empty(2, 12, 5, 7)), k_BGKC.repeat_interleave(4, 1))


def test_the_cpu_kernel_gives_output_log_sum_exp_and_zeros_for_rows_that_are_hidden() -> None:
    q, k, v = (torch.randn(1, 2, 4, 8, dtype=torch.float64) for _ in range(3))
    mask = torch.zeros(1, 1, 4, 4, dtype=torch.float64)
    mask[..., 1, :] = -torch.inf
    out, log_sum_exp, _ = sdpa.attend(q_BHQC=q, k_BGKC=k, v_BGKC=v, scale=0.3, causal=False, mask=mask)
    logits = 0.3 * q @ k.mT
    rows = [0, 2, 3]
    torch.testing.assert_close(log_sum_exp[:, :, rows], logits.logsumexp(-1)[:, :, rows])
    torch.testing.assert_close(out[:, :, rows], (logits.softmax(-1) @ v)[:, :, rows])
    assert not out[:, :, 1].any()
    assert not log_sum_exp[:, :, 1].any()


class Wheel:
    """What `adasplash` 0.2.2 promises, and every condition that it asserts; `calls` says what it was given."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def v1(self, q: Tensor, k: Tensor, v: Tensor, alpha: float, is_causal: bool, varlen: Any, niter: int) -> Tensor:
        assert q.shape[-1] in {16, 32, 64, 128, 256}
        assert q.shape == k.shape == v.shape  # the kernel reads all three by the strides of q
        if varlen is None:
            assert q.shape[2].bit_count() == 1
        else:
            assert varlen.dim() == 1
        assert all(x.is_contiguous() for x in (q, k, v))
        assert q.requires_grad or not (k.requires_grad or v.requires_grad)  # what its backward pass needs is kept for q
        return self.attend("v1", q, k, v, alpha, is_causal, varlen, niter)

    def v2(self, q: Tensor, k: Tensor, v: Tensor, niter: int = 1, varlen: Any = None) -> Tensor:
        n_batch, n_heads, n_tokens, n_channels = q.shape
        assert n_channels in {16, 32, 64, 128, 256}
        assert k.shape == v.shape
        assert n_heads % k.shape[1] == 0
        assert (k.shape[0], *k.shape[2:]) == (n_batch, n_tokens, n_channels)
        assert n_tokens >= 64
        if varlen is None:
            assert n_tokens & (n_tokens - 1) == 0
        else:
            assert varlen.shape == (n_batch,)
            assert varlen.dtype in (torch.int32, torch.int64)
            assert varlen.is_contiguous()
        assert all(x.is_contiguous() for x in (q, k, v))
        return self.attend("v2", q, k, v, 1.5, True, varlen, niter)

    def attend(
        self, name: str, q: Tensor, k: Tensor, v: Tensor, alpha: float, causal: bool, varlen: Any, niter: int
    ) -> Tensor:
        assert q.dtype == k.dtype == v.dtype
        n = q.shape[2]
        lengths = [n] * len(q) if varlen is None else varlen.tolist()
        self.calls.append((name, alpha, causal, k.shape[1], niter, lengths))
        k, v = (sdpa.repeated(x, q) for x in (k, v))
        outs = []
        for text, length in enumerate(lengths):
            logits = q[text, :, :length] @ k[text, :, :length].mT / q.shape[-1] ** 0.5
            if causal:
                logits = logits.masked_fill(~torch.ones(length, length, dtype=torch.bool).tril(), -torch.inf)
            outs.append(torch.nn.functional.pad(entmax_of(logits, alpha) @ v[text, :, :length], (0, 0, 0, n - length)))
        return torch.stack(outs)


@pytest.fixture
def wheel(monkeypatch: pytest.MonkeyPatch) -> Wheel:
    """An imitation of the package, on a CPU; no trial has been made of it yet."""
    made = Wheel()
    monkeypatch.setattr(projection, "adasplash_v1", made.v1)
    monkeypatch.setattr(projection, "adasplash_v2", made.v2)
    monkeypatch.setattr(projection, "is_splash_here", lambda q: True)
    monkeypatch.setattr(trial, "outcomes", {})
    monkeypatch.setattr(whole_rows, "library", lambda: None)  # which a GPU has no use for
    return made


def long_inputs(n_tokens: int, n_channels: int = 16, n_queries: int | None = None) -> list[Tensor]:
    """Two texts of four heads, two key heads, float32."""
    generator = torch.Generator().manual_seed(1)
    sizes = ((4, n_queries or n_tokens), (2, n_tokens), (2, n_tokens))
    return [torch.randn(2, *size, n_channels, generator=generator).requires_grad_() for size in sizes]


SPLASHED = {
    "entmax15": Entmax15(shape_of(2)),
    "sparsemax": Sparsemax(shape_of(2)),
    "alpha_entmax": AlphaEntmax(shape_of(2), alpha=4 / 3, learned=False),
}


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("n_tokens", [64, 70, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", SPLASHED)
def test_adasplash_is_given_what_makes_it_the_definition(name: str, n_tokens: int, causal: bool, wheel: Wheel) -> None:
    softmax, keys = SPLASHED[name], keys_of(n_tokens, n_tokens, causal=causal)
    q, k, v = long_inputs(n_tokens)
    assert softmax.has_fused_form(q, keys, None)
    wheel.calls.clear()  # of the trial
    out = softmax(q, k, v, scale=SCALE, keys=keys, bias=None, rows={})
    expected = in_blocks(softmax, q, k, v, keys, None)
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)
    cotangent = torch.randn(out.shape, generator=torch.Generator().manual_seed(2))
    mine, its = (torch.autograd.grad(x, (q, k, v), cotangent) for x in (out, expected))
    torch.testing.assert_close(mine, its, atol=1e-4, rtol=1e-4)
    second = name == "entmax15" and causal
    one = ("v2", 1.5, True, 2) if second else ("v1", softmax.fixed_alpha, causal, 4)  # heads that it is given
    assert wheel.calls == [(*one, 10, [n_tokens, n_tokens])]


@pytest.mark.parametrize("n_tokens", [1, 63, 64, 70, 1000, pytest.param(4096, marks=pytest.mark.slow)])
def test_every_length_is_computed_by_one_or_the_other(n_tokens: int, wheel: Wheel) -> None:
    softmax, keys = SPLASHED["entmax15"], keys_of(n_tokens, n_tokens)
    q, k, v = (x[:1] for x in long_inputs(n_tokens))
    splashes = softmax.has_fused_form(q, keys, None)
    assert splashes == (n_tokens >= 64)
    with torch.no_grad(), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        out = softmax(q, k, v, scale=SCALE, keys=keys, bias=None, rows={})
        torch.testing.assert_close(out, in_blocks(softmax, q, k, v, keys, None), atol=1e-5, rtol=1e-5)
    assert [str(one.message).split(":")[0] for one in said] == (
        [] if splashes else ["Entmax15 has no exact fused form here (adasplash takes at least 64 tokens)"]
    )


def test_adasplash_has_gradients_where_queries_need_none(wheel: Wheel) -> None:
    softmax, keys = SPLASHED["sparsemax"], keys_of(64, 64)
    q, k, v = long_inputs(64)
    out = softmax(q.detach(), k, v, scale=SCALE, keys=keys, bias=None, rows={})
    expected = in_blocks(softmax, q.detach(), k, v, keys, None)
    mine, its = (torch.autograd.grad(x.square().sum(), (k, v)) for x in (out, expected))
    torch.testing.assert_close(mine, its, atol=1e-4, rtol=1e-4)


PADDED = torch.ones(2, 80, dtype=torch.bool)
PADDED[0, :3] = False


@pytest.mark.parametrize(
    ("keys", "n_channels", "dtype", "alpha", "why"),
    [
        (keys_of(80, 80), 64, torch.bfloat16, 1.5, None),
        (keys_of(80, 80, causal=False), 64, torch.float16, 2.0, None),
        (keys_of(80, 80), 48, torch.float32, 1.5, "16, 32, 64, 128, 256 channels, not 48"),
        (keys_of(80, 80), 512, torch.float32, 1.5, "16, 32, 64, 128, 256 channels, not 512"),
        (keys_of(63, 63), 64, torch.float32, 1.5, "at least 64 tokens"),
        (keys_of(1, 80), 64, torch.float32, 1.5, "whole sequences"),
        (keys_of(80, 80, window=4), 64, torch.float32, 1.5, "whole sequences"),
        (keys_of(80, 80, valid_BK=PADDED), 64, torch.float32, 1.5, "whole sequences"),
        (keys_of(80, 80), 64, torch.float64, 1.5, "float32 and half precision"),
        (keys_of(80, 80), 64, torch.float32, 1.1, "alpha between 1.33 and 2"),
        (keys_of(80, 80), 64, torch.float32, 1.2, "alpha between 1.33 and 2"),
    ],
)
def test_what_adasplash_does_not_take_has_a_reason(
    keys: Any, n_channels: int, dtype: torch.dtype, alpha: float, why: str | None, wheel: Wheel
) -> None:
    softmax = AlphaEntmax(shape_of(), alpha=alpha, learned=False)
    q = torch.empty(2, 4, keys.n_queries, n_channels, dtype=dtype)
    assert softmax.has_fused_form(q, keys, None) == (why is None)
    if why is not None:
        assert why in str(softmax.why_in_blocks(q, keys, None))


def test_adasplash_is_for_cuda_alone() -> None:
    assert not projection.is_splash_here(torch.empty(1, 4, 80, 64))
    assert Entmax15(shape_of()).why_in_blocks(torch.empty(1, 4, 80, 64), keys_of(80, 80), None) is None


def test_an_adasplash_of_one_iteration_that_is_not_enough_is_not_used(
    wheel: Wheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Should a later release compute something else, attention runs in blocks, and a line says so."""
    monkeypatch.setattr(projection, "adasplash_v2", lambda q, k, v, niter, varlen: 1.01 * wheel.v2(q, k, v, 10, varlen))
    keys, (q, _, _) = keys_of(70, 70), long_inputs(70)
    with pytest.warns(trial.FallsBack, match=r"^adasplash fails on cpu in float32 \(.*error of its output is 1.0e-02"):
        assert not SPLASHED["entmax15"].has_fused_form(q, keys, None)
    assert SPLASHED["entmax15"].why_in_blocks(q, keys, None) == "adasplash failed its trial"


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
