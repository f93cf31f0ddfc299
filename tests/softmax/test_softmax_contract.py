"""What every normaliser promises, for each yaml in conf/softmax, alone and with each encoding of conf/pe.

A new variant is tested by being there. The docstring of a test is the promise, with the file that makes it: it is
printed where the test fails.
Shapes: B batch, T tokens, Q queries, K keys, H heads, G key heads, C head channels, D model width.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from itertools import cycle, islice

import pytest
import torch
from conftest import ROOT, class_of, own_variants, tunables
from helpers_attention import (
    CHOSEN,
    D_MODEL,
    ENCODINGS,
    KEYS,
    NAMES,
    REPLACED,
    SCALE,
    Peak,
    attention_shape,
    build,
    changed,
    covering,
    dense,
    encoding_from,
    encoding_of,
    inputs,
    keys_of,
    layer_bias,
    made,
    mask_of,
    row_counts,
    with_gradients,
    within_window,
)
from helpers_pe import noise, prepared_of_layer
from rounding import rounding
from torch import Tensor

from roundround.kernels import blocks, tiles, whole_rows
from roundround.kernels.bias import Bias, LinearBias
from roundround.kernels.keys import Keys
from roundround.softmax.base import AttentionSoftmax
from roundround.softmax.projection import Projection

every_normaliser = pytest.mark.parametrize("name", NAMES)
every_packaged = pytest.mark.parametrize("name", [name for name in NAMES if name not in own_variants()])
every_pair = covering("name,encoding_name", NAMES, ENCODINGS)


# -- building from yaml


def has_bias(encoding_name: str) -> bool:
    """Whether an encoding adds a bias; one that fails is tested as if it did, and told what it breaks."""
    keys, q = keys_of(2, 2), torch.zeros(1, 4, 2, 8)
    try:
        return layer_bias(encoding_from(encoding_name), keys, q, q[:, :2]) is not None
    except Exception:
        return True


BIASED = [name for name in ENCODINGS if has_bias(name)]
# attention itself knows an encoding by its bias alone: one that rotates stands for all that have none
own_unbiased = sorted((own_variants() & set(ENCODINGS)) - set(BIASED))
each_kind_of_bias = covering("encoding_name,name", ["rope", *BIASED, *own_unbiased], NAMES)
each_way = covering("name,mode,bias", NAMES, KEYS, [None, "alibi", "t5_bias"])


# -- the dense definition


class Combination:
    """A normaliser with an encoding, on a batch of n tokens of two key heads, with or without padding.

    q, k and v are leaves; rotated and bias are what attention gets of them, and rows what the normaliser reads off the
    tokens. in_order and visible [1 or B, 1, Q, K]: which keys a query may see, and which it attends to.
    """

    def __init__(self, name: str, encoding_name: str, n_tokens: int, *, padded: bool, dtype: torch.dtype) -> None:
        self.softmax, encoding = build(name).to(dtype), encoding_from(encoding_name).to(dtype)
        valid_BK = torch.ones(2, n_tokens, dtype=torch.bool)
        valid_BK[0, : min(5, (n_tokens + 1) // 2)] = False
        valid_BK[1, n_tokens - min(4, n_tokens // 2) :] = False
        self.keys = keys_of(n_tokens, n_tokens, valid_BK=valid_BK if padded else None)
        sizes = [(2, n_heads, n_tokens, 8) for n_heads in (4, 2, 2, 4)]
        *leaves, self.cotangent = (2 * noise(*size, dtype=dtype, seed=seed) for seed, size in enumerate(sizes))
        self.q, self.k, self.v = (leaf.requires_grad_() for leaf in leaves)
        self.leaves = [*leaves, *self.softmax.parameters(), *encoding.parameters()]
        x = encoding.embed(noise(2, n_tokens, D_MODEL, dtype=dtype, seed=7), self.keys.k_pos_BK)
        prepared = encoding.prepare_layer(x, encoding.prepare(self.keys.k_pos_BK, dtype), self.keys)
        self.rotated = encoding.rotate_queries(self.q, prepared), encoding.rotate_keys(self.k, prepared)
        self.bias, self.rows = encoding.bias(*self.rotated, prepared), self.softmax.row_parameters(x)
        self.in_order = torch.ones(n_tokens, n_tokens).tril().bool()[None, None]
        if padded:
            self.in_order = self.in_order & valid_BK[:, None, None]
        self.visible = within_window(self.softmax, self.in_order)

    def attended(self) -> Tensor:
        return self.softmax(*self.rotated, self.v, scale=SCALE, keys=self.keys, bias=self.bias, rows=self.rows)

    def dense(self) -> Tensor:
        return dense(self.softmax, *self.rotated, self.v, self.keys, self.bias, self.rows, self.in_order)


# -- yaml and class


@every_packaged
def test_yaml_starts_with_the_command_that_uses_it(name: str) -> None:
    lines = (ROOT / "conf" / "softmax" / f"{name}.yaml").read_text().splitlines()
    assert lines[0] == f"# roundround train softmax={name}" + " pe=nope" * class_of("softmax", name).orders_keys


@every_packaged
def test_class_is_final_and_its_numbers_live_in_yaml(name: str) -> None:
    cls = class_of("softmax", name)
    shape, *parameters = inspect.signature(cls).parameters.values()
    assert shape.name == "shape"
    assert cls.__dict__.get("__final__") is True
    assert all(p.kind is p.KEYWORD_ONLY for p in parameters)
    assert all(p.default is p.empty for p in parameters if p.name not in ("b", "count")), "options that came later"
    assert {p.name for p in parameters} | {"_target_"} == tunables("softmax", name).keys()


def test_the_kinds_of_normaliser_are_all_there() -> None:
    built = [build(name) for name in NAMES]
    assert {softmax.sums_to_one for softmax in built} == {True, False}
    assert any(list(softmax.parameters()) for softmax in built)
    assert any(softmax.row_parameters(torch.zeros(1, 1, D_MODEL)) for softmax in built)
    assert CHOSEN.keys() | REPLACED.keys() <= set(NAMES)


def test_every_encoding_with_a_bias_is_a_kind_of_its_own() -> None:
    assert {"alibi", "fox", "t5_bias", "kerple", "fire"} <= set(BIASED)
    assert "rope" not in BIASED


@pytest.mark.parametrize(
    "decorated", [every_pair, each_kind_of_bias, each_way], ids=["pairs", "kinds of bias", "ways to attend"]
)
def test_every_value_is_among_the_combinations_that_are_not_slow(decorated: pytest.MarkDecorator) -> None:
    cases = decorated.args[1]
    often = [case for case in cases if not case.marks]
    for place in range(len(cases[0].values)):
        assert {case.values[place] for case in often} == {case.values[place] for case in cases}


# -- weights


def some_weights(softmax: AttentionSoftmax, logits_BHQK: Tensor, visible_B1QK: Tensor) -> Tensor:
    """The definition, on rows of random tokens."""
    n_batch, _, n_queries, _ = logits_BHQK.shape
    weight = next(softmax.parameters(), None)
    x_BTD = noise(n_batch, n_queries, D_MODEL, dtype=torch.float64 if weight is None else weight.dtype, seed=3)
    rows = {**softmax.row_parameters(x_BTD), **row_counts(visible_B1QK)}
    return softmax.weights(logits_BHQK, visible_B1QK, rows)


def half_visible(n_queries: int = 30, n_keys: int = 40) -> Tensor:
    visible_B1QK = torch.rand(2, 1, n_queries, n_keys, generator=torch.Generator().manual_seed(1)) < 0.5
    visible_B1QK[..., 0] = True
    return visible_B1QK


@every_normaliser
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("spread", [0.1, 1.0, 20.0])
def test_rows_sum_to_one_or_to_no_more(name: str, dtype: torch.dtype, spread: float) -> None:
    """Weights are not negative and sum to one, or to no more where `sums_to_one` is False (softmax/base.py)."""
    softmax = build(name).to(dtype)
    digits = 1e-12 if dtype == torch.float64 else 1e-6
    if isinstance(softmax, Projection) and dtype == torch.float32:
        digits = 2e-6  # the closed form of entmax-1.5 does not divide by the sum: every key shares the rounding of tau
    total = some_weights(softmax, spread * noise(2, 4, 30, 40, dtype=dtype), half_visible()).double().sum(-1)
    if softmax.sums_to_one:
        assert (total - 1).abs().max() <= digits
    elif name != "sigmoid":  # whose weights do not compete
        assert total.max() <= 1 + digits
    assert total.min() >= 0


@every_normaliser
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_weights_are_not_negative_and_zero_where_hidden_and_at_least_float32(name: str, dtype: torch.dtype) -> None:
    """Weights are at least float32, not negative, and zero where a key is hidden (softmax/base.py)."""
    visible_B1QK = half_visible()
    alpha_BHQK = some_weights(build(name).to(dtype), 3 * noise(2, 4, 30, 40, dtype=dtype), visible_B1QK)
    assert alpha_BHQK.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert (alpha_BHQK >= 0).all()
    assert not alpha_BHQK.masked_select(~visible_B1QK).any(), "zero, not nearly zero"
    assert alpha_BHQK.any(-1).all(), "and not zero everywhere"


@every_normaliser
def test_weights_do_not_depend_on_what_is_hidden(name: str) -> None:
    """Logits of hidden keys, whatever they are, change no weight (softmax/base.py)."""
    visible_B1QK, logits = half_visible(), 3 * noise(2, 4, 30, 40)
    softmax = build(name).double()
    expected = some_weights(softmax, logits, visible_B1QK)
    for hidden in (-30.0, 30.0, 1e4, torch.nan, torch.inf, -torch.inf):
        others = torch.where(visible_B1QK, logits, hidden)
        assert (some_weights(softmax, others, visible_B1QK) - expected).abs().max() < rounding(40, dtype=torch.float64)


@pytest.mark.parametrize("name", [name for name in NAMES if build(name).sums_to_one])
@pytest.mark.parametrize("logit", [-1e4, 0.0, 1e4])
def test_a_lone_key_has_weight_one(name: str, logit: float) -> None:
    """A lone visible key has weight one, unless `sums_to_one` is False (softmax/base.py)."""
    logits_BHQK, visible_B1QK = torch.full((1, 4, 1, 3), logit), torch.tensor([[[[False, True, False]]]])
    assert some_weights(build(name), logits_BHQK, visible_B1QK)[0, :, 0].tolist() == [[0, 1, 0]] * 4


@every_normaliser
def test_a_row_that_sees_nothing_attends_to_nothing_and_passes_no_gradient(name: str) -> None:
    """A row that sees no key attends to nothing and passes no gradient (softmax/base.py)."""
    softmax = build(name)
    logits_BHQK = noise(1, 4, 2, 5, dtype=torch.float32).add(1).requires_grad_()
    visible_B1QK = torch.tensor([[[[False] * 5, [True, False, True, True, True]]]])
    alpha_BHQK = some_weights(softmax, logits_BHQK, visible_B1QK)
    assert not alpha_BHQK[:, :, 0].any()
    assert alpha_BHQK[:, :, 1].any(-1).all()
    grad, *others = with_gradients((alpha_BHQK**2).sum(), torch.ones(()), [logits_BHQK, *softmax.parameters()])[1:]
    assert not grad[:, :, 0].any()
    assert all(part.isfinite().all() for part in (grad, *others))
    if name != "hard":  # whose gradient is zero
        assert grad[:, :, 1].any()


@every_normaliser
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_a_logit_that_is_not_finite_makes_its_row_nan_and_no_other(name: str, bad: float, dtype: torch.dtype) -> None:
    """A visible logit that is not finite makes its row NaN and no other (softmax/base.py)."""
    softmax, visible_B1QK, logits = build(name).to(dtype), half_visible(6, 7), noise(2, 4, 6, 7, dtype=dtype)
    expected = some_weights(softmax, logits, visible_B1QK)
    logits[1, 2, 3, 0] = logits[0, 1, 5, 0] = bad
    broken_rows = torch.zeros(2, 4, 6, dtype=torch.bool)
    broken_rows[1, 2, 3] = broken_rows[0, 1, 5] = True
    found = some_weights(softmax, logits, visible_B1QK)
    assert found[broken_rows].isnan().all()
    assert torch.equal(found[~broken_rows], expected[~broken_rows])


# -- attention with every encoding


def assert_is_the_dense_definition(name: str, encoding_name: str, n_tokens: int, *, padded: bool) -> list[Tensor]:
    """Compare outputs and gradients; those of the definition."""
    case = Combination(name, encoding_name, n_tokens, padded=padded, dtype=torch.float64)
    expected, found = (with_gradients(out, case.cotangent, case.leaves) for out in (case.dense(), case.attended()))
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours - theirs).abs().max() < 1e-10
    seen = case.in_order.any(-1).expand(2, 4, n_tokens)
    assert not expected[0][~seen].any()
    return expected


@every_pair
def test_attention_is_the_dense_definition_gradients_included(
    name: str, encoding_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attention is `normalise` over one matrix of all logits, in any form, gradients included (softmax/base.py)."""
    # a few rows a block at 17 tokens, so that there are several blocks, computed again in the backward pass
    monkeypatch.setattr(blocks, "LOGITS_PER_BLOCK", 5 * 2 * 4 * 17)
    for padded in (False, True):
        expected = assert_is_the_dense_definition(name, encoding_name, 17, padded=padded)
        assert all(part.any() for part in expected[1:4] if name != "hard"), "gradients to compare"


