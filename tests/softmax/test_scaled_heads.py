"""SSMax and ASEntmax that scale a part of the heads, and ASEntmax that begins at a given scale.

Shapes: B batch, T tokens, Q queries, K keys, H heads.
"""

from __future__ import annotations

import json
import math
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
    dense,
    encoding_of,
    inputs,
    layer_bias,
    mask_of,
    with_gradients,
)
from helpers_pe import noise, wave
from rounding import rounding
from test_normalisers import causal_by_row, causal_logits, entmax_by_bisection, weights_of

from roundround.config.options import load_option
from roundround.kernels.heads import n_last_heads
from roundround.model.decoder import Decoder
from roundround.pe.nape import NAPE
from roundround.trained.models import build_decoder

SCALED = ["ssmax", "ssmax_bias", "as_entmax"]


# -- a part of the heads


@pytest.mark.parametrize(
    ("n_heads", "share", "n"),
    [(4, 0.5, 2), (5, 0.5, 3), (1, 0.5, 1), (10, 0.7, 7), (4, 0.01, 1), (4, 1.0, 4), (12, 1 / 3, 4)],
)
def test_a_share_of_the_heads_is_rounded_up(n_heads: int, share: float, n: int) -> None:
    assert n_last_heads(n_heads, share) == n
    shape = attention_shape(n_heads=n_heads, n_key_heads=1)
    sizes = {name: len(p) for name, p in build("as_entmax", shape, scaled_heads=share).named_parameters()}
    assert sizes == {"beta.weight": n, "beta.bias": n, "gamma.weight": n, "gamma.bias": n}
    assert [len(p) for p in build("ssmax_bias", shape, scaled_heads=share).parameters()] == [n, n]


@pytest.mark.parametrize("n_heads", [1, 2, 3, 5, 8, 31])
def test_half_of_the_heads_are_those_that_nape_leaves_without_position(n_heads: int) -> None:
    shape = attention_shape(n_heads=n_heads, n_key_heads=1)
    softmax, slopes = build("ssmax", shape, scaled_heads=0.5), NAPE(shape, nope_heads=0.5).slopes()
    beta = softmax.beta(torch.full((1, 1, 1, 1), 1000.0), lambda: pytest.fail("it reads no entropy")).flatten()
    assert torch.equal(beta != 1, slopes == 0)


@pytest.mark.parametrize("name", ["ssmax", "ssmax_bias"])
def test_ssmax_of_a_part_leaves_the_first_heads_to_the_plain_softmax(name: str) -> None:
    softmax, logits = build(name, scaled_heads=0.75).double(), causal_logits()
    s, b = softmax.s.tolist(), [0.0] * 3 if softmax.b is None else softmax.b.tolist()

    found = weights_of(softmax, logits)
    expected = causal_by_row(
        logits,
        lambda row, h: scipy.special.softmax(row if h == 0 else row * (s[h - 1] * math.log(len(row)) + b[h - 1])),
    )
    assert (found - expected).abs().max() < 1e-12
    assert torch.equal(found[:, 0], weights_of(build("softmax"), logits)[:, 0])


def test_as_entmax_of_a_part_leaves_the_first_heads_to_the_plain_entmax() -> None:
    softmax, logits, x_BTD = build("as_entmax", scaled_heads=0.25).double(), causal_logits(), noise(2, 12, D_MODEL)
    found, plain = weights_of(softmax, logits, softmax.row_parameters(x_BTD)), weights_of(build("entmax15"), logits)
    assert torch.equal(found[:, :3], plain[:, :3])
    w, w_0, u, u_0 = (p.detach().numpy()[0] for p in (*softmax.beta.parameters(), *softmax.gamma.parameters()))
    for b in range(2):
        for i in range(12):
            x = x_BTD[b, i].numpy()
            beta, gamma = np.log1p(np.exp(w @ x + w_0)), 2 * np.tanh(u @ x + u_0)
            scale = 1 + beta * np.log(2 + i) ** gamma
            expected = entmax_by_bisection(scale * logits[b, 3, i, : i + 1].numpy(), 1.5)
            assert np.abs(found[b, 3, i, : i + 1].detach().numpy() - expected).max() < 1e-9


@pytest.mark.parametrize("name", SCALED)
def test_a_share_of_one_is_all_heads(name: str) -> None:
    whole, all_heads = build(name), build(name, scaled_heads=1.0)
    logits, x_BTD = causal_logits(), noise(2, 12, D_MODEL)
    found = [weights_of(softmax, logits, softmax.double().row_parameters(x_BTD)) for softmax in (whole, all_heads)]
    assert torch.equal(*found)


