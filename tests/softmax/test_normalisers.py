"""Each normaliser against its formula: numpy and scipy in float64, finite differences and published numbers.

Shapes: B batch, Q queries, K keys, H heads, C head channels.
"""

from __future__ import annotations

import itertools
import json
import math
import warnings
from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import partial
from typing import Any

import numpy as np
import pytest
import scipy.special
import torch
from conftest import ROOT
from helpers_attention import (
    D_MODEL,
    KEYS,
    SCALE,
    attention_shape,
    build,
    encoding_from,
    encoding_of,
    in_blocks,
    inputs,
    keys_of,
    layer_bias,
    mask_of,
)
from helpers_pe import noise
from rounding import rounding
from torch import Tensor

from roundround.kernels import fused, tiled_attention
from roundround.kernels.bias import LinearBias
from roundround.kernels.keys import Keys
from roundround.kernels.tiles import LinearTerms, Operands
from roundround.softmax.base import AttentionSoftmax, RunsInBlocks
from roundround.softmax.input_sink import InputSink
from roundround.softmax.sink import Sink

# entropies in nats, and the inverse temperature of each
ENTROPIES, BETAS = torch.tensor(
    json.loads((ROOT / "tests" / "golden" / "softmax_adaptive_beta.json").read_text())["value"], dtype=torch.float64
).T
PUBLISHED = [-0.037, 0.481, -2.3, 4.917, -1.791]


def weights_of(softmax: AttentionSoftmax, logits: Tensor, rows: Mapping[str, Tensor] | None = None) -> Tensor:
    """The definition on the causal rows of square logits [B, H, Q, Q], or on whole rows of others."""
    n_queries, n_keys = logits.shape[-2:]
    visible_11QK = torch.ones(1, 1, n_queries, n_keys, dtype=torch.bool)
    if n_queries == n_keys:
        visible_11QK = visible_11QK.tril()
    n_visible = {"n_visible": visible_11QK.sum(-1, keepdim=True)}
    return softmax.weights(logits, visible_11QK, {**(rows or {}), **n_visible})


def causal_by_row(logits: Tensor, of_row: Callable[[np.ndarray, int], np.ndarray]) -> Tensor:
    """Weights [B, H, Q, Q] from a formula of the visible logits of one row, and its head."""
    found = np.zeros(logits.shape)
    for b, h, i in itertools.product(*map(range, logits.shape[:3])):
        found[b, h, i, : i + 1] = of_row(logits[b, h, i, : i + 1].detach().numpy(), h)
    return torch.from_numpy(found)


def causal_logits(n: int = 12, spread: float = 2.0) -> Tensor:
    return spread * noise(2, 4, n, n)


def finite_differences(value: Callable[[], Tensor], parameter: Tensor, step: float = 1e-5) -> Tensor:
    """Derivative of a number with respect to each element of a parameter, by central differences."""
    slopes = torch.zeros_like(parameter)
    with torch.no_grad():
        for h in range(len(parameter)):
            parameter[h] += step
            above = value()
            parameter[h] -= 2 * step
            slopes[h] = (above - value()) / (2 * step)
            parameter[h] += step
    return slopes


# -- adaptive temperature


def test_beta_is_the_published_polynomial_of_the_entropy() -> None:
    found = build("adaptive_temperature").beta_at(ENTROPIES)
    torch.testing.assert_close(found, BETAS, rtol=0, atol=5.1e-4)
    assert found[:2].tolist() == found[-2:].tolist() == [1.0, 1.0], "exactly"


def test_coefficients_in_the_wrong_order_miss_the_golden_numbers() -> None:
    wrong = build("adaptive_temperature", coefficients=PUBLISHED[::-1])
    assert (wrong.beta_at(ENTROPIES) - BETAS).abs().max() > 0.1


@pytest.mark.parametrize("coefficients", [PUBLISHED, [1.5], [0.5, 1.0]], ids=len)
def test_beta_is_numpys_polynomial_where_that_exceeds_one(coefficients: list[float]) -> None:
    entropy = np.linspace(0, 9, 901)
    expected = np.where(entropy > 0.5, np.maximum(np.polyval(coefficients, entropy), 1), 1)
    found = build("adaptive_temperature", coefficients=coefficients).beta_at(torch.from_numpy(entropy))
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-12)


def test_min_beta_and_min_entropy_bound_beta() -> None:
    softmax = build("adaptive_temperature", coefficients=[2.0], min_entropy=0.75)
    above = math.nextafter(0.75, 1)
    assert softmax.beta_at(torch.tensor([0.75, above], dtype=torch.float64)).tolist() == [1, 2], "strictly above"
    assert build("adaptive_temperature", min_beta=1.75).beta_at(torch.tensor([0.4, 0.6, 7.0])).tolist() == [
        1,
        1.75,
        1.75,
    ]


