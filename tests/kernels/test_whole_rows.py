"""Attention over whole rows by compiled code is the definition: each normaliser, each way to attend, gradients too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers_attention import (
    D_MODEL,
    NAMES,
    SCALE,
    attention_shape,
    build,
    covering,
    encoding_from,
    keys_of,
    layer_bias,
    with_gradients,
)
from helpers_pe import noise
from torch import Tensor

from roundround.kernels import whole_rows
from roundround.kernels.keys import Keys
from roundround.pe.base import PositionalEncoding
from roundround.softmax.base import AttentionSoftmax

pytestmark = pytest.mark.skipif(whole_rows.library() is None, reason="no C++ compiler on this machine")
BIASES = [None, "alibi", "fox", "t5_bias", "kerple", "fire"]
WAYS: dict[str, dict[str, Any]] = {
    "causal": {},
    "both ways": {"causal": False},
    "window": {"window": 7},
    "chunks": {"chunk": 9},
    "chunks both ways": {"chunk": 9, "causal": False},
    "half of them in a cache": {"in_cache": True},
    "padded": {"padded": True},
    "padded, a window both ways": {"padded": True, "window": 7, "causal": False},
}


def alone(name: str) -> bool:
    """Whether a normaliser is computed by whole rows where no bias is added."""
    softmax = build(name).double()
    return softmax.row_function(softmax.row_parameters(noise(2, 65, D_MODEL)), keys_of(65, 65), None) is not None


ALONE = [name for name in NAMES if alone(name)]
IN_BLOCKS = [name for name in NAMES if type(build(name)).row_function is AttentionSoftmax.row_function]


@pytest.fixture(autouse=True)
def however_few_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_rows, "FEWEST_QUERIES", 1)


class Case:
    """Attention of n tokens: two texts, four heads of `n_channels`, two key heads; logits grow with `gain`."""

    def __init__(
        self,
        name: str,
        n: int,
        way: str = "causal",
        bias: str | None = None,
        *,
        gain: float = 2.0,
        n_channels: int = 8,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        options = dict(WAYS[way])
        n_queries = n - n // 2 if options.pop("in_cache", False) else n
        valid_BK = None
        if options.pop("padded", False):
            valid_BK = torch.ones(2, n, dtype=torch.bool)
            valid_BK[0, : n // 3] = False
            valid_BK[1, n - n // 4 :] = False
        self.softmax = build(name).double()
        self.keys = self.softmax.narrowed(keys_of(n_queries, n, valid_BK=valid_BK, **options))
        encoding = PositionalEncoding(attention_shape()) if bias is None else encoding_from(bias).double()
        if bias == "fire":
            encoding.log_threshold.data.fill_(3.0)  # so that rows lie on both sides of it, position 20
        sizes = [(2, heads, tokens, n_channels) for heads, tokens in ((4, n_queries), (2, n), (2, n), (4, n_queries))]
        tensors = [noise(*size, seed=seed).mul(gain if seed == 0 else 1).to(dtype) for seed, size in enumerate(sizes)]
        self.q, self.k, self.v = (x.requires_grad_() for x in tensors[:3])
        self.cotangent = tensors[3]
        self.bias = layer_bias(encoding, self.keys, self.q, self.k)
        of_tokens = self.softmax.row_parameters(noise(2, n, D_MODEL, seed=7))
        self.rows = {key: value[:, :, n - n_queries :] for key, value in of_tokens.items()}
        self.leaves = [self.q, self.k, self.v, *self.softmax.parameters(), *encoding.parameters()]

    def compiled(self) -> Tensor:
        function = self.softmax.row_function(self.rows, self.keys, self.bias)
        assert function is not None
        assert whole_rows.fits(self.q, self.keys, self.bias)
        return whole_rows.attention(
            self.q, self.k, self.v, function=function, scale=SCALE, keys=self.keys, bias=self.bias
        )

    def defined(self) -> Tensor:
        rows = self.softmax.counted(self.rows, self.keys)
        return self.softmax.attend_in_blocks(
            self.q, self.k, self.v, scale=SCALE, keys=self.keys, bias=self.bias, rows=rows
        )


def assert_equal_with_gradients(case: Case, within: float = 1e-10) -> None:
    found, expected = (with_gradients(out, case.cotangent, case.leaves) for out in (case.compiled(), case.defined()))
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours - theirs).abs().max() <= within * max(1.0, float(theirs.abs().max()))


def test_those_without_a_fused_kernel_are_all_there() -> None:
    assert {"entmax15", "sparsemax", "alpha_entmax", "alpha_entmax_learned", "as_entmax", "softpick"} <= set(ALONE)
    assert {"sigmoid", "hard", "top_k", "soft_cap", "adaptive_temperature", "adaptive_temperature_trained"} <= set(
        ALONE
    )
    assert "softmax" not in ALONE, "PyTorch's kernel is its fast form"
    assert set(IN_BLOCKS) == {"stieltjes", "stick_breaking"}, "which no compiled code computes"


@covering("name,way,bias", ALONE, WAYS, BIASES)
def test_compiled_attention_is_the_definition_gradients_included(name: str, way: str, bias: str | None) -> None:
    assert_equal_with_gradients(Case(name, 65, way, bias))


def test_rows_of_little_entropy_keep_their_temperature() -> None:
    case = Case("adaptive_temperature", 65)
    case.softmax.min_entropy = 2.5  # where the polynomial is above 1; the default stops where it is below
    assert_equal_with_gradients(case)


@covering(
    "name,way,bias", [name for name in NAMES if name not in (*ALONE, *IN_BLOCKS)], WAYS, ["t5_bias", "kerple", "fire"]
)
def test_a_fused_softmax_with_a_bias_that_is_not_linear_is_the_definition(name: str, way: str, bias: str) -> None:
    assert_equal_with_gradients(Case(name, 50, way, bias))


MANY = ["entmax15", "sigmoid"]  # a second each at 771 tokens: in whose parts the functions do not differ


@pytest.mark.parametrize(
    ("name", "n", "n_channels"),
    [
        pytest.param(name, n, c, marks=[pytest.mark.slow] * (n > 700 and name not in MANY))
        for name in ALONE
        for n, c in [(1, 8), (2, 3), (63, 20), (64, 16), (771, 5)]
    ],
)
def test_any_number_of_tokens_and_channels(name: str, n: int, n_channels: int) -> None:
    """Up to a few more than the 768 queries that whole_rows.cpp takes as one part."""
    assert_equal_with_gradients(Case(name, n, n_channels=n_channels))


@pytest.mark.parametrize("name", ALONE)
@pytest.mark.parametrize("gain", [0.0, 0.05, 30.0])
def test_rows_that_spread_over_all_keys_and_rows_that_choose_few(name: str, gain: float) -> None:
    if gain or name not in ("hard", "top_k", "softpick"):  # which have no gradient where logits are equal, or are 0
        assert_equal_with_gradients(Case(name, 150, gain=gain), within=1e-9)


@pytest.mark.parametrize("name", ALONE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_half_precision_is_computed_in_float32(name: str, dtype: torch.dtype) -> None:
    case, exact = Case(name, 120, dtype=dtype), Case(name, 120)
    case.softmax.float()
    for one, other in zip(
        (exact.q, exact.k, exact.v, exact.cotangent), (case.q, case.k, case.v, case.cotangent), strict=True
    ):
        one.data.copy_(other.data)
    found = with_gradients(case.compiled(), case.cotangent, case.leaves[:3])
    expected = with_gradients(exact.defined(), exact.cotangent, exact.leaves[:3])
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == dtype
        # logits reach 20; what is stored loses half a digit of the precision of the inputs
        within = 2e-5 + (0 if dtype == torch.float32 else torch.finfo(dtype).eps)
        assert (ours.double() - theirs).abs().max() <= within * max(1.0, float(theirs.abs().max()))


@pytest.mark.parametrize("name", ["entmax15", "sigmoid"])
def test_tensors_may_lie_in_memory_in_any_order(name: str) -> None:
    case = Case(name, 70)
    expected = with_gradients(case.compiled(), case.cotangent, case.leaves)
    case.q, case.k, case.v = (
        x.detach().permute(3, 2, 0, 1).contiguous().permute(2, 3, 1, 0).requires_grad_()
        for x in (case.q, case.k, case.v)
    )
    found = with_gradients(case.compiled(), case.cotangent.mT.contiguous().mT, [case.q, case.k, case.v])
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, expected, strict=False))


@pytest.mark.parametrize("name", ["alpha_entmax_learned", "as_entmax", "adaptive_temperature_trained", "soft_cap"])
def test_gradients_are_differences_of_outputs(name: str) -> None:
    case = Case(name, 7)

    def attended(*qkv: Tensor) -> Tensor:
        case.q, case.k, case.v = qkv
        return case.compiled()

    assert torch.autograd.gradcheck(attended, (case.q, case.k, case.v), atol=1e-7)


@pytest.mark.parametrize("name", ["entmax15", "softpick", "adaptive_temperature_trained"])
def test_numbers_do_not_depend_on_the_number_of_threads(name: str) -> None:
    case, n_threads = Case(name, 900, dtype=torch.float32), torch.get_num_threads()
    results = []
    try:
        for n in (1, 3):
            torch.set_num_threads(n)
            results.append(with_gradients(case.compiled(), case.cotangent, case.leaves[:3]))
    finally:
        torch.set_num_threads(n_threads)
    assert all(torch.equal(one, three) for one, three in zip(*results, strict=True))


@pytest.mark.parametrize("name", ALONE)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@torch.no_grad()
def test_a_logit_that_is_not_finite_makes_its_row_nan_and_no_other(name: str, bad: float) -> None:
    case = Case(name, 66, "window")
    expected = case.compiled()
    case.k[0, 1, 40] = bad
    found, sees = case.compiled(), torch.zeros(2, 4, 66, dtype=torch.bool)
    sees[0, 2:, 40:47] = True
    assert found[sees].isnan().all()
    assert torch.equal(found[~sees], expected[~sees])


def test_what_the_compiled_code_does_not_know_is_left_to_the_definition() -> None:
    q, keys = torch.zeros(1, 2, 9, 4), keys_of(9, 9)
    assert whole_rows.fits(q, keys, None)
    assert not whole_rows.fits(q.to("meta"), keys, None)
    drawn = Keys(q_pos_BQ=keys.q_pos_BQ * 2, k_pos_BK=keys.k_pos_BK * 2)
    for name in ("t5_bias", "fire"):
        assert not whole_rows.fits(q, drawn, layer_bias(encoding_from(name), drawn, q, q))


def test_few_queries_and_no_compiler_are_served_by_the_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case("sigmoid", 20)
    calls: list[str] = []
    monkeypatch.setattr(AttentionSoftmax, "attend_in_blocks", lambda self, q, *_, **__: calls.append("blocks") or q)
    options: dict[str, Any] = {"scale": SCALE, "keys": case.keys, "bias": None, "rows": {}}
    case.softmax(case.q, case.k, case.v, **options)
    assert not calls
    monkeypatch.setattr(whole_rows, "FEWEST_QUERIES", 21)
    case.softmax(case.q, case.k, case.v, **options)
    assert calls == ["blocks"]
    monkeypatch.setattr(whole_rows, "FEWEST_QUERIES", 1)
    monkeypatch.setattr(whole_rows, "library", lambda: None)
    case.softmax(case.q, case.k, case.v, **options)
    assert calls == ["blocks", "blocks"]
