"""The forget gates of FoX, and attention with them."""

from __future__ import annotations

import math

import pytest
import torch
from helpers_pe import attention_shape, build, golden, keys_at, layer_bias, noise, positions, wave

from roundround.kernels.bias import LinearBias
from roundround.kernels.tiles import LinearTerms, Operands
from roundround.model.block import LayerKind
from roundround.model.decoder import Decoder
from roundround.pe.fox import FoX
from roundround.softmax.base import AttentionSoftmax
from roundround.softmax.sigmoid import Sigmoid
from roundround.softmax.softmax import Softmax
from roundround.softmax.softmax1 import Softmax1


def test_attention_is_that_of_the_authors_code_gradients_included() -> None:
    expected = {name: torch.tensor(x, dtype=torch.float64) for name, x in golden("pe_fox_attention").items()}
    q, k, v = (wave(1, 2, 6, 4, step=step).requires_grad_() for step in (1.7, 0.9, 2.3))
    log_gate = torch.nn.functional.logsigmoid(2 * wave(1, 2, 6, step=1.1)).requires_grad_()
    t_BHT = -log_gate.cumsum(-1)
    bias = LinearBias(torch.ones(1, 1, 1, dtype=torch.float64), t_BHT, t_BHT)
    softmax = Softmax(attention_shape(n_heads=2, n_key_heads=2, head_dim=4))
    out = softmax(q, k, v, scale=0.5, keys=keys_at(positions(6)), bias=bias, rows={})
    grads = torch.autograd.grad((out * wave(1, 2, 6, 4, step=0.7)).sum(), [log_gate, q, k])
    for name, found in zip(("out", "d_log_gate", "dq", "dk"), (out, *grads), strict=True):
        torch.testing.assert_close(found[0].detach(), expected[name], rtol=1e-9, atol=1e-12)


def test_bias_is_the_sum_of_the_log_gates_in_between() -> None:
    encoding, x_BTD = build("fox").double().requires_grad_(False), noise(1, 9, 64)
    torch.nn.init.normal_(encoding.gate_weight)
    keys = keys_at(positions(9))
    found_HTT = layer_bias(encoding, keys, x_BTD).block(keys, 0, 9)[0].detach()
    for h in range(4):
        gates = [float(encoding.gate_weight[h] @ x_BTD[0, t] + encoding.gate_bias[h]) for t in range(9)]
        for i in range(9):
            for j in range(i + 1):
                total = sum(-math.log1p(math.exp(-gate)) for gate in gates[j + 1 : i + 1])
                assert found_HTT[h, i, j].item() == pytest.approx(total, rel=1e-10, abs=1e-12)


def test_gates_that_are_open_are_no_encoding() -> None:
    encoding, keys = build("fox", init_std=0.0).double(), keys_at(positions(20))
    torch.nn.init.constant_(encoding.gate_bias, 40.0)
    assert layer_bias(encoding, keys).block(keys, 0, 20).abs().max() < 21 * math.exp(
        -40
    )  # at most 20 gates, each shut by e^-40


def test_heads_start_near_alibi_with_a_slope_of_ln_2() -> None:
    encoding, keys = build("fox", init_std=0.0).double(), keys_at(positions(20))
    bias = LinearBias(torch.full((1, 1, 1), math.log(2), dtype=torch.float64))
    expected = bias.block(keys, 0, 20).expand(1, 4, 20, 20)
    torch.testing.assert_close(layer_bias(encoding, keys).block(keys, 0, 20).detach(), expected)


