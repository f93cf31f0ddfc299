"""The plain softmax by its formula, and attention in all its paths: fused, masked, biased, in blocks of queries.

Shapes: B batch, Q queries, K keys, H heads, G key heads, C head channels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import scipy.special
import torch
import torch.nn.functional as F
from helpers_attention import (
    BIASES,
    HEAD_DIM,
    KEYS,
    N_BATCH,
    N_HEADS,
    SCALE,
    Peak,
    changed,
    encoding_of,
    in_blocks,
    inputs,
    keys_of,
    layer_bias,
    mask_by_loop,
    row_counts,
    shape_of,
    with_gradients,
)
from torch import Tensor

from roundround.kernels import blocks, whole_rows
from roundround.kernels.documents import documents_of
from roundround.kernels.keys import Keys
from roundround.pe.base import PositionalEncoding
from roundround.softmax.base import AttentionSoftmax
from roundround.softmax.softmax import Softmax

each_keys = pytest.mark.parametrize("keys", KEYS.values(), ids=KEYS.keys())
each_bias = pytest.mark.parametrize("bias", [None, *BIASES])


def attention_by_formula(q: Tensor, k: Tensor, v: Tensor, keys: Keys, encoding: PositionalEncoding) -> Tensor:
    """sum_j exp(e_j) v_j / sum_j exp(e_j) over the visible keys, e = scale q . k + bias; 0 where none is visible."""
    group = q.shape[1] // k.shape[1]
    bias = layer_bias(encoding, keys, q, k)
    k = torch.stack([k[:, h // group] for h in range(q.shape[1])], dim=1)
    v = torch.stack([v[:, h // group] for h in range(q.shape[1])], dim=1)
    logits = SCALE * torch.einsum("bhqc,bhkc->bhqk", q, k)
    if bias is not None:
        logits = changed(bias, logits, keys)
    powers = logits.exp() * mask_by_loop(keys)
    total = powers.sum(-1, keepdim=True)
    return torch.einsum("bhqk,bhkc->bhqc", powers / total.where(total > 0, 1.0), v)


def attended(keys: Keys, encoding: PositionalEncoding, tensors: list[Tensor], **options: Any) -> list[Tensor]:
    """Output of attention, and its gradients with respect to q, k, v and the parameters of the bias."""
    q, k, v, cotangent = tensors
    softmax = options.get("softmax") or Softmax(shape_of(k.shape[1]))
    out = softmax(q, k, v, scale=SCALE, keys=keys, bias=layer_bias(encoding, keys, q, k), rows=options.get("rows", {}))
    assert (out.shape, out.dtype) == (q.shape, q.dtype)
    return with_gradients(out, cotangent, [q, k, v, *encoding.parameters()])


# -- the definition


def test_weights_are_the_exponentials_over_their_sum() -> None:
    logits_BHQK = torch.randn(2, 3, 5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 5
    visible_B1QK = torch.ones(2, 1, 5, 7, dtype=torch.bool)
    alpha_BHQK = Softmax(shape_of()).weights(logits_BHQK, visible_B1QK, row_counts(visible_B1QK))
    torch.testing.assert_close(alpha_BHQK, torch.from_numpy(scipy.special.softmax(logits_BHQK.numpy(), -1)))


# -- attention


@each_bias
@each_keys
@pytest.mark.parametrize("n_key_heads", [4, 2])
def test_attention_is_the_formulas_in_float64_gradients_included(
    keys: Keys, bias: str | None, n_key_heads: int
) -> None:
    encoding, tensors = encoding_of(bias).double(), inputs(keys, n_key_heads)
    q, k, v, cotangent = tensors
    leaves = [q, k, v, *encoding.parameters()]
    expected = with_gradients(attention_by_formula(q, k, v, keys, encoding), cotangent, leaves)
    assert all(part.any() for part in expected), "a gradient that is zero everywhere proves nothing"
    for ours, theirs in zip(attended(keys, encoding, tensors), expected, strict=True):
        assert (ours - theirs).abs().max() < 1e-10


@each_bias
@each_keys
def test_attention_in_float32_is_right_to_four_digits(keys: Keys, bias: str | None) -> None:
    single = attended(keys, encoding_of(bias), inputs(keys, 2, torch.float32))
    double = attended(keys, encoding_of(bias).double(), inputs(keys, 2))
    for ours, exact in zip(single, double, strict=True):
        assert ours.dtype == torch.float32
        assert (ours - exact).abs().max() < 1e-4 * max(1.0, float(exact.abs().max()))


@each_bias
@each_keys
@pytest.mark.parametrize("rows", [1, 4])
def test_several_blocks_of_queries_are_one(
    keys: Keys, bias: str | None, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def blocked(n_rows: int) -> list[Tensor]:
        monkeypatch.setattr(blocks, "LOGITS_PER_BLOCK", n_rows * N_BATCH * N_HEADS * keys.n_keys)
        tensors, encoding = inputs(keys, 2), encoding_of(bias).double()
        ranges = blocks.query_blocks(tensors[0], keys)
        assert ranges[0] == (0, min(n_rows, keys.n_queries))
        assert [row for a, b in ranges for row in range(a, b)] == list(range(keys.n_queries))
        q, k, v, cotangent = tensors
        out = in_blocks(Softmax(shape_of(2)), q, k, v, keys, layer_bias(encoding, keys, q, k))
        return with_gradients(out, cotangent, [q, k, v, *encoding.parameters()])

    for several, one in zip(blocked(rows), blocked(1000), strict=True):
        assert (several - one).abs().max() < 1e-12


def test_a_block_on_a_cpu_stays_in_cache_unless_that_leaves_few_rows() -> None:
    def rows_of(n_keys: int, **options: Any) -> int:
        q_BHQC = torch.empty(2, 4, n_keys, 1)
        a, b = blocks.query_blocks(q_BHQC, keys_of(n_keys, n_keys, **options))[0]
        return b - a

    assert rows_of(1024) == blocks.LOGITS_IN_CACHE // (8 * 1024)
    assert rows_of(16384) == blocks.ROWS_IN_CACHE
    assert rows_of(65536) == blocks.LOGITS_PER_BLOCK // (8 * 65536) < blocks.ROWS_IN_CACHE
    assert rows_of(65536, window=100) > 400  # a window's rows span few keys


def test_a_block_holds_fewer_texts_rather_than_few_rows() -> None:
    def blocks_of(n_batch: int, n_queries: int = 1024, n_keys: int = 1024, **options: Any) -> tuple[int, int]:
        q_BHQC, keys = torch.empty(n_batch, 8, n_queries, 1), keys_of(n_queries, n_keys, **options)
        n_texts = blocks.texts_at_once(q_BHQC, keys)
        a, b = blocks.query_blocks(q_BHQC[:n_texts], keys)[0]
        return n_texts, b - a

    assert blocks_of(16) == (4, 64)
    assert blocks_of(5) == (3, 85), "parts of nearly the same size"
    assert blocks_of(16, n_queries=1) == (16, 1), "one new token each"
    assert blocks_of(16, 64, 64) == (16, 64), "short texts stay together"
    assert blocks_of(16, 8192, 8192) == (1, 32)
    assert blocks_of(16, 8192, 8192, window=64)[0] > 1


@pytest.mark.parametrize("n_key_heads", [2, 1])
def test_blocks_copy_no_keys_for_grouped_queries(n_key_heads: int) -> None:
    q, gain = torch.randn(2, 4, 4, 256), torch.ones(2, 4, 4, 1)
    k, v = (torch.randn(2, n_key_heads, 256, 256) for _ in range(2))
    with Peak() as peak:
        Gain(shape_of(n_key_heads))(q, k, v, scale=0.1, keys=keys_of(4, 256), bias=None, rows={"gain": gain})
    assert peak.largest == k.numel(), "the keys themselves"


def test_a_block_holds_one_row_where_even_that_exceeds_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "LOGITS_PER_BLOCK", 1)
    keys = keys_of(3)
    assert blocks.query_blocks(inputs(keys)[0], keys) == [(0, 1), (1, 2), (2, 3)]


class Gain(AttentionSoftmax):
    """A normaliser that reads a number off each row and how many keys the row sees."""

    cost_in_blocks = 1

    def normalise(self, logits_BHQK: Tensor, visible_B1QK: Tensor, rows: Mapping[str, Tensor]) -> Tensor:
        assert torch.equal(rows["n_visible"], visible_B1QK.sum(-1, keepdim=True))
        return torch.where(visible_B1QK, logits_BHQK * rows["gain"] / (1 + rows["n_visible"]), 0.0)


@each_keys
@pytest.mark.parametrize("rows_per_block", [2, 1000])
def test_every_row_gets_its_own_parameters_and_the_number_of_keys_it_sees(
    keys: Keys, rows_per_block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "LOGITS_PER_BLOCK", rows_per_block * N_BATCH * N_HEADS * keys.n_keys)
    q, k, v, _ = tensors = inputs(keys)
    gain_BHQ1 = torch.rand(N_BATCH, N_HEADS, keys.n_queries, 1, dtype=torch.float64)
    mask_B1QK = mask_by_loop(keys)
    weights_BHQK = SCALE * (q @ k.mT) * mask_B1QK * gain_BHQ1 / (1 + mask_B1QK.sum(-1, keepdim=True))
    out = attended(keys, encoding_of(None), tensors, softmax=Gain(shape_of()), rows={"gain": gain_BHQ1})[0]
    torch.testing.assert_close(out, (weights_BHQK @ v).detach())


def test_the_base_reads_nothing_off_tokens_and_defines_no_weights() -> None:
    normaliser = AttentionSoftmax(shape_of())
    assert normaliser.row_parameters(torch.zeros(1, 2, 32)) == {}
    with pytest.raises(NotImplementedError):
        normaliser.weights(
            torch.zeros(1, 1, 1, 1), torch.ones(1, 1, 1, 1, dtype=torch.bool), {"n_visible": torch.ones(1)}
        )


# -- memory


def peak_of_training(n_tokens: int, bias: str | None, **options: Any) -> Peak:
    """What one forward and backward pass of attention over n tokens holds, in float32."""
    n_heads = 4
    q, k, v = (torch.randn(1, n_heads, n_tokens, HEAD_DIM, requires_grad=True) for _ in range(3))
    encoding = encoding_of(bias, n_heads)
    keys = keys_of(n_tokens, n_tokens, **options)
    with Peak() as peak:
        out = Softmax(shape_of())(q, k, v, scale=SCALE, keys=keys, bias=layer_bias(encoding, keys, q, k), rows={})
        out.sum().backward()
    assert q.grad is not None
    assert q.grad.any()
    return peak


def test_the_measure_of_memory_counts_what_is_alive_once() -> None:
    with Peak() as peak:
        table = torch.zeros(30, 10)
        view = table.view(300)[:5]
        del table
        assert peak.alive == 300
        torch.zeros(100)
        del view
        assert (peak.alive, peak.largest, peak.most) == (0, 300, 400)


@pytest.mark.parametrize(
    ("bias", "options"),
    [(None, {}), (None, {"window": 64}), *((bias, {}) for bias in BIASES)],
    ids=["plain", "window", *BIASES],
)
def test_memory_of_training_is_linear_in_length(
    bias: str | None, options: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "LOGITS_PER_BLOCK", 2**17)
    monkeypatch.setattr(whole_rows, "library", lambda: None)  # whose memory is not that of tensors
    half, whole = (peak_of_training(n, bias, **options) for n in (512, 1024))
    table = 1024 * 1024 * 4  # queries x keys x heads
    assert whole.largest < table / 3
    assert whole.most < table, "a table of queries by keys, in pieces"
    assert whole.most < 2.2 * half.most


def test_the_largest_tensor_of_a_t5_bias_in_training_is_one_block_of_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_rows, "library", lambda: None)
    # 2048 tokens at the shipped bounds; F.scaled_dot_product_attention would make the whole table
    peak = peak_of_training(2048, "t5_bias")
    assert peak.largest == blocks.LOGITS_IN_CACHE < blocks.LOGITS_PER_BLOCK < 2048**2 * 4


def test_the_fused_kernel_serves_what_needs_no_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[bool] = []
    fused: Callable[..., Tensor] = F.scaled_dot_product_attention

    def counted(*args: Any, **options: Any) -> Tensor:
        assert options.get("attn_mask") is None
        calls.append(options["is_causal"])
        return fused(*args, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", counted)
    for keys in KEYS.values():
        attended(keys, encoding_of(None), inputs(keys))
    assert calls == [True, False, False]  # plain causal, one query and its cache, both ways
    attended(KEYS["plain causal"], encoding_of("t5_bias").double(), inputs(KEYS["plain causal"]))
    assert len(calls) == 3


# -- a window of the normaliser's own


@each_keys
def test_a_window_of_the_normaliser_is_one_of_the_keys(keys: Keys) -> None:
    q, k, v, _ = inputs(keys)
    narrow = Softmax(shape_of())
    narrow.window = 3
    windowed = replace(keys, window=3)
    options = {"scale": SCALE, "bias": None, "rows": {}}
    found, expected = narrow(q, k, v, keys=keys, **options), Softmax(shape_of())(q, k, v, keys=windowed, **options)
    assert torch.equal(found, expected)
    shown = narrow.all_weights(q, k, keys=keys, **options)
    torch.testing.assert_close(shown @ v, expected)
    assert not shown.masked_select(~mask_by_loop(windowed)).any()


def test_documents_are_narrowed_one_by_one() -> None:
    ends_BT = torch.zeros(2, 12, dtype=torch.bool)
    ends_BT[0, 4] = ends_BT[1, 7] = True
    documents = documents_of(ends_BT, lambda pos: pos)
    q, k, v = (torch.randn(2, N_HEADS, 12, HEAD_DIM, dtype=torch.float64) for _ in range(3))
    narrow = Softmax(shape_of())
    narrow.window = 3
    keys = Keys(q_pos_BQ=documents.pos_BT, k_pos_BK=documents.pos_BT, documents=documents)
    found = narrow(q, k, v, scale=SCALE, keys=keys, bias=None, rows={})
    rows, columns = torch.arange(12)[:, None], torch.arange(12)
    same = documents.first_BT[:, None, :, None] <= columns
    visible = same & (columns <= rows) & (rows - columns < 3)
    weights = (SCALE * q @ k.mT).masked_fill(~visible, -torch.inf).softmax(-1)
    torch.testing.assert_close(found, weights @ v)


def test_forward_is_final() -> None:
    with pytest.raises(TypeError, match="Narrow overrides forward, which is final; a normaliser can set window"):
        type("Narrow", (AttentionSoftmax,), {"forward": lambda self, *args: None})


@pytest.mark.parametrize("autocast", [False, True])
def test_logits_are_not_rounded_to_half_precision(autocast: bool) -> None:
    """Two keys whose logits differ by less than bfloat16 can say are no tie."""
    pos_1T = torch.arange(4)[None]
    q, k = (torch.randn(1, 2, 4, 16, generator=torch.Generator().manual_seed(n)).bfloat16() for n in (0, 1))
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        logits, _ = blocks.logits_of_rows(q, k, 0.25, Keys(q_pos_BQ=pos_1T, k_pos_BK=pos_1T), None, 0, 4)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits.double(), q.double() @ k.double().mT / 4, rtol=1e-5, atol=1e-5)