@each_kind_of_bias
@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
def test_one_and_two_tokens_attend_by_the_dense_definition(
    name: str, encoding_name: str, padded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attention of one and two tokens is `normalise` over all logits (softmax/base.py)."""
    monkeypatch.setattr(blocks, "LOGITS_PER_BLOCK", 5 * 2 * 4 * 17)
    for n_tokens in (1, 2):
        assert_is_the_dense_definition(name, encoding_name, n_tokens, padded=padded)


@every_pair
@torch.no_grad()
def test_attention_in_float32_is_right_to_four_digits(
    name: str, encoding_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attention in float32 is right to four digits: weights are continuous in the logits (softmax/base.py)."""
    monkeypatch.setattr(blocks, "LOGITS_PER_BLOCK", 5 * 2 * 4 * 17)
    for padded in (False, True):
        exact = Combination(name, encoding_name, 17, padded=padded, dtype=torch.float64)
        single = Combination(name, encoding_name, 17, padded=padded, dtype=torch.float32)
        expected, found = exact.dense(), single.attended()
        assert found.dtype == torch.float32
        difference = (found - expected).abs()
        if name in CHOSEN:  # rounding may choose another of two keys as good as equal
            q, k = exact.rotated
            logits = SCALE * q @ k.repeat_interleave(2, dim=1).mT
            if exact.bias is not None:
                logits = changed(exact.bias, logits, exact.softmax.narrowed(exact.keys))
            ordered = logits.masked_fill(~exact.visible, -torch.inf).sort(-1, descending=True).values
            last, following = ordered[..., CHOSEN[name] - 1], ordered[..., CHOSEN[name]]
            clear = (last - following).nan_to_num(torch.inf) > 1e-4
            assert clear.float().mean() > 0.98
            difference = difference[clear]
        assert difference.max() < 1e-4 * max(1.0, float(expected.abs().max()))


@each_kind_of_bias
@torch.no_grad()
def test_a_thousand_tokens_attend_by_the_dense_definition(
    name: str, encoding_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attention of a thousand tokens is `normalise` row by row (softmax/base.py)."""
    monkeypatch.setattr(blocks, "LOGITS_PER_BLOCK", 2**17)
    sizes = {"n_heads": 2, "n_key_heads": 1, "head_dim": 4}
    softmax = build(name, attention_shape(**sizes)).double()
    # in blocks every row goes the same way, and the last two hundred are three blocks that cost a third
    n_queries = 200 if type(softmax).has_fused_form is AttentionSoftmax.has_fused_form else 1000
    encoding, keys = encoding_from(encoding_name, **sizes).double(), keys_of(n_queries, 1000)
    prepared = prepared_of_layer(encoding, keys, torch.float64)
    all_q = encoding.rotate_queries(3 * noise(1, 2, 1000, 4, seed=2), prepared)
    q = all_q[:, :, -n_queries:]
    k = encoding.rotate_keys(3 * noise(1, 1, 1000, 4, seed=1), prepared)
    v, rows = noise(1, 1, 1000, 4, seed=5), softmax.row_parameters(noise(1, n_queries, D_MODEL, seed=6))
    found = softmax(q, k, v, scale=SCALE, keys=keys, bias=encoding.bias(q, k, prepared), rows=rows)
    everything = softmax.narrowed(keys_of(1000, 1000))
    of_all = encoding.bias(all_q, k, prepared_of_layer(encoding, everything, torch.float64))
    # rows do not know of each other, so the definition is evaluated for some of them, each with all its keys
    for i in (*range(0, n_queries, n_queries // 9), n_queries - 1):
        token = 1000 - n_queries + i
        first, last = everything.span(token, token + 1)
        back_111K = token - torch.arange(1000)[None, None, None]
        visible_111K = (back_111K >= 0) & (back_111K < (softmax.window or 1000))
        logits = SCALE * q[:, :, i : i + 1] @ k.mT
        if of_all is not None:
            logits[..., first:last] = of_all.applied(logits[..., first:last], everything, token, token + 1)
        own = {key: value[:, :, i : i + 1] for key, value in rows.items()}
        weights = softmax.weights(logits, visible_111K, own | row_counts(visible_111K))
        assert (found[:, :, i : i + 1] - weights @ v).abs().max() < 1e-10


@each_kind_of_bias
def test_nothing_leaks_from_keys_that_are_not_visible(
    name: str, encoding_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing comes from keys that a query does not see, of a bias included (softmax/base.py, kernels/bias.py)."""
    monkeypatch.setattr(blocks, "LOGITS_PER_BLOCK", 2 * 2 * 4 * 6)
    case = Combination(name, encoding_name, 6, padded=True, dtype=torch.float64)
    out, visible_BQK = case.attended(), case.visible.expand(2, 1, 6, 6)[:, 0]
    for i in range(6):
        row = (out[:, :, i] * case.cotangent[:, :, i]).sum()
        dk_BK, dv_BK = (grad.ne(0).any(-1).any(1) for grad in torch.autograd.grad(row, [case.k, case.v], None, True))
        assert not (dk_BK & ~visible_BQK[:, i]).any()
        assert not (dv_BK & ~visible_BQK[:, i]).any()
        if name != "softpick":  # whose rows may be zero although they see keys
            assert torch.equal(dv_BK.any(-1), visible_BQK[:, i].any(-1))


# -- every way to attend


TRAINED = [name for name in NAMES if "in_training" in tunables("softmax", name)]


@covering(
    "name,training,mode,bias", [(n, False) for n in NAMES] + [(n, True) for n in TRAINED], KEYS, [None, "alibi", "fox"]
)
def test_every_way_to_attend_is_the_dense_definition(
    name: str, training: bool, bias: str | None, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With windows, padding and a cache attention is `normalise` over what is visible (softmax/base.py).

    Gradients of a linear bias's slopes included (kernels/bias.py).
    """
    keys = KEYS[mode]
    monkeypatch.setattr(blocks, "LOGITS_PER_BLOCK", 4 * 3 * 4 * keys.n_keys)
    softmax, encoding = build(name).double().train(training), encoding_of(bias).double()
    q, k, v, cotangent = inputs(keys, 2)
    bias_of_rows = layer_bias(encoding, keys, q, k)
    if isinstance(bias_of_rows, LinearBias):
        bias_of_rows.slopes.requires_grad_()
    rows = softmax.row_parameters(noise(3, keys.n_queries, D_MODEL))
    rows = {key: value.detach().requires_grad_() for key, value in rows.items()}
    out = softmax(q, k, v, scale=SCALE, keys=keys, bias=bias_of_rows, rows=rows)
    expected = dense(softmax, q, k, v, keys, bias_of_rows, rows, mask_of(mode))
    leaves = [q, k, v, *(rows.values() or softmax.parameters()), *encoding.parameters()]
    leaves += [bias_of_rows.slopes] if isinstance(bias_of_rows, LinearBias) else []
    theirs = with_gradients(expected, cotangent, leaves)
    for ours, its in zip(with_gradients(out, cotangent, leaves), theirs, strict=True):
        assert (ours - its).abs().max() < 1e-10
    assert all(part.any() for part in theirs if name != "hard"), "a gradient that is zero everywhere proves nothing"


@every_normaliser
@pytest.mark.parametrize(("of_queries", "of_values"), [(16, 8), (8, 16)])
@pytest.mark.parametrize("mode", ["plain causal", "padded", "window"])
def test_queries_and_values_may_have_other_numbers_of_channels(
    name: str, of_queries: int, of_values: int, mode: str
) -> None:
    """Values may have other channels than queries (softmax/base.py)."""
    keys, softmax = KEYS[mode], build(name).double()
    q, k, v = (
        noise(3, n_heads, keys.n_keys, n, seed=seed).requires_grad_()
        for seed, (n_heads, n) in enumerate(((4, of_queries), (2, of_queries), (2, of_values)))
    )
    rows, cotangent = softmax.row_parameters(noise(3, keys.n_queries, D_MODEL)), noise(3, 4, keys.n_keys, of_values)
    out = softmax(q, k, v, scale=SCALE, keys=keys, bias=None, rows=rows)
    expected = dense(softmax, q, k, v, keys, None, rows, mask_of(mode))
    ours, theirs = (with_gradients(x, cotangent, [q, k, v]) for x in (out, expected))
    for mine, its in zip(ours, theirs, strict=True):
        assert (mine - its).abs().max() < 1e-10


@pytest.mark.parametrize("name", ["softmax", "ssmax", "sink", "adaptive_temperature"])
def test_gradients_of_gates_and_slopes_in_float32_are_those_of_float64(name: str) -> None:
    """A learned linear bias has as exact a gradient by a fused kernel as by its definition (kernels/tiles.py)."""
    n, sizes = 1000, {"n_heads": 2, "n_key_heads": 1}
    keys, found = keys_of(n, n), []
    for dtype in (torch.float32, torch.float64):
        softmax = build(name, attention_shape(**sizes), noise=0.0).to(dtype)
        encoding = made("pe", "fox", attention_shape(**sizes), {}, 0.0).to(dtype)
        q, k, v, cotangent = (noise(1, n_heads, n, 8, dtype=dtype, seed=n_heads) for n_heads in (2, 1, 1, 2))
        x = noise(1, n, D_MODEL, dtype=dtype, seed=7)
        bias = encoding.bias(q, k, prepared_of_layer(encoding, keys, dtype, x))
        bias.slopes.requires_grad_()
        rows = softmax.counted(softmax.row_parameters(x), keys)
        attend = softmax if dtype == torch.float32 else softmax.attend_in_blocks
        out = attend(q, k, v, scale=8**-0.5, keys=keys, bias=bias, rows=rows)
        leaves = [encoding.gate_weight, encoding.gate_bias, bias.slopes, *softmax.parameters()]
        found.append(torch.autograd.grad((out * cotangent).sum(), leaves))
    # coordinates count from the middle of 256 rows; there a bias of ln 2 a token, times ln n for SSMax, has 266 nats
    for single, exact in zip(*found, strict=True):
        assert (single - exact).abs().max() < rounding(size=266 * float(exact.abs().max()))


# -- every layout in memory


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "channels before tokens": lambda x: x.mT.contiguous().mT,
    "heads last": lambda x: x.movedim(1, -1).contiguous().movedim(-1, 1),
    "texts last": lambda x: x.movedim(0, -1).contiguous().movedim(-1, 0),
    "every other channel": lambda x: torch.stack([x, -x], -1).flatten(-2)[..., ::2],
    "real parts of complex numbers": lambda x: torch.view_as_complex(torch.stack([x, -x], -1)).real,
    "every other token": lambda x: torch.stack([x, -x], 3).flatten(2, 3)[:, :, ::2],
    "one channel for all": lambda x: x[..., :1].expand_as(x),
    "one text for all": lambda x: x[:1].expand_as(x),
}


@covering("name,training,bias", [(n, False) for n in NAMES] + [(n, True) for n in TRAINED], [None, "alibi", "t5_bias"])
def test_attention_depends_on_values_and_not_on_how_they_lie_in_memory(
    name: str, training: bool, bias: str | None
) -> None:
    """Queries, keys, values and gradients may have any strides: encodings are free to make them (pe/base.py)."""
    softmax, encoding = build(name).double().train(training), encoding_of(bias).double()
    valid_BK = torch.ones(2, 17, dtype=torch.bool)
    valid_BK[0, :3] = False
    ways = [keys_of(66, 66), keys_of(5, 17), keys_of(17, 17, valid_BK=valid_BK), keys_of(17, 17, window=6)]
    begin = NAMES.index(name) % len(ways)  # so that over the normalisers each layout meets each way
    for keys, (layout, laid_out) in zip(islice(cycle(ways), begin, None), LAYOUTS.items(), strict=False):
        sizes = [(4, keys.n_queries), (2, keys.n_keys), (2, keys.n_keys), (4, keys.n_queries)]
        drawn = [laid_out(noise(2, *size, 8, seed=seed)) for seed, size in enumerate(sizes)]
        rows = softmax.row_parameters(noise(2, keys.n_queries, D_MODEL, seed=6))
        results = []
        for q, k, v, cotangent in (drawn, [x.contiguous() for x in drawn]):
            leaves = [x.detach().requires_grad_() for x in (q, k, v)]
            of_layer = layer_bias(encoding, keys, *leaves[:2])
            out = softmax(*leaves, scale=SCALE, keys=keys, bias=of_layer, rows=rows)
            results.append([out.detach(), *torch.autograd.grad(out, leaves, cotangent)])
        for found, expected in zip(*results, strict=True):
            assert (found - expected).abs().max() < 1e-10, layout


# -- what is not finite


BAD = [torch.nan, torch.inf, -torch.inf]


def attended_with(softmax: AttentionSoftmax, q: Tensor, k: Tensor, keys: Keys, bias: Bias | None) -> Tensor:
    v, x_BTD = noise(3, 2, keys.n_keys, 8, dtype=q.dtype, seed=5), noise(3, keys.n_queries, D_MODEL, dtype=q.dtype)
    return softmax(q, k, v, scale=SCALE, keys=keys, bias=bias, rows=softmax.row_parameters(x_BTD))


@each_way
@torch.no_grad()
def test_a_bad_query_makes_its_rows_nan_and_no_other(name: str, bias: str | None, mode: str) -> None:
    """A query that is not finite makes its own rows NaN and no others (softmax/base.py)."""
    keys, softmax = KEYS[mode], build(name)
    q, k, _, _ = inputs(keys, 2, torch.float32)
    bias_of_rows = layer_bias(encoding_of(bias), keys, q, k)
    expected = attended_with(softmax, q, k, keys, bias_of_rows)
    row = keys.n_queries // 2
    sees_B = within_window(softmax, mask_of(mode))[:, 0, row].any(-1)
    broken_rows = torch.zeros(expected.shape[:3], dtype=torch.bool)
    broken_rows[:, 1, row] = sees_B
    for bad in BAD:
        broken = q.detach().clone()
        broken[:, 1, row, 3] = bad
        found = attended_with(softmax, broken, k, keys, bias_of_rows)
        assert found[broken_rows].isnan().all()
        assert (found - expected)[~broken_rows].abs().max() <= rounding(keys.n_keys, float(expected.abs().max()))


@each_way
@torch.no_grad()
def test_a_bad_key_makes_the_rows_that_see_it_nan_and_no_other(name: str, bias: str | None, mode: str) -> None:
    """A key that is not finite makes the rows that see it NaN and no others (softmax/base.py)."""
    keys, softmax = KEYS[mode], build(name)
    q, k, _, _ = inputs(keys, 2, torch.float32)
    bias_of_rows = layer_bias(encoding_of(bias), keys, q, k)
    expected = attended_with(softmax, q, k, keys, bias_of_rows)
    for column in (1, 5, 9):  # 1 and 9 are padding of one sequence each, and 9 is the future of most rows
        broken_rows = torch.zeros(expected.shape[:3], dtype=torch.bool)
        sees_BQ = within_window(softmax, mask_of(mode))[..., column]
        broken_rows[:, 2:] = sees_BQ  # the query heads of key head 1
        for bad in BAD:
            broken = k.detach().clone()
            broken[:, 1, column, 3] = bad
            found = attended_with(softmax, q, broken, keys, bias_of_rows)
            assert found[broken_rows].isnan().all()
            assert (found - expected)[~broken_rows].abs().max() <= rounding(keys.n_keys, float(expected.abs().max()))


@each_way
@torch.no_grad()
def test_a_logit_that_overflows_makes_its_row_nan(name: str, bias: str | None, mode: str) -> None:
    """A logit that overflows makes its row NaN (softmax/base.py)."""
    # every number given is finite; what rows become that see the large key with a finite logit of 1e30 is left open
    keys, softmax = KEYS[mode], build(name)
    q, k, _, _ = inputs(keys, 2, torch.float32)
    bias_of_rows = layer_bias(encoding_of(bias), keys, q, k)
    expected = attended_with(softmax, q, k, keys, bias_of_rows)
    for sign in (1, -1):
        broken_q, broken_k, row, column = q.detach().clone(), k.detach().clone(), keys.n_queries // 2, 5
        broken_q[:, 2, row], broken_k[:, 1, column] = sign * 1e30, 1e30
        found = attended_with(softmax, broken_q, broken_k, keys, bias_of_rows)
        sees_BQ = within_window(softmax, mask_of(mode))[:, 0, :, column]
        assert found[sees_BQ[:, row], 2, row].isnan().all()
        away = torch.ones(expected.shape[:3], dtype=torch.bool)
        away[:, 2:] = ~sees_BQ[:, None]
        away[:, 2, row] = False
        assert (found - expected)[away].abs().max() <= rounding(keys.n_keys, float(expected.abs().max()))


# -- memory


def peak_of_training(name: str, encoding_name: str, n_tokens: int) -> Peak:
    """What one forward and backward pass of attention holds, in float32."""
    softmax, encoding, keys = build(name), encoding_from(encoding_name), keys_of(n_tokens, n_tokens)
    q, k, v = (noise(1, h, n_tokens, 8, dtype=torch.float32, seed=h).requires_grad_() for h in (4, 2, 2))
    rows = softmax.row_parameters(noise(1, n_tokens, D_MODEL, dtype=torch.float32))
    with Peak() as peak:
        prepared = prepared_of_layer(encoding, keys, torch.float32)
        rotated = encoding.rotate_queries(q, prepared), encoding.rotate_keys(k, prepared)
        bias = encoding.bias(*rotated, prepared)
        softmax(*rotated, v, scale=SCALE, keys=keys, bias=bias, rows=rows).sum().backward()
    assert v.grad is not None
    assert v.grad.any()
    return peak


@each_kind_of_bias
def test_memory_of_training_is_linear_in_length(name: str, encoding_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory of training grows linearly with the length (softmax/base.py, kernels/bias.py)."""
    monkeypatch.setattr(whole_rows, "library", lambda: None)  # whose memory is not that of tensors
    keys, q = keys_of(2, 2), torch.zeros(1, 4, 2, 8)
    bias = layer_bias(encoding_from(encoding_name), keys, q, q[:, :2])
    # 32 rows a block at 256 tokens, or the 16 of which FIRE's hidden layer is half a table
    monkeypatch.setattr(blocks, "LOGITS_PER_BLOCK", 2**15 if bias is None or bias.n_hidden <= 4 else 2**17)
    monkeypatch.setattr(tiles, "MASKED_ROWS", 32)  # of a window
    half, whole = (peak_of_training(name, encoding_name, n) for n in (128, 256))
    assert whole.largest < 4 * 256 * 256
    assert whole.most < 2.3 * half.most