@pytest.mark.parametrize("normaliser", [Softmax, Softmax1, Sigmoid])
def test_padding_changes_nothing(normaliser: type[AttentionSoftmax]) -> None:
    """Neither before a text, nor behind it, nor between its tokens: a gate of padding forgets nothing."""
    torch.manual_seed(0)
    decoder = fox_decoder(normaliser)
    tokens = torch.randint(50, (1, 11))
    alone = decoder.hidden(tokens)
    for before, after in ((3, 0), (0, 4), (2, 5)):
        padded = torch.cat([torch.full((1, before), 7), tokens, torch.full((1, after), 9)], 1)
        valid = torch.zeros(padded.shape, dtype=torch.bool)
        valid[:, before : before + 11] = True
        found = decoder.hidden(padded, valid_BT=valid)[:, before : before + 11]
        torch.testing.assert_close(found, alone, rtol=1e-9, atol=1e-9)
    in_between = torch.cat([tokens[:, :5], torch.full((1, 3), 7), tokens[:, 5:]], 1)
    valid = torch.tensor([[True] * 5 + [False] * 3 + [True] * 6])
    found = decoder.hidden(in_between, valid_BT=valid)[valid]
    torch.testing.assert_close(found, alone[0], rtol=1e-9, atol=1e-9)


def test_a_long_text_keeps_the_digits_of_its_sums() -> None:
    """c falls to -1e4 here; in float32 the sum alone would be off by 1e-3."""
    n, shape = 4096, attention_shape(n_heads=1, n_key_heads=1, head_dim=8)
    encoding = build("fox", shape)
    torch.nn.init.constant_(encoding.gate_bias, -3.0)
    x_BTD = noise(1, n, 64, dtype=torch.float32)
    q, k, v = (noise(1, 1, n, 8, seed=seed) for seed in range(3))
    keys, softmax = keys_at(positions(n)), Softmax(shape)
    exact = softmax(q, k, v, scale=1.0, keys=keys, bias=layer_bias(encoding.double(), keys, x_BTD.double()), rows={})
    bias = layer_bias(encoding.float(), keys, x_BTD)
    found = softmax(q.float(), k.float(), v.float(), scale=1.0, keys=keys, bias=bias, rows={})
    assert (found - exact).abs().max() < 1e-4


def test_keys_that_are_forgotten_are_left_out() -> None:
    n, shape = 4096, attention_shape(n_heads=2, n_key_heads=1, head_dim=8)
    encoding, keys = build("fox", shape), keys_at(positions(n))
    bias = layer_bias(encoding, keys, noise(1, n, 64, dtype=torch.float32))
    q, k = noise(1, 2, n, 8, dtype=torch.float32), noise(1, 1, n, 8, dtype=torch.float32)
    linear = LinearTerms(bias.slopes.expand(1, 2, n, 1), *(t.detach() for t in bias.coordinates(keys)))
    tiles = list(Operands(q, k, k, 0.3, keys, linear).tiles())
    last = max(tiles, key=lambda tile: tile.b)
    assert min(block.first for block in last.key_blocks) > n // 2


def fox_decoder(normaliser: type[AttentionSoftmax]) -> Decoder:
    """Two layers, two key heads for four heads, gates that are far from alike."""
    decoder = Decoder(
        n_vocab=50,
        kinds=[LayerKind(make_encoding=lambda shape: FoX(shape, init_std=0.5), make_softmax=normaliser)],
        d_model=32,
        n_layers=2,
        n_heads=4,
        n_key_heads=2,
        head_dim=8,
        d_mlp=40,
        train_length=16,
        tied_embeddings=True,
        geglu=False,
        scaled_embeddings=False,
        norm_eps=1e-5,
        initializer_range=0.2,
    )
    return decoder.double().eval()


def test_each_layer_has_its_own_gates() -> None:
    decoder = fox_decoder(Softmax)
    assert len(decoder.encodings) == 2
    decoder(torch.randint(50, (2, 9)), targets_BT=torch.randint(50, (2, 9))).sum().backward()
    for encoding in decoder.encodings:
        assert encoding.gate_weight.grad.any()
        assert encoding.gate_bias.grad.any()


@pytest.mark.parametrize("init_std", [-1.0, math.inf, math.nan])
def test_the_deviation_must_not_be_negative(init_std: float) -> None:
    with pytest.raises(ValueError, match=f"^init_std={init_std} must be a finite number, 0 or above$"):
        build("fox", init_std=init_std)