@pytest.mark.parametrize("name", SCALED)
@pytest.mark.parametrize("mode", KEYS)
def test_a_part_of_the_heads_beside_nape_is_the_dense_definition(name: str, mode: str) -> None:
    keys, encoding = KEYS[mode], encoding_of("nape").double()
    q, k, v, cotangent = inputs(keys, 2)
    softmax, bias = build(name, scaled_heads=0.5).double(), layer_bias(encoding, keys, q, k)
    x_BTD = noise(3, keys.n_queries, D_MODEL)
    assert softmax.has_fused_form(q, keys, bias) == name.startswith("ssmax")
    found = softmax(q, k, v, scale=SCALE, keys=keys, bias=bias, rows=softmax.row_parameters(x_BTD))
    expected = dense(softmax, q, k, v, keys, bias, softmax.row_parameters(x_BTD), mask_of(mode))
    leaves = [q, k, v, *softmax.parameters()]
    ours, theirs = (with_gradients(out, cotangent, leaves) for out in (found, expected))
    for mine, its in zip(ours, theirs, strict=True):
        assert its.any()
        assert (mine - its).abs().max() < 1e-10


# -- the authors' code


def test_as_entmax_beside_nape_has_the_weights_of_the_authors_code() -> None:
    golden = json.loads((ROOT / "tests" / "golden" / "softmax_as_entmax_nape.json").read_text())["value"]
    shape = attention_shape(n_heads=5, n_key_heads=5, head_dim=4, d_model=6)
    softmax = build("as_entmax", shape, scaled_heads=0.5).double()
    with torch.no_grad():
        for parameter, step in zip(softmax.parameters(), (1.1, 0.7, 0.6, 1.9), strict=True):
            parameter.copy_(wave(*parameter.shape, step=step))
    q, k, x_BTD = 1.5 * wave(1, 5, 9, 4, step=1.7), 1.5 * wave(1, 5, 9, 4, step=0.9), wave(1, 9, 6, step=1.3)
    slopes_H11 = NAPE(shape, nope_heads=0.5).slopes(torch.float64)[:, None, None]
    logits = q @ k.mT / 2 + slopes_H11 * (torch.arange(9) - torch.arange(9)[:, None])
    found = weights_of(softmax, logits, softmax.row_parameters(x_BTD))[0]
    for h in range(5):
        for i in range(9):
            assert found[h, i, : i + 1].tolist() == pytest.approx(golden[h][i], abs=2e-9), f"head {h}, token {i}"


# -- where the scale begins


def decoder_with(softmax: str, **numbers: Any) -> Decoder:
    model = load_option("model", "tiny", d_model=32, n_layers=2, d_mlp=24, initializer_range=0.4)
    torch.manual_seed(0)
    return build_decoder(
        model, load_option("pe", "nape"), load_option("softmax", softmax, **numbers), n_vocab=97
    ).eval()


@pytest.mark.parametrize("scaled_heads", [None, 0.5])
@torch.no_grad()
def test_a_start_at_one_is_the_entmax15_model_at_every_length(scaled_heads: float | None) -> None:
    fresh = decoder_with("as_entmax", delta=0.0, start=1.0, scaled_heads=scaled_heads)
    plain, drawn = decoder_with("entmax15"), decoder_with("as_entmax")
    for length in (1, 2, 3, 17, 64, 300):
        tokens_BT = torch.randint(97, (2, length), generator=torch.Generator().manual_seed(length))
        assert torch.equal(fresh(tokens_BT), plain(tokens_BT)), length
        assert length == 1 or not torch.equal(drawn(tokens_BT), plain(tokens_BT))


@pytest.mark.parametrize(("delta", "start"), [(0.0, 1.0), (1.0, 1.05), (1.0, 3.0), (-2.0, 0.5), (0.0, 900.0)])
def test_the_scale_begins_where_start_says_for_every_token_and_length(delta: float, start: float) -> None:
    softmax, logits = build("as_entmax", delta=delta, start=start, noise=0), causal_logits(spread=2 / start)
    found = weights_of(softmax, logits, softmax.row_parameters(noise(2, 12, D_MODEL, dtype=torch.float32)))
    expected = causal_by_row(logits, lambda row, _: entmax_by_bisection(start * row, 1.5))
    assert (found - expected).abs().max() < rounding(size=float(logits.abs().max()) * start)


def test_a_start_passes_gradients_to_every_parameter() -> None:
    softmax, x_BTD = build("as_entmax", delta=0.0, start=1.0, noise=0).double(), noise(2, 12, D_MODEL)
    weights = weights_of(softmax, causal_logits(), softmax.row_parameters(x_BTD))
    for grad in torch.autograd.grad((weights * noise(2, 4, 12, 12, seed=9)).sum(), list(softmax.parameters())):
        assert grad.flatten(1).any(-1).all() if grad.dim() > 1 else grad.all()


@pytest.mark.parametrize("start", [1.0, 0.5, -1.0, math.nan, math.inf])
def test_a_start_lies_above_delta(start: float) -> None:
    with pytest.raises(ValueError, match=rf"^start={start} must be a finite number above delta=1.0, or null"):
        build("as_entmax", start=start)


@pytest.mark.parametrize("name", SCALED)
@pytest.mark.parametrize("share", [0, -0.5, 1.01, 2, math.nan, math.inf])
def test_scaled_heads_is_a_share(name: str, share: float) -> None:
    with pytest.raises(ValueError, match=rf"^scaled_heads={share} must be a share of the heads, above 0 and at most 1"):
        build(name, scaled_heads=share)
