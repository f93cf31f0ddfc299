"""Triton's kernels against the definition in float64, interpreted on a CPU: `test_interpreted.py` runs this file.

    TRITON_INTERPRET=1 python -m pytest tests/gpu/interpreted.py

The variable has to be set before Triton is imported, so these tests have a process of their own. The interpreter
computes with numpy, which has no bfloat16.
"""

from __future__ import annotations

import importlib.util
import math
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from helpers_attention import attention_shape, build
from helpers_pe import noise
from torch import Tensor

from roundround.kernels import entropy_kernel, fused, trial, whole_rows
from roundround.kernels.entropy_kernel import RowEntropy
from roundround.kernels.keys import Keys
from roundround.softmax import projection
from roundround.softmax.projection import entmax_of

assert fused.INTERPRETED, "set TRITON_INTERPRET=1"
EPS = {torch.float32: 2.0**-24, torch.float16: 2.0**-11}  # half a unit in the last place


def keys_of(n_queries: int, n_keys: int, *, padded: bool = False, **options: Any) -> Keys:
    pos_1K = torch.arange(n_keys)[None]
    valid = torch.ones(2, n_keys, dtype=torch.bool)
    valid[0, : n_keys // 3] = valid[1, -(n_keys // 4) :] = False
    if padded:
        options["valid_BK"] = valid
    return Keys(q_pos_BQ=pos_1K[:, n_keys - n_queries :], k_pos_BK=pos_1K, **options)


@pytest.fixture(autouse=True)
def without_whole_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: on a CPU attention of many queries would take that form before any of these."""
    monkeypatch.setattr(whole_rows, "fits", lambda *_: False)


WAYS = {
    "causal": keys_of(70, 70),
    "both ways": keys_of(70, 70, causal=False),
    "cache": keys_of(5, 70),
    "one new token": keys_of(1, 70),
    "a block of keys before the first row": keys_of(70, 140),
    "window": keys_of(140, 140, window=20),
    "window, both ways": keys_of(70, 70, causal=False, window=9),
    "wide window, cache": keys_of(70, 200, window=90),
    "chunks": keys_of(140, 140, chunk=50),
    "chunks, both ways": keys_of(140, 140, causal=False, chunk=64),
    "chunks, window, cache": keys_of(30, 140, chunk=50, window=7),
    "padded": keys_of(70, 70, padded=True),
    "padded, both ways": keys_of(70, 70, padded=True, causal=False),
    "padded, window, cache": keys_of(33, 70, padded=True, window=20),
}


OFTEN = {"causal", "cache", "window, both ways", "chunks, window, cache", "padded, window, cache"}


def mask_of(keys: Keys) -> Tensor:
    """[B, 1, Q, K], True where visible, written out."""
    mask = torch.zeros(2, 1, keys.n_queries, keys.n_keys, dtype=torch.bool)
    for i in range(keys.n_queries):
        token = keys.n_keys - keys.n_queries + i
        for j in range(keys.n_keys):
            seen = not (keys.causal and j > token)
            seen &= keys.window is None or abs(token - j) < keys.window
            seen &= keys.chunk is None or j // keys.chunk == token // keys.chunk
            mask[:, 0, i, j] = seen if keys.valid_BK is None else seen & keys.valid_BK[:, j]
    return mask


def dense(q: Tensor, k: Tensor, scale: float, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Entropy and log-sum-exp of each row over one matrix of logits; 0 and 0 where a row sees nothing."""
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    hidden = ~mask
    logits = (scale * q @ k.mT).masked_fill(hidden, -torch.inf)
    lse = logits.masked_fill(~mask.any(-1, keepdim=True), 0.0).logsumexp(-1, keepdim=True)
    log_p = (logits - lse).masked_fill(hidden, 0.0)
    entropy = -(log_p.exp().masked_fill(hidden, 0.0) * log_p).sum(-1)
    return entropy, lse[..., 0].masked_fill(~mask.any(-1), 0.0)


def check(keys: Keys, n_channels: int, dtype: torch.dtype, n_key_heads: int = 1, gain: float = 1.0) -> None:
    """Entropies, log-sum-exps and gradients of the kernels against the dense ones of the same numbers."""
    q, k = (noise(2, h, n, n_channels, seed=h) * gain for h, n in ((2, keys.n_queries), (n_key_heads, keys.n_keys)))
    q, k = (x.to(dtype).requires_grad_() for x in (q, k))
    scale = n_channels**-0.5
    entropy, lse = RowEntropy.apply(q, k, scale, keys)
    exact = [x.detach().double().requires_grad_() for x in (q, k)]
    mask = mask_of(keys)
    its_entropy, its_lse = dense(*exact, scale, mask)
    largest = (scale * exact[0] @ exact[1].repeat_interleave(2 // n_key_heads, 1).mT).abs().max().item()
    # logits are sums of products of numbers given, in float32: an entropy moves by their error times its own size
    close = (4 * math.sqrt(n_channels) + 2 * math.sqrt(keys.n_keys)) * (largest + math.log(keys.n_keys + 1)) * 2.0**-24
    assert (lse - its_lse).abs().max() <= close
    assert (entropy - its_entropy).abs().max() <= close * (1 + 2 * largest)
    assert not (entropy[~mask.any(-1).expand_as(entropy)] != 0).any()
    cotangent = noise(*entropy.shape, seed=9)
    mine = torch.autograd.grad(entropy, (q, k), cotangent.float())
    theirs = torch.autograd.grad(its_entropy, exact, cotangent)
    for grad, its in zip(mine, theirs, strict=True):
        assert grad.dtype == dtype
        assert (grad - its).norm() <= max(8 * EPS[dtype], 64 * close) * its.norm() + 1e-6


@pytest.mark.parametrize(
    "way", [name if name in OFTEN else pytest.param(name, marks=pytest.mark.slow) for name in WAYS]
)
def test_entropies_and_gradients_are_those_of_the_dense_form(way: str) -> None:
    check(WAYS[way], 16, torch.float32)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_half_precision_loses_no_more_than_its_gradients_are_rounded_by(way: str) -> None:
    check(WAYS[way], 64, torch.float16)


def test_small_gradients_are_not_lost_to_float16() -> None:
    """Of a mean over many tokens: 1e-6 is no number of float16, nor is its product with a weight."""
    keys = keys_of(70, 70)
    q, k = (noise(1, 1, 70, 16, dtype=torch.float16, seed=seed).requires_grad_() for seed in (1, 2))
    wide = [x.detach().double().requires_grad_() for x in (q, k)]
    grads = torch.autograd.grad(RowEntropy.apply(q, k, 0.25, keys)[0], (q, k), torch.full((1, 1, 70), 2.0**-15))
    its = torch.autograd.grad(dense(*wide, 0.25, mask_of(keys)[:1])[0].sum() * 2.0**-15, wide)
    for mine, exact in zip(grads, its, strict=True):
        assert (mine - exact).norm() < 0.05 * exact.norm()  # of subnormal numbers


@pytest.mark.parametrize("n_tokens", [1, 63, 64, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_every_length_is_served(n_tokens: int, dtype: torch.dtype) -> None:
    check(keys_of(n_tokens, n_tokens), 16, dtype)


@pytest.mark.parametrize("n_channels", [8, 24, *(pytest.param(n, marks=pytest.mark.slow) for n in (64, 128)), 256])
def test_every_number_of_channels_is_served(n_channels: int) -> None:
    check(keys_of(33, 70), n_channels, torch.float32)


@pytest.mark.parametrize("gain", [0.01, 30.0])
def test_flat_rows_and_sharp_ones(gain: float) -> None:
    check(keys_of(70, 70), 16, torch.float32, n_key_heads=2, gain=gain**0.5)


def test_layouts_that_are_not_contiguous_are_read_as_they_lie() -> None:
    keys = keys_of(70, 70)
    q, k = noise(2, 70, 4, 16, dtype=torch.float32).transpose(1, 2), noise(2, 2, 16, 70, dtype=torch.float32, seed=1).mT
    found, expected = (RowEntropy.apply(*pair, 0.25, keys)[0] for pair in ((q, k), (q.contiguous(), k.contiguous())))
    assert torch.equal(found, expected)


def test_what_the_kernels_do_not_take_is_said() -> None:
    q, keys = torch.empty(2, 4, 70, 16), keys_of(70, 70)
    refused = [
        (q.double(), keys),
        (q.new_empty(2, 4, 70, 264), keys),
        (q, keys_of(70, 70)),
        (q[:, :, :3], keys_of(3, 2)),
    ]
    reasons = [entropy_kernel.unmet(*one) for one in refused]
    assert reasons[:2] == ["takes only float32 and half precision", "takes at most 256 channels per head, not 264"]
    assert reasons[2] is None
    with pytest.warns(trial.FallsBack, match="^the entropy kernel takes only float32 and half precision: the entropy"):
        assert not entropy_kernel.serves(q.double(), keys)


# -- what stands on them


@pytest.mark.parametrize("way", ["causal", "padded, window, cache"])
@pytest.mark.parametrize("through_beta", [True, False])
def test_adaptive_temperature_takes_its_entropy_from_them(
    way: str, through_beta: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    plain = fused.entropy_by_kernel
    monkeypatch.setattr(fused, "entropy_by_kernel", lambda *args: (asked.append(1), plain(*args))[1])
    keys = WAYS[way]
    softmax = build(
        "adaptive_temperature_trained", attention_shape(head_dim=16), gradient_through_beta=through_beta
    ).train()
    leaves = [
        noise(2, h, n, 16, dtype=torch.float32, seed=s).mul(0.5).requires_grad_()
        for s, (h, n) in enumerate(((4, keys.n_queries), (2, keys.n_keys), (2, keys.n_keys)))
    ]
    exact = [x.detach().double().requires_grad_() for x in leaves]
    options: dict[str, Any] = {"scale": 1.0, "keys": keys, "bias": None, "rows": {}}
    out, expected = softmax(*leaves, **options), softmax.attend_in_blocks(*exact, **options)
    assert asked == [1]
    assert (out - expected).abs().max() < 1e-5
    cotangent = noise(*expected.shape, seed=8)
    theirs = torch.autograd.grad(expected, exact, cotangent)
    for mine, its in zip(torch.autograd.grad(out, leaves, cotangent.float()), theirs, strict=True):
        assert (mine - its).norm() < 1e-5 * its.norm()


def test_a_wrong_kernel_would_not_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert entropy_kernel.kernel_passes("cpu", torch.float32, 16)
    monkeypatch.setattr(trial, "outcomes", {})
    plain = entropy_kernel.launch
    monkeypatch.setattr(
        entropy_kernel, "launch", lambda kernel, q, k, scale, keys, *rest: plain(kernel, q, k, 1.1 * scale, keys, *rest)
    )
    with pytest.warns(trial.FallsBack, match="the entropy kernel fails on cpu in float32"):
        assert not entropy_kernel.kernel_passes("cpu", torch.float32, 16)


# -- the package


@triton.jit
def floor(x):  # type: ignore[no-untyped-def]
    return tl.floor(x).to(tl.int32)


@triton.jit
def n_bits(x):  # type: ignore[no-untyped-def]
    n = x * 0
    for i in range(32):
        n += (x >> i) & 1
    return n


@triton.jit
def place_of_bit(x, n):  # type: ignore[no-untyped-def]
    place, seen = n * 0 - 1, n * 0
    for i in range(32):
        bit = (x >> i) & 1
        place = tl.where((bit == 1) & (seen == n), i, place)
        seen += bit
    return place


def interpretable() -> None:
    """Let Triton's interpreter run `adasplash` 0.2.2: in place of PTX, of CUDA's library and of autotuning, loops."""
    import adasplash.adasplash_block_mask as first
    import adasplash.adasplash_v2 as second

    class InBlocks:
        def __init__(self, kernel: Any) -> None:
            self.kernel = kernel

        def __getitem__(self, grid: Any) -> Any:
            sizes = {"BLOCK_M": 64, "BLOCK_N": 64}
            return lambda *args: self.kernel[grid(sizes)](*args, **sizes)

    second.float2int_rd, second.popc, second.get_next_block = floor, n_bits, place_of_bit
    second._get_tau = InBlocks(second._get_tau)
    plain = first.compute_bidxs_and_cubcounts
    first.compute_bidxs_and_cubcounts = lambda *args, **options: plain(*args, **options, device="cpu")


@pytest.fixture(scope="module")
def _package() -> None:
    if importlib.util.find_spec("adasplash") is None:
        pytest.skip("adasplash is not installed: pip install --no-deps adasplash")
    interpretable()


@pytest.mark.usefixtures("_package")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # logarithms of zero, which its kernels leave out afterwards
@pytest.mark.parametrize("n_tokens", [70, *(pytest.param(n, marks=pytest.mark.slow) for n in (64, 130))])
@pytest.mark.parametrize(("alpha", "causal"), [(1.5, True), (2.0, True), (4 / 3, False)])
def test_adasplash_itself_is_the_definition(alpha: float, causal: bool, n_tokens: int) -> None:
    leaves = [noise(1, h, n_tokens, 16, dtype=torch.float32, seed=h).requires_grad_() for h in (2, 1, 1)]
    exact = [x.detach().double().requires_grad_() for x in leaves]
    out = projection.splash(*leaves, alpha, causal=causal)
    q, k, v = exact
    logits = q @ k.mT / 4
    if causal:
        logits = logits.masked_fill(~torch.ones(n_tokens, n_tokens, dtype=torch.bool).tril(), -torch.inf)
    expected = entmax_of(logits, alpha) @ v
    assert (out - expected).abs().max() < 1e-5
    cotangent = noise(*expected.shape, seed=8)
    theirs = torch.autograd.grad(expected, exact, cotangent)
    for mine, its in zip(torch.autograd.grad(out, leaves, cotangent.float()), theirs, strict=True):
        assert (mine - its).norm() < 1e-4 * its.norm()
