"""Stick-breaking attention against a loop over the formula and the authors' code; and no encoding beside it."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from conftest import option
from helpers_attention import KEYS, build, keys_of, mask_of
from helpers_pe import golden, noise
from omegaconf import DictConfig
from rounding import rounding
from torch import Tensor

import roundround as rr
from roundround.config.options import load_option
from roundround.model.decoder import Decoder
from roundround.support.errors import UserError
from roundround.trained.models import build_decoder

ORDER = "StickBreaking takes positions from the order of the keys"


def by_loop(row: list[float], visible: list[bool]) -> list[float]:
    """Tan et al. 2024, arXiv:2410.17980: a share sigmoid(e) of what is left, from the latest key before the own one."""
    seen = [j for j, sees in enumerate(visible) if sees]
    weights, left = [0.0] * len(row), 1.0
    for j in reversed(seen[:-1]):
        share = 1 / (1 + math.exp(-row[j]))
        weights[j] = left * share
        left *= 1 - share
    if seen:
        weights[seen[-1]] = left
    return weights


def weights_of(logits: Tensor, visible: Tensor) -> Tensor:
    return build("stick_breaking").weights(logits, visible, {})


@pytest.mark.parametrize("mode", KEYS)
@pytest.mark.parametrize("spread", [0.1, 2.0, 30.0])
def test_weights_are_those_of_a_loop_over_the_formula(spread: float, mode: str) -> None:
    visible = mask_of(mode)
    n_batch, _, n_queries, n_keys = visible.shape
    logits = spread * noise(n_batch, 4, n_queries, n_keys)
    found = weights_of(logits, visible)
    for b, h, i in itertools.product(range(n_batch), range(4), range(n_queries)):
        expected = by_loop(logits[b, h, i].tolist(), visible[b, 0, i].tolist())
        assert found[b, h, i].tolist() == pytest.approx(expected, abs=1e-13)


def test_attention_is_the_output_of_the_authors_code_and_the_rest_of_the_own_value() -> None:
    n, n_channels = 7, 4
    x = torch.arange(3 * 2 * n * n_channels, dtype=torch.float64).reshape(3, 1, 2, n, n_channels)
    q, k, v = 2 * torch.sin(x * x)
    out = build("stick_breaking")(q, k, v, scale=n_channels**-0.5, keys=keys_of(n, n), bias=None, rows={})
    expected = torch.tensor(golden("softmax_stick_breaking"), dtype=torch.float64)
    # their logits and log-sigmoids are rounded to float32; up to 6 are added, whose sum is at most 10
    assert (out - expected).abs().max() < rounding(6, 10.0)


def test_equal_logits_give_halves_of_halves_and_the_latest_key_counts_most() -> None:
    visible = torch.tensor([[[[True, True, False, True, True]]]])
    found = weights_of(torch.zeros(1, 1, 1, 5, dtype=torch.float64), visible).flatten().tolist()
    assert found == pytest.approx([1 / 8, 1 / 4, 0, 1 / 2, 1 / 8], abs=1e-15)


def test_the_own_logit_does_not_count_and_a_large_logit_hides_what_lies_before_it() -> None:
    visible = torch.ones(1, 1, 1, 5, dtype=torch.bool)
    logits = torch.tensor([[[[1.0, 2.0, 1e4, -1e4, 7.0]]]])
    found = weights_of(logits, visible)
    assert found.flatten().tolist() == [0, 0, 1, 0, 0]
    logits[..., -1] = -3.0
    assert torch.equal(weights_of(logits, visible), found)


@pytest.mark.parametrize("mean", [-1e4, -8.0, 0.0, 8.0, 1e4])
def test_long_rows_in_float32_sum_to_one_and_have_finite_gradients(mean: float) -> None:
    logits = (mean + noise(1, 1, 4, 4096)).float().requires_grad_()
    alpha = weights_of(logits, torch.ones(1, 1, 4, 4096, dtype=torch.bool))
    exact = weights_of(logits.double(), torch.ones(1, 1, 4, 4096, dtype=torch.bool))
    assert (alpha.double().sum(-1) - 1).abs().max() < rounding(4096)
    assert (alpha - exact).abs().max() < rounding(4096)
    cotangent = noise(1, 1, 4, 4096)
    ours, theirs = (torch.autograd.grad((x * cotangent).sum(), logits)[0] for x in (alpha, exact))
    assert ours.isfinite().all()
    assert (ours - theirs).abs().max() < rounding(4096)


def test_its_gradient_is_that_of_finite_differences() -> None:
    logits, visible = 3 * noise(3, 2, 11, 11), mask_of("padded")
    assert torch.autograd.gradcheck(lambda rows: weights_of(rows, visible), logits.requires_grad_())


# -- no encoding beside it


def decoder(pe: str, softmax: str = "stick_breaking", n_layers: int = 2, **parts: Any) -> Decoder:
    torch.manual_seed(0)
    sizes = {"d_model": 16, "n_layers": n_layers, "n_heads": 2, "n_key_heads": 1, "d_mlp": 24, "train_length": 12}
    model = load_option("model", "tiny", **sizes)
    return build_decoder(model, option("pe", pe), option("softmax", softmax), n_vocab=20, **parts).eval()


@pytest.mark.parametrize("attention", [None, "latent"])
@pytest.mark.parametrize("pe", ["rope", "alibi", "learned", "nape", "rope_random"])
def test_a_decoder_with_an_encoding_is_refused(pe: str, attention: str | None) -> None:
    parts = {} if attention is None else {"attention": option("attention", attention)}
    with pytest.raises(UserError, match=rf"{ORDER} and cannot be combined with \w+; give pe=nope$"):
        decoder(pe, **parts)
    decoder("nope", **parts)


def test_only_the_layers_with_it_must_have_no_encoding() -> None:
    local = {"pe": load_option("pe", "rope"), "softmax": load_option("softmax", "softmax")}
    pattern = DictConfig({"local": local, "global": {}, "order": ["local", "global"]})
    decoder("nope", pattern=pattern)
    with pytest.raises(UserError, match=ORDER):
        decoder("rope", pattern=pattern)


@torch.no_grad()
def test_the_order_of_the_keys_is_the_position() -> None:
    tokens_BT = torch.tensor([[3, 5, 7, 11, 13]])
    swapped_BT = torch.tensor([[5, 3, 7, 11, 13]])
    plain, ordered = (
        (model(tokens_BT)[:, -1] - model(swapped_BT)[:, -1]).abs().max()
        for model in (decoder("nope", softmax, n_layers=1) for softmax in ("softmax", "stick_breaking"))
    )
    assert plain < 1e-6, "a layer without positions sees a set"
    assert ordered > 1e-4


def test_a_patch_with_it_is_refused_beside_an_encoding_and_leaves_the_model_as_it_was() -> None:
    model, tokens_BT = decoder("rope", "softmax"), torch.arange(9)[None]
    own = model(tokens_BT)
    with pytest.raises(UserError, match=f"{ORDER} and cannot be combined with RoPE; give pe=nope"):
        rr.patch(model, softmax="stick_breaking")
    assert torch.equal(model(tokens_BT), own)
    with rr.patch(model, softmax="stick_breaking", pe="nope") as patched:
        assert not torch.equal(patched(tokens_BT), own)
    assert torch.equal(model(tokens_BT), own)
    with pytest.raises(UserError, match=ORDER):
        rr.patch(decoder("nope"), pe="rope")