def test_beyond_the_entropies_of_its_fit_a_polynomial_is_read_at_their_ends() -> None:
    """What a quartic does beyond its points is an accident of its leading sign."""
    line = build("adaptive_temperature", coefficients=[1.0, 0.0], entropy_range=[1.5, 3.0])
    entropy = torch.tensor([0.4, 0.6, 1.5, 2.0, 3.0, 9.0], dtype=torch.float64)
    assert line.beta_at(entropy).tolist() == [1, 1.5, 1.5, 2, 3, 3]


@pytest.mark.parametrize("n_keys", [2, 40, 500])
def test_adaptive_temperature_is_the_papers_function(n_keys: int) -> None:
    logits = torch.logspace(-2, 1.5, 200, dtype=torch.float64)[:, None] * noise(1, 2, 200, n_keys)
    found, plain = (weights_of(build(name), logits) for name in ("adaptive_temperature", "softmax"))
    # figure 4 of arXiv:2410.01104, in numpy
    p = scipy.special.softmax(logits.numpy(), -1)
    entropy = -(p * np.log(p + 1e-9)).sum(-1, keepdims=True)
    beta = np.where(entropy > 0.5, np.maximum(np.polyval(PUBLISHED, entropy), 1), 1)
    np.testing.assert_allclose(found.numpy(), scipy.special.softmax(logits.numpy() * beta, -1), rtol=0, atol=1e-6)
    if n_keys > 2:  # whose entropy is at most ln 2, below where the polynomial exceeds 1
        assert (found - plain).abs().max() > 0.05


@pytest.mark.parametrize("n_keys", [2, 40, 500])
def test_adaptive_temperature_never_flattens(n_keys: int) -> None:
    logits = torch.logspace(-2, 1.5, 200, dtype=torch.float64)[:, None] * noise(1, 2, 200, n_keys)
    found, plain = (weights_of(build(name), logits).amax(-1) for name in ("adaptive_temperature", "softmax"))
    assert (found >= plain - 1e-15).all()


@pytest.mark.parametrize("bias", [None, "alibi", "t5_bias"])
@pytest.mark.parametrize("mode", KEYS)
def test_adaptive_temperature_leaves_training_to_the_plain_softmax(bias: str | None, mode: str) -> None:
    keys = KEYS[mode]
    q, k, v, _ = inputs(keys, 2)
    bias_of_rows = layer_bias(encoding_of(bias).double(), keys, q, k)
    adaptive = build("adaptive_temperature")
    softmaxes = build("softmax"), deepcopy(adaptive).train(), adaptive, build("adaptive_temperature_trained").train()
    plain, training, evaluating, trained = (
        softmax(q, k, v, scale=SCALE, keys=keys, bias=bias_of_rows, rows={}) for softmax in softmaxes
    )
    assert torch.equal(training, plain)
    assert not torch.allclose(evaluating, plain)
    assert not torch.allclose(trained, plain)


def test_beta_held_constant_passes_no_gradient() -> None:
    held = build("adaptive_temperature_trained", gradient_through_beta=False)
    logits, cotangent = causal_logits(spread=1).requires_grad_(), noise(2, 4, 12, 12, seed=9)
    seen = logits.masked_fill(~torch.ones(12, 12).tril().bool(), -torch.inf)
    p = seen.softmax(-1).detach()
    beta = held.beta_at(torch.special.entr(p).sum(-1, keepdim=True))
    through = build("adaptive_temperature_trained")
    expected, of_held, of_through = (
        torch.autograd.grad((alpha * cotangent).sum(), logits)[0]
        for alpha in ((seen * beta).softmax(-1), weights_of(held, logits), weights_of(through, logits))
    )
    assert (of_held - expected).abs().max() < 1e-12
    assert (of_through - expected).abs().max() > 1e-3


@pytest.mark.parametrize("bias", [None, "alibi"])
def test_beta_held_constant_is_so_in_attention(bias: str | None) -> None:
    held, keys = build("adaptive_temperature_trained", gradient_through_beta=False), keys_of()
    q, k, v, cotangent = inputs(keys)
    bias_of_rows = layer_bias(encoding_of(bias).double(), keys, q, k)
    fused_out = held(q, k, v, scale=SCALE, keys=keys, bias=bias_of_rows, rows={})
    outs = (fused_out, in_blocks(held, q, k, v, keys, bias_of_rows))
    ours, theirs = (torch.autograd.grad((out * cotangent).sum(), [q, k, v], retain_graph=True) for out in outs)
    for mine, its in zip(ours, theirs, strict=True):
        assert (mine - its).abs().max() < 1e-10


