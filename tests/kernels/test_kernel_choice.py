"""Which kernel serves a call on devices that this machine does not have.

Tensors of a CPU claim to be on another device, and PyTorch's predicates are replaced by what its sdp_utils.cpp says of
two generations of GPUs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F
from helpers_attention import VALID_BK, in_blocks, keys_of, layer_bias, shape_of
from torch import Tensor

from roundround.kernels import sdpa
from roundround.kernels.bias import LinearBias
from roundround.kernels.sdpa import Kernel, fitted, kernel_for
from roundround.pe.alibi import ALiBi
from roundround.softmax.adaptive_temperature import PUBLISHED, AdaptiveTemperature
from roundround.softmax.base import AttentionSoftmax, RunsInBlocks
from roundround.softmax.softmax import Softmax
from roundround.softmax.softmax1 import Softmax1
from roundround.softmax.ssmax import SSMax

BF16, FP16, FP32, FP64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
T4, H100 = (7, 5), (9, 0)


def imitate(capability: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> tuple[Callable[..., bool], ...]:
    """Replaces PyTorch's predicates by those of a GPU of this compute capability; gives flash's and efficient's."""

    def flash(asked: Any, debug: bool = False) -> bool:
        heads = asked.query.shape[1] == asked.key.shape[1] or asked.enable_gqa
        fits = asked.query.shape[-1] == asked.value.shape[-1] <= 256 and asked.attn_mask is None
        return capability >= (8, 0) and asked.query.dtype in (BF16, FP16) and heads and fits

    def efficient(asked: Any, debug: bool = False) -> bool:
        dtypes = (BF16, FP16, FP32) if capability >= (8, 0) else (FP16, FP32)
        alignment = 8 if asked.query.dtype != FP32 else 4 if capability >= (8, 0) else 1
        aligned = asked.query.shape[-1] % alignment == asked.value.shape[-1] % alignment == 0
        return asked.query.dtype in dtypes and asked.query.shape[1] == asked.key.shape[1] and aligned

    question = sdpa.question
    monkeypatch.setattr(sdpa, "question", lambda device, *others: question("cpu", *others))
    monkeypatch.setattr(torch.backends.cuda, "can_use_flash_attention", flash)
    monkeypatch.setattr(torch.backends.cuda, "can_use_efficient_attention", efficient)
    monkeypatch.setattr(
        torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation or capability >= (8, 0)
    )
    return flash, efficient


class OnCuda(Tensor):
    """A tensor of the CPU that says it is elsewhere; what is made of it says so too."""

    device = torch.device("cuda")  # type: ignore[assignment]


class OnMps(Tensor):
    device = torch.device("mps")  # type: ignore[assignment]


class OnXpu(Tensor):
    device = torch.device("xpu")  # type: ignore[assignment]


DEVICES: dict[str, type[Tensor]] = {"cpu": Tensor, "cuda": OnCuda, "ROCm": OnCuda, "mps": OnMps, "xpu": OnXpu}


def tensors_on(device: str, dtype: torch.dtype = FP32, head_dim: int = 64, n_key_heads: int = 2) -> list[Tensor]:
    """Queries of four heads, keys and values, eleven tokens of three texts."""
    generator = torch.Generator().manual_seed(0)
    sizes = ((3, n_heads, 11, head_dim) for n_heads in (4, n_key_heads, n_key_heads))
    return [torch.randn(size, generator=generator).to(dtype).as_subclass(DEVICES[device]) for size in sizes]