@pytest.mark.parametrize("name", ["adaptive_temperature", "adaptive_temperature_trained"])
def test_the_gradient_through_beta_is_that_of_finite_differences(name: str) -> None:
    softmax = build(name)
    logits = noise(1, 1, 2, 5).requires_grad_()
    assert (softmax.beta_at(torch.special.entr(logits.softmax(-1)).sum(-1)) > 1).any(), "a beta to differentiate"
    assert torch.autograd.gradcheck(lambda e: weights_of(softmax, e), logits)
    keys = keys_of(5, 5)
    q, k, v = (noise(1, 1, 5, 2, seed=seed).requires_grad_() for seed in range(3))
    for bias in (None, layer_bias(encoding_from("alibi", n_heads=1).double(), keys, q, k)):
        attended = partial(softmax, scale=SCALE, keys=keys, bias=bias, rows={})
        assert torch.autograd.gradcheck(attended, (q, k, v))


# -- entropy from a fused pass


def dense_entropy(q: Tensor, k: Tensor, scale: float, visible_B1QK: Tensor, bias_BHQK: Tensor | float = 0.0) -> Tensor:
    """-sum_j p_j ln p_j in nats [B, H, Q, 1]; 0 of a row that sees nothing."""
    logits = scale * q @ k.repeat_interleave(q.shape[1] // k.shape[1], dim=1).mT + bias_BHQK
    empty_B1Q1 = ~visible_B1QK.any(-1, keepdim=True)
    log_p = logits.masked_fill(~visible_B1QK & ~empty_B1Q1, -torch.inf).log_softmax(-1)
    terms = log_p.exp() * log_p.masked_fill(~visible_B1QK, 0.0)
    return -terms.sum(-1, keepdim=True).masked_fill(empty_B1Q1, 0.0)


@pytest.mark.parametrize("bias", [None, "alibi", "fox"])
@pytest.mark.parametrize("mode", KEYS)
def test_the_fused_entropy_is_the_dense_one_gradients_included(bias: str | None, mode: str) -> None:
    keys = KEYS[mode]
    q, k, _, _ = inputs(keys, 2)
    encoding, bias_BHQK = encoding_of(bias).double(), 0.0
    bias_of_rows, leaves = layer_bias(encoding, keys, q, k), [q, k, *encoding.parameters()]
    if bias_of_rows is not None:
        assert isinstance(bias_of_rows, LinearBias)
        bias_of_rows.slopes.requires_grad_()
        leaves.append(bias_of_rows.slopes)
        everything = Keys(q_pos_BQ=keys.q_pos_BQ, k_pos_BK=keys.k_pos_BK, causal=False)
        bias_BHQK = bias_of_rows.block(everything, 0, keys.n_queries)
    expected = dense_entropy(q, k, SCALE, mask_of(mode), bias_BHQK)
    found = fused.entropy(q, k, scale=SCALE, keys=keys, bias=bias_of_rows)
    cotangent = noise(*expected.shape) * mask_of(mode).any(-1, keepdim=True)
    assert (found - expected).abs().max() < 1e-12
    ours, theirs = (
        torch.autograd.grad((entropy * cotangent).sum(), leaves, retain_graph=True) for entropy in (found, expected)
    )
    for mine, its in zip(ours, theirs, strict=True):
        assert its.any()
        assert (mine - its).abs().max() < 1e-12


def test_the_fused_entropy_in_float32_is_that_of_float64() -> None:
    q, k = (noise(1, 2, 2000, 8, seed=seed) for seed in range(2))
    keys, scale = keys_of(2000, 2000), 3 / math.sqrt(8)  # logits of standard deviation 3
    expected = dense_entropy(q, k, scale, torch.ones(1, 1, 2000, 2000).tril().bool())
    assert (fused.entropy(q, k, scale=scale, keys=keys) - expected).abs().max() < 1e-12
    found = fused.entropy(q.float(), k.float(), scale=scale, keys=keys)
    assert (found - expected).abs().max() < rounding(2000, float(expected.max()))


def keys_with_an_offset(dtype: torch.dtype) -> tuple[Tensor, Tensor, Keys, Tensor]:
    """Queries and keys that are nearly alike, as a GPU computes them; the first of two texts is padded."""
    n, gain = 300, 0.3
    q, k = noise(2, 4, n, 64), gain * noise(2, 2, n, 64, seed=1) + 10 * noise(2, 2, 1, 64, seed=2)
    valid_BK = torch.ones(2, n, dtype=torch.bool)
    valid_BK[0, :40] = False
    k[0, :, :40] = 1e4 * noise(2, 40, 64, seed=3)  # what stands there is nobody's business
    visible_B1QK = torch.ones(n, n).tril().bool() & valid_BK[:, None, None]
    return q.to(dtype), k.to(dtype), keys_of(n, n, valid_BK=valid_BK), visible_B1QK


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_the_entropy_in_half_precision_does_not_suffer_from_what_keys_share(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiled_attention, "ENTROPY_IN_FLOAT32", ())  # as on a GPU
    q, k, keys, visible_B1QK = keys_with_an_offset(dtype)
    expected = dense_entropy(q.double(), k.double(), 0.125, visible_B1QK)
    logits = 0.125 * q.double() @ k.double().repeat_interleave(2, 1).mT
    seen = visible_B1QK.any(-1, keepdim=True)
    expected_lse = logits.masked_fill(~visible_B1QK & seen, -torch.inf).logsumexp(-1, keepdim=True).where(seen, 0.0)
    found, log_sum_exp = fused.entropy_and_log_sum_exp(q, k, scale=0.125, keys=keys)
    # q . E[k] / 8 over 64 channels, where means of keys near 0.1 are rounded to the dtype; what they share is 10 large,
    # is rounded in the log-sum-exp, and would be in the entropy
    assert (found - expected).abs().max() < rounding(64, 0.1 / 8, dtype)
    assert (log_sum_exp - expected_lse).abs().max() < rounding(64, 10 / 8, dtype)


def test_the_gradient_of_the_entropy_in_half_precision_does_not_either(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of `fused.entropy`, and that of attention by entropy, which has a backward pass of its own."""
    monkeypatch.setattr(tiled_attention, "ENTROPY_IN_FLOAT32", ())
    grads: list[list[Tensor]] = []
    for dtype in (torch.bfloat16, torch.float64):
        q, k, keys, visible_B1QK = keys_with_an_offset(torch.bfloat16)
        q, k = q.to(dtype).requires_grad_(), k.to(dtype).requires_grad_()
        entropy = fused.entropy(q, k, scale=0.125, keys=keys)
        v, steep = noise(*k.shape, seed=4).to(dtype), {"beta_of": lambda h: 1 + 100 * (h - h.detach())}
        out = fused.attention_by_entropy(q, k, v, scale=0.125, keys=keys, **steep)
        grads.append([])
        for value in (entropy, out):
            cotangent = noise(*value.shape, seed=5) * visible_B1QK.any(-1, keepdim=True)
            grads[-1] += torch.autograd.grad((value * cotangent).sum(), [q, k])
    # with the offset left in, those of the queries are off by seven times their size; the weights' rounding costs 0.06
    for half, exact, bound in zip(*grads, (0.02, 0.02, 0.1, 0.1), strict=True):
        assert (half - exact).norm() < bound * exact.norm()


# -- one number a row


@pytest.mark.parametrize("theta", [0.1, 0.7, 1.0, 3.0])
def test_temperature_divides_the_logits(theta: float) -> None:
    logits = causal_logits()
    expected = causal_by_row(logits, lambda row, _: scipy.special.softmax(row / theta))
    found = weights_of(build("temperature", temperature=theta), logits)
    assert (found - expected).abs().max() < 1e-6
    learned = weights_of(build("learned_temperature", temperature=theta, noise=0), logits)
    assert (learned - expected).abs().max() < 1e-6


def test_each_head_learns_its_own_temperature() -> None:
    softmax, logits, cotangent = build("learned_temperature").double(), causal_logits(), noise(2, 4, 12, 12, seed=9)
    thetas = softmax.log_temperature.detach().exp()
    assert len(set(thetas.tolist())) == 4
    found = weights_of(softmax, logits)
    expected = causal_by_row(logits, lambda row, h: scipy.special.softmax(row / float(thetas[h])))
    assert (found - expected).abs().max() < 1e-12
    (grad,) = torch.autograd.grad((found * cotangent).sum(), softmax.log_temperature)
    by_steps = finite_differences(lambda: (weights_of(softmax, logits) * cotangent).sum(), softmax.log_temperature)
    torch.testing.assert_close(grad, by_steps, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(("n_train", "known"), [(None, 8), (2, 2), (5, 5), (1000, 1000)])
def test_log_n_sharpens_rows_longer_than_those_of_training(n_train: int | None, known: int) -> None:
    logits = causal_logits()
    expected = causal_by_row(
        logits, lambda row, _: scipy.special.softmax(row * max(1.0, math.log(len(row)) / math.log(known)))
    )
    assert (weights_of(build("log_n", n_train=n_train), logits) - expected).abs().max() < 1e-6


@pytest.mark.parametrize("name", ["ssmax", "ssmax_bias"])
def test_ssmax_multiplies_by_the_logarithm_of_the_length(name: str) -> None:
    softmax, logits = build(name).double(), causal_logits()
    s, b = softmax.s.tolist(), [0.0] * 4 if softmax.b is None else softmax.b.tolist()
    assert (len(set(s)), any(b)) == (4, name == "ssmax_bias")
    expected = causal_by_row(logits, lambda row, h: scipy.special.softmax(row * (s[h] * math.log(len(row)) + b[h])))
    assert (weights_of(softmax, logits) - expected).abs().max() < 1e-6


def test_ssmax_starts_as_the_plain_softmax_at_the_trained_length() -> None:
    shape = attention_shape(train_length=12)
    for name in ("ssmax", "ssmax_bias"):
        softmax, logits = build(name, shape, noise=0), causal_logits()
        assert softmax.s.tolist() == pytest.approx([1 / math.log(12)] * 4)
        last = (weights_of(module, logits)[:, :, -1] for module in (softmax, build("softmax")))
        torch.testing.assert_close(*last, rtol=0, atol=1e-6)
        assert build(name, shape, noise=0, s=0.75).s.tolist() == [0.75] * 4


# -- one more key


def one_more_key(row: np.ndarray, null: float) -> np.ndarray:
    largest = max(null, row.max())
    return np.exp(row - largest) / (math.exp(null - largest) + np.exp(row - largest).sum())


@pytest.mark.parametrize("spread", [0.1, 2.0, 300.0])
def test_softmax1_and_sink_have_one_more_key_of_no_value(spread: float) -> None:
    logits, sink = causal_logits(spread=spread), build("sink").double()
    nulls = sink.logit.tolist()
    assert len(set(nulls)) == 4
    by_formula = causal_by_row(logits, lambda row, _: one_more_key(row, 0.0))
    assert (weights_of(build("softmax1"), logits) - by_formula).abs().max() < 1e-12
    assert (weights_of(build("sink", noise=0), logits) - by_formula).abs().max() < 1e-12
    by_formula = causal_by_row(logits, lambda row, h: one_more_key(row, nulls[h]))
    assert (weights_of(sink, logits) - by_formula).abs().max() < 1e-12


@pytest.mark.parametrize("bias", [None, "alibi", "t5_bias"])
@pytest.mark.parametrize("mode", KEYS)
def test_the_gradient_of_a_sink_is_that_of_finite_differences(bias: str | None, mode: str) -> None:
    sink, keys = build("sink").double(), KEYS[mode]
    q, k, v, cotangent = inputs(keys, 2)
    bias_of_rows = layer_bias(encoding_of(bias).double(), keys, q, k)

    def value() -> Tensor:
        return (sink(q, k, v, scale=SCALE, keys=keys, bias=bias_of_rows, rows={}) * cotangent).sum()

    (grad,) = torch.autograd.grad(value(), sink.logit)
    torch.testing.assert_close(grad, finite_differences(value, sink.logit), rtol=1e-6, atol=1e-8)


# -- projections on the simplex


def sparsemax_by_sorting(row: np.ndarray) -> np.ndarray:
    """Martins and Astudillo 2016, arXiv:1602.02068, algorithm 1."""
    ordered = np.sort(row)[::-1]
    support = max(k for k in range(1, len(row) + 1) if 1 + k * ordered[k - 1] > ordered[:k].sum())
    tau = (ordered[:support].sum() - 1) / support
    return np.maximum(row - tau, 0)


def entmax_by_bisection(row: np.ndarray, alpha: float) -> np.ndarray:
    """max((alpha - 1) e - tau, 0)^(1 / (alpha - 1)) with the tau at which it sums to one."""
    scaled = (alpha - 1) * row
    low, high = scaled.max() - 1, scaled.max()
    for _ in range(200):
        tau = (low + high) / 2
        total = (np.maximum(scaled - tau, 0) ** (1 / (alpha - 1))).sum()
        low, high = (tau, high) if total > 1 else (low, tau)
    return np.maximum(scaled - (low + high) / 2, 0) ** (1 / (alpha - 1))


@pytest.mark.parametrize("spread", [0.1, 1.0, 10.0])
def test_sparsemax_is_algorithm_1(spread: float) -> None:
    logits = causal_logits(spread=spread)
    found = weights_of(build("sparsemax"), logits)
    assert (found - causal_by_row(logits, lambda row, _: sparsemax_by_sorting(row))).abs().max() < 1e-12


@pytest.mark.parametrize("spread", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("alpha", [1.1, 1.25, 1.5, 1.75, 2])
def test_entmax_is_the_formula(alpha: float, spread: float) -> None:
    logits = causal_logits(spread=spread)
    expected = causal_by_row(logits, lambda row, _: entmax_by_bisection(row, alpha))
    assert (weights_of(build("alpha_entmax", alpha=alpha), logits) - expected).abs().max() < 1e-9
    if alpha == 1.5:
        assert (weights_of(build("entmax15"), logits) - expected).abs().max() < 1e-9


@pytest.mark.parametrize(("alpha", "name"), [(1, "softmax"), (1.5, "entmax15"), (2, "sparsemax")])
def test_entmax_has_its_named_cases(alpha: float, name: str) -> None:
    logits = causal_logits()
    found, expected = weights_of(build("alpha_entmax", alpha=alpha), logits), weights_of(build(name), logits)
    assert (found - expected).abs().max() < 1e-12
    away = -1 if alpha == 2 else 1
    close = [weights_of(build("alpha_entmax", alpha=alpha + away * e), logits) for e in (1e-3, 1e-2)]
    assert 0 < (close[0] - expected).abs().max() < (close[1] - expected).abs().max() < 0.1


def test_each_head_learns_its_own_alpha() -> None:
    softmax, logits = build("alpha_entmax_learned").double(), causal_logits(spread=1)
    alphas = [1 + scipy.special.expit(raw) for raw in softmax.raw_alpha.tolist()]
    assert len(set(alphas)) == 4
    expected = causal_by_row(logits, lambda row, h: entmax_by_bisection(row, alphas[h]))
    assert (weights_of(softmax, logits) - expected).abs().max() < 1e-9
    start = build("alpha_entmax_learned", noise=0, alpha=1.3).alpha()
    assert start.tolist() == pytest.approx([1.3] * 4)


def test_the_gradient_of_a_learned_alpha_is_that_of_finite_differences() -> None:
    softmax, logits, cotangent = build("alpha_entmax_learned").double(), causal_logits(), noise(2, 4, 12, 12, seed=9)

    def value() -> Tensor:
        return (weights_of(softmax, logits) * cotangent).sum()

    (grad,) = torch.autograd.grad(value(), softmax.raw_alpha)
    torch.testing.assert_close(grad, finite_differences(value, softmax.raw_alpha), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("tunables", [{}, {"alpha": 1.25, "delta": 0.5, "gamma_range": 1.0}, {"alpha": 2}], ids=str)
def test_as_entmax_is_entmax_of_scaled_logits(tunables: dict[str, float]) -> None:
    softmax, logits, x_BTD = build("as_entmax", **tunables).double(), causal_logits(), noise(2, 12, D_MODEL)
    alpha, delta, gamma_range = (
        tunables.get(key, usual) for key, usual in (("alpha", 1.5), ("delta", 1), ("gamma_range", 2))
    )
    x = x_BTD.numpy()
    w, w_0, u, u_0 = (p.detach().numpy() for p in (*softmax.beta.parameters(), *softmax.gamma.parameters()))
    found = weights_of(softmax, logits, softmax.row_parameters(x_BTD))
    for b, h, i in itertools.product(range(2), range(4), range(12)):
        beta = np.log1p(np.exp(w[h] @ x[b, i] + w_0[h]))
        gamma = gamma_range * np.tanh(u[h] @ x[b, i] + u_0[h])
        scale = delta + beta * np.log(1 + (i + 1)) ** gamma
        expected = entmax_by_bisection(scale * logits[b, h, i, : i + 1].numpy(), alpha)
        assert np.abs(found[b, h, i, : i + 1].detach().numpy() - expected).max() < 1e-9


# -- the others


def test_sigmoid_is_the_logistic_function_shifted_by_the_length() -> None:
    logits = causal_logits()
    expected = causal_by_row(logits, lambda row, _: scipy.special.expit(row - math.log(len(row))))
    assert (weights_of(build("sigmoid"), logits) - expected).abs().max() < 1e-12


@pytest.mark.parametrize("eps", [1e-6, 0.1])
@pytest.mark.parametrize("spread", [0.1, 2.0, 100.0])
def test_softpick_is_its_formula(eps: float, spread: float) -> None:
    def by_formula(row: np.ndarray, _: int) -> np.ndarray:
        wide = row.astype(np.longdouble)
        largest = np.exp(max(wide.max(), 0.0))
        powers = np.exp(wide) - 1
        return (np.maximum(powers, 0) / (np.abs(powers).sum() + eps * largest)).astype(float)

    logits = causal_logits(spread=spread)
    logits[:, :, :, :2] = torch.tensor([spread, -spread])
    found = weights_of(build("softpick", eps=eps), logits)
    assert (found - causal_by_row(logits, by_formula)).abs().max() < 1e-12


def test_softpick_of_negative_logits_is_zero() -> None:
    for spread in (1e-3, 1.0, 100.0):
        logits = (-spread * noise(1, 4, 3, 8).abs()).requires_grad_()
        alpha = weights_of(build("softpick"), logits)
        assert not alpha.any()
        (grad,) = torch.autograd.grad(alpha.sum(), logits)
        assert grad.isfinite().all()


def test_softpick_of_large_logits_stays_finite_in_float32() -> None:
    logits = torch.tensor([100.0, -100.0, 99.0, 0.0]).expand(1, 4, 1, 4)
    found = weights_of(build("softpick"), logits)[0, 0, 0].tolist()
    assert found == pytest.approx([1 / (1 + math.exp(-1)), 0, 1 / (1 + math.e), 0], abs=1e-5)


@pytest.mark.parametrize("k", [1, 3, 5])
def test_top_k_is_the_softmax_of_the_largest(k: int) -> None:
    def by_sorting(row: np.ndarray, _: int) -> np.ndarray:
        kept = np.argsort(row)[::-1][:k]
        weights = np.zeros_like(row)
        weights[kept] = scipy.special.softmax(row[kept])
        return weights

    logits = causal_logits()
    assert (weights_of(build("top_k", k=k), logits) - causal_by_row(logits, by_sorting)).abs().max() < 1e-12


@pytest.mark.parametrize("k", [12, 13, 1000])
def test_top_k_of_no_more_keys_than_k_is_softmax(k: int) -> None:
    logits = causal_logits()
    assert torch.equal(weights_of(build("top_k", k=k), logits), weights_of(build("softmax"), logits))


def test_top_k_keeps_ties() -> None:
    logits = torch.tensor([2.0, 1.0, 1.0, 1.0, 0.0]).double().expand(1, 4, 1, 5)
    found = weights_of(build("top_k", k=2), logits)[0, 0, 0].tolist()
    assert found == pytest.approx([*scipy.special.softmax([2, 1, 1, 1]), 0], abs=rounding(4, dtype=torch.float64))


def test_top_1_is_hard_and_so_is_a_cold_softmax() -> None:
    logits = causal_logits()
    hard = weights_of(build("hard"), logits)
    assert torch.equal(hard, weights_of(build("top_k", k=1), logits))
    assert (hard - weights_of(build("temperature", temperature=1e-5), logits)).abs().max() < 1e-9


def test_hard_attention_is_one_hot_shares_ties_and_has_a_gradient_of_zero() -> None:
    logits = causal_logits().requires_grad_()
    alpha = weights_of(build("hard"), logits)
    assert torch.equal(alpha, causal_by_row(logits, lambda row, _: np.eye(len(row))[row.argmax()]))
    (grad,) = torch.autograd.grad((alpha * noise(2, 4, 12, 12)).sum(), logits)
    assert not grad.any()
    tied = torch.tensor([1.0, 3.0, 3.0, 0.0, 3.0]).double().expand(1, 4, 1, 5)
    assert weights_of(build("hard"), tied)[0, 0, 0].tolist() == pytest.approx([0, 1 / 3, 1 / 3, 0, 1 / 3])


# -- bad input


NAN, INF = math.nan, math.inf
REJECTED: list[tuple[str, str, Any, dict[str, Any]]] = [
    *(("adaptive_temperature", "coefficients", bad, {}) for bad in ([], [NAN], [1.0, INF], [-INF, 1.0])),
    *(("adaptive_temperature", "min_beta", bad, {}) for bad in (0.999, -1.0, NAN, INF)),
    *(("adaptive_temperature", "min_entropy", bad, {}) for bad in (NAN, INF)),
    *(("adaptive_temperature", "entropy_range", bad, {}) for bad in ([1.0], [2.0, 1.0], [0.0, NAN], [0.0, INF])),
    *((name, "temperature", bad, {}) for name in ("temperature", "learned_temperature") for bad in (0, -1.0, NAN, INF)),
    *((name, "alpha", bad, {}) for name in ("alpha_entmax", "as_entmax") for bad in (0.99, -1.0, 2.01, 3, NAN, INF)),
    *(("alpha_entmax_learned", "alpha", bad, {"learned": True}) for bad in (1.0, 2.0, 2.5, NAN)),
    *(("as_entmax", name, bad, {}) for name in ("delta", "gamma_range") for bad in (NAN, INF)),
    *(("top_k", "k", bad, {}) for bad in (0, -1)),
    *(("ssmax", "s", bad, {}) for bad in (-0.1, NAN, INF)),
    *(("log_n", "n_train", bad, {}) for bad in (1, 0, -5)),
    *(("sink", "init_logit", bad, {}) for bad in (NAN, INF)),
    *(("softpick", "eps", bad, {}) for bad in (0.0, -1e-6, NAN, INF)),
]


@pytest.mark.parametrize(("name", "parameter", "bad", "others"), REJECTED, ids=str)
def test_a_bad_value_is_rejected_by_name(name: str, parameter: str, bad: Any, others: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"^{parameter}\b"):
        build(name, **{parameter: bad}, **others)


# -- what is said


FUSED = ["softmax", "sink", "softmax1", "adaptive_temperature", "temperature", "log_n", "ssmax"]


def attend_once(name: str, bias: str | None) -> None:
    keys = KEYS["plain causal"]
    q, k, v, _ = inputs(keys, 2)
    bias_of_rows = layer_bias(encoding_of(bias).double(), keys, q, k)
    build(name).double()(q, k, v, scale=SCALE, keys=keys, bias=bias_of_rows, rows={})


@pytest.mark.parametrize("bias", [None, "alibi", "fox"])
@pytest.mark.parametrize("name", FUSED)
def test_nothing_is_said_where_there_is_a_fused_form(name: str, bias: str | None) -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", RunsInBlocks)
        attend_once(name, bias)
    assert [str(warning.message) for warning in said] == []


@pytest.mark.parametrize(
    ("name", "bias", "combination"),
    [
        ("entmax15", None, "Entmax15 has no exact fused form"),
        ("hard", "alibi", "Hard with .* has no exact fused form"),
        *((name, "t5_bias", " with .* has no exact fused form") for name in FUSED),
    ],
)
def test_attention_in_blocks_says_so(name: str, bias: str | None, combination: str) -> None:
    with pytest.warns(RunsInBlocks, match=combination):
        attend_once(name, bias)


# -- far from home


def far_attention(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Keys, LinearBias]:
    """Eight heads of ALiBi, slopes 1/2 to 1/256, for the last 700 of 32,768 tokens."""
    q, k, v = (noise(1, 8, n, 8, seed=seed).to(dtype) for seed, n in enumerate((700, 32768, 32768)))
    keys = keys_of(700, 32768)
    bias = layer_bias(encoding_from("alibi", n_heads=8, n_key_heads=8).to(dtype), keys, q, k)
    assert isinstance(bias, LinearBias)
    assert bias.slopes.flatten().tolist() == [2.0**-h for h in range(1, 9)]
    return q, k, v, keys, bias


@pytest.mark.parametrize("name", ["softmax", "softmax1"])
@torch.no_grad()
def test_alibi_is_right_to_four_digits_at_32768_tokens(name: str) -> None:
    q, k, v, keys, bias = far_attention(torch.float32)
    softmax = build(name, attention_shape(n_heads=8, n_key_heads=8))
    found = softmax(q, k, v, scale=SCALE, keys=keys, bias=bias, rows={})
    q, k, v, _, _ = far_attention(torch.float64)
    chosen = torch.tensor([*range(0, 700, 23), 699])
    distance_QK = torch.arange(32768) - keys.q_pos_BQ[0, chosen, None]
    for h in range(8):
        logits = SCALE * q[0, h, chosen] @ k[0, h].mT + 2.0 ** -(h + 1) * distance_QK
        powers = logits.exp() * (distance_QK <= 0)
        expected = powers @ v[0, h] / (powers.sum(-1, keepdim=True) + (name == "softmax1"))
        assert (found[0, h, chosen] - expected).abs().max() < 1e-4


def test_steep_heads_drop_the_keys_that_weigh_nothing() -> None:
    q, k, v, keys, bias = far_attention(torch.float32)
    linear = LinearTerms(bias.slopes[None].expand(1, 8, 700, 1), *bias.coordinates(keys))
    tiles = list(Operands(q, k, v, SCALE, keys, linear).tiles())
    first_of_head = [
        min(block.first for tile in tiles if tile.g <= h < tile.h for block in tile.key_blocks) for h in range(8)
    ]
    assert first_of_head[0] > 31_000
    assert first_of_head == sorted(first_of_head, reverse=True), "the steeper, the more"
    rows_of_head = [sorted((tile.a, tile.b) for tile in tiles if tile.g <= h < tile.h) for h in range(8)]
    for ranges in rows_of_head:
        assert [row for a, b in ranges for row in range(a, b)] == list(range(700)), "each row of each head once"
    for h in range(8):  # what is dropped weighs less than the last digit
        distance_QK = torch.arange(32768) - keys.q_pos_BQ[0, ::13, None]
        logits = SCALE * q[0, h, ::13] @ k[0, h].mT + 2.0 ** -(h + 1) * distance_QK
        p = logits.masked_fill(distance_QK > 0, -torch.inf).softmax(-1)
        assert p[:, : first_of_head[h]].sum(-1).max() < torch.finfo(torch.float32).eps


def test_a_sink_that_reads_the_input_begins_as_the_sink_of_each_head() -> None:
    shape, keys = attention_shape(), keys_of(9, 9)
    own, plain = InputSink(shape, init_logit=0.7), Sink(shape, init_logit=0.7)
    q, k, v = (torch.randn(2, n, 9, 8) for n in (4, 2, 2))
    rows = own.row_parameters(torch.randn(2, 9, shape.d_model))
    options: dict[str, Any] = {"scale": 0.5, "keys": keys, "bias": None}
    # logarithms of sums that are added for each row, or for each head
    torch.testing.assert_close(
        own(q, k, v, **options, rows=rows), plain(q, k, v, **options, rows={}), rtol=0, atol=rounding(9, 2.0)
    )


def test_the_logit_of_a_sink_is_read_off_each_token_by_each_head() -> None:
    shape = attention_shape()
    sink = InputSink(shape, init_logit=None)
    x = torch.randn(1, 3, shape.d_model, dtype=torch.float64)
    with torch.no_grad():
        sink.weight.copy_(torch.randn_like(sink.weight))
    logits = torch.randn(1, shape.n_heads, 3, 3, dtype=torch.float64)
    sink = sink.double()
    found = sink.weights(logits, torch.ones(3, 3).tril().bool()[None, None], sink.row_parameters(x)).detach()
    for h, i in itertools.product(range(shape.n_heads), range(3)):
        s = float((sink.weight.detach()[h] * x[0, i]).sum())
        total = math.exp(s) + sum(math.exp(float(logits[0, h, i, j])) for j in range(i + 1))
        for j in range(i + 1):
            assert float(found[0, h, i, j]) == pytest.approx(math.exp(float(logits[0, h, i, j])) / total, rel=1e-12)