@pytest.mark.parametrize(
    ("capability", "dtype", "masked", "kernel"),
    [
        (H100, BF16, False, Kernel.FLASH),
        (H100, FP16, False, Kernel.FLASH),
        (H100, FP32, False, Kernel.EFFICIENT),
        (H100, BF16, True, Kernel.EFFICIENT),
        (H100, FP64, False, None),
        (T4, BF16, False, Kernel.EFFICIENT),
        (T4, FP16, False, Kernel.EFFICIENT),
        (T4, FP32, True, Kernel.EFFICIENT),
        (T4, FP64, False, None),
    ],
    ids=str,
)
@pytest.mark.parametrize("head_dim", [12, 20, 64, 128])
def test_a_gpu_serves_what_its_predicates_say(
    capability: tuple[int, int],
    dtype: torch.dtype,
    masked: bool,
    kernel: Kernel | None,
    head_dim: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    imitate(capability, monkeypatch)
    q, _, _ = tensors_on("cuda", dtype, head_dim)
    assert kernel_for(q, masked=masked) is kernel
    assert kernel_for(q, masked=masked, differentiable=True) is kernel


def test_more_channels_than_flash_takes_are_the_efficient_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    imitate(H100, monkeypatch)
    assert kernel_for(tensors_on("cuda", BF16, 256)[0]) is Kernel.FLASH
    assert kernel_for(tensors_on("cuda", BF16, 264)[0]) is Kernel.EFFICIENT


def test_a_predicate_that_asks_for_gradients_sees_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some GPUs have no flash kernel for the gradient of wide heads."""
    imitate(H100, monkeypatch)

    monkeypatch.setattr(
        torch.backends.cuda,
        "can_use_flash_attention",
        lambda asked, debug=False: not (asked.query.requires_grad and torch.is_grad_enabled()),
    )
    q, _, _ = tensors_on("cuda", BF16)
    assert kernel_for(q) is Kernel.FLASH
    assert kernel_for(q.requires_grad_()) is Kernel.EFFICIENT
    with torch.no_grad():
        assert kernel_for(q) is Kernel.FLASH
        assert kernel_for(q, differentiable=True) is Kernel.EFFICIENT


@pytest.mark.parametrize("capability", [T4, H100], ids=str)
@pytest.mark.parametrize("dtype", [BF16, FP16, FP32], ids=str)
@pytest.mark.parametrize("head_dim", [6, 20, 64, 512])
@pytest.mark.parametrize("n_key_heads", [2, 4])
@pytest.mark.parametrize("mode", [{}, {"causal": False}, {"n_queries": 1}], ids=str)
def test_the_plain_softmax_never_falls_to_the_kernel_that_makes_a_matrix(
    capability: tuple[int, int],
    dtype: torch.dtype,
    head_dim: int,
    n_key_heads: int,
    mode: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flash, efficient = imitate(capability, monkeypatch)
    plain, served = F.scaled_dot_product_attention, []

    def kept(
        q: Tensor, k: Tensor, v: Tensor, *, scale: float, is_causal: bool = False, enable_gqa: bool = False
    ) -> Tensor:
        asked = torch.backends.cuda.SDPAParams(q, k, v, None, 0.0, is_causal, enable_gqa)
        served.append(flash(asked) or efficient(asked))
        return plain(q, k, v, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa)

    monkeypatch.setattr(F, "scaled_dot_product_attention", kept)
    q, k, v = tensors_on("cuda", dtype, head_dim, n_key_heads)
    q, keys = q[:, :, : mode.get("n_queries", 11)], keys_of(**mode)
    softmax = Softmax(shape_of(n_key_heads))
    out = softmax(q, k, v, scale=0.1, keys=keys, bias=None, rows={})
    assert served == [True]
    assert out.dtype == dtype
    expected = in_blocks(softmax, *(x.as_subclass(Tensor).double() for x in (q, k, v)), keys, None, scale=0.1)
    assert (out - expected).abs().max() < (1e-5 if dtype == FP32 else 2e-2)


def test_grouped_keys_are_repeated_only_where_the_kernel_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Mock(side_effect=lambda q, k, v, **options: torch.empty_like(q))
    imitate(H100, monkeypatch)
    monkeypatch.setattr(F, "scaled_dot_product_attention", kernel)
    for dtype in (BF16, FP32):
        sdpa.scaled_dot_product_attention(*tensors_on("cuda", dtype), 0.1, True)
    # a PyTorch whose efficient kernel takes groups
    monkeypatch.setattr(torch.backends.cuda, "can_use_efficient_attention", lambda asked, debug=False: True)
    sdpa.scaled_dot_product_attention(*tensors_on("cuda", FP32), 0.1, True)
    sdpa.scaled_dot_product_attention(*tensors_on("mps", FP32), 0.1, True)
    sdpa.scaled_dot_product_attention(*tensors_on("cpu", FP32), 0.1, True)
    given = [(call.args[1].shape[1], call.kwargs["enable_gqa"]) for call in kernel.call_args_list]
    assert given == [(2, True), (4, False), (2, True), (4, False), (2, True)]


def test_bfloat16_is_float32_where_it_is_emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    for capability, dtype in ((T4, FP32), (H100, BF16)):
        imitate(capability, monkeypatch)
        assert [x.dtype for x in fitted(*tensors_on("cuda", BF16))] == [dtype] * 3
        assert [x.dtype for x in fitted(*tensors_on("cuda", FP16))] == [FP16] * 3


def test_a_cpu_needs_no_more_channels_than_there_are() -> None:
    q, v = torch.randn(1, 2, 3, 5), torch.randn(1, 2, 3, 7)
    wide_q, same_v = fitted(q, v)
    assert same_v is v
    assert torch.equal(wide_q[..., :5], q)
    assert wide_q.shape == v.shape
    assert not wide_q[..., 5:].any()


MAKERS: dict[str, Callable[[], AttentionSoftmax]] = {
    "softmax": lambda: Softmax(shape_of(2)),
    "ssmax": lambda: SSMax(shape_of(2), s=1.0, bias=False, scaled_heads=None),
    "softmax1": lambda: Softmax1(shape_of(2)),
    "adaptive_temperature": lambda: AdaptiveTemperature(
        shape_of(2),
        coefficients=PUBLISHED,
        min_entropy=0.5,
        min_beta=1.0,
        entropy_range=None,
        in_training=True,
        gradient_through_beta=True,
    ),
}


@pytest.mark.parametrize("device", ["mps", "xpu", "ROCm"])
@pytest.mark.parametrize("name", MAKERS)
def test_other_accelerators_keep_their_own_kernel_for_what_needs_no_log_sum_exp(
    name: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device == "ROCm":
        monkeypatch.setattr(torch.version, "hip", "6.3")
    softmax, (q, _, _) = MAKERS[name](), tensors_on(device, BF16)
    for plain in (keys_of(), keys_of(causal=False), keys_of(1)):
        assert softmax.has_fused_form(q, plain, None) == (name in ("softmax", "ssmax"))
    assert not softmax.has_fused_form(q, keys_of(window=4), None)
    assert not softmax.has_fused_form(q, keys_of(3), None)
    assert not softmax.has_fused_form(q, keys_of(), LinearBias(torch.ones(1, 1, 1)))
    assert not softmax.has_fused_form(torch.empty(2, 4, 3, 8, device="meta"), keys_of(), None)


@pytest.mark.parametrize("disabled", ["can_use_flash_attention", "can_use_efficient_attention"])
def test_a_kernel_that_the_user_turned_off_is_not_called(disabled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    imitate(H100, monkeypatch)
    monkeypatch.setattr(torch.backends.cuda, disabled, lambda asked, debug=False: False)
    q, _, _ = tensors_on("cuda", BF16)
    assert Softmax(shape_of(2)).has_fused_form(q, keys_of(), None)
    efficient = disabled != "can_use_efficient_attention"
    assert Softmax(shape_of(2)).has_fused_form(q, keys_of(window=4), None) == efficient
    assert Softmax1(shape_of(2)).has_fused_form(q, keys_of(), None) == efficient


def test_float64_on_a_gpu_runs_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    imitate(H100, monkeypatch)
    softmax, tensors = Softmax(shape_of(2)), tensors_on("cuda", FP64)
    with pytest.warns(RunsInBlocks):
        out = softmax(*tensors, scale=0.1, keys=keys_of(), bias=None, rows={})
    assert torch.equal(out, in_blocks(softmax, *tensors, keys_of(), None, scale=0.1))


def test_padding_and_biases_on_a_cpu_are_its_kernels() -> None:
    q, k, _ = tensors_on("cpu")
    assert kernel_for(q, masked=True) is Kernel.CPU
    keys = keys_of(valid_BK=VALID_BK)
    assert Softmax1(shape_of(2)).has_fused_form(q, keys, layer_bias(ALiBi(shape_of(2), exponent=8), keys, q, k))
