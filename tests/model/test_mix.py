"""Mixing of tokens: each form equals its formula, sees no later token, and stays within a text and a document."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from conftest import beside, option, variants_alone
from helpers_attention import covering
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn

import roundround as rr
from roundround.config.options import load_option
from roundround.kernels.documents import documents_of
from roundround.kernels.keys import AttentionShape, Keys
from roundround.model.decoder import Decoder
from roundround.model.mix import Earlier, KeyOffset, ShortConvolution, convolved
from roundround.support.errors import UserError
from roundround.trained.models import build_decoder

SMALL = {"d_model": 32, "n_layers": 2, "n_heads": 4, "n_key_heads": 2, "d_mlp": 24, "train_length": 64}
MIXES = [name for name in variants_alone("mix") if name != "none"]
ENCODINGS, NORMALISERS = variants_alone("pe"), variants_alone("softmax")
LAYERS = ["latent", "diff", "diff_v1"]
PAIRS = [
    *product([*LAYERS, *MIXES], ENCODINGS, ["softmax"]),
    *((layer, beside(name), name) for layer, name in product([*LAYERS, "canon"], NORMALISERS)),
]
ALONE = {
    **{f"mix={name}": {"mix": name, "pe": "nope"} for name in MIXES},
    "rope_values": {"pe": "rope_values"},
    "latent": {"attention": "latent"},
    "latent with canon": {"attention": "latent", "mix": "canon"},
    "gated_deltanet": {"attention": "gated_deltanet"},
    "gated_deltanet with canon": {"attention": "gated_deltanet", "mix": "canon"},
    "selective_rope": {"pe": "selective_rope"},
    "diff": {"attention": "diff", "softmax": "entmax15"},
    "diff_v1 with cope": {"attention": "diff_v1", "pe": "cope"},
}


def decoder(pattern: DictConfig | None = None, **chosen: str) -> Decoder:
    """Large weights, and learned shares that are not zero: every part acts."""
    torch.manual_seed(0)
    parts: Any = {part: option(part, name) for part, name in ({"pe": "rope", "softmax": "softmax"} | chosen).items()}
    sizes = load_option("model", "tiny", **SMALL, initializer_range=0.2)
    model = build_decoder(sizes, n_vocab=50, pattern=pattern, **parts)
    for parameter in model.parameters():
        if not parameter.any():
            nn.init.ones_(parameter)
    return model.eval().double()


def tokens(n_texts: int = 2, n_tokens: int = 40) -> Tensor:
    return torch.randint(50, (n_texts, n_tokens), generator=torch.Generator().manual_seed(0))


@pytest.fixture(params=ALONE)
def model(request: pytest.FixtureRequest) -> Decoder:
    return decoder(**ALONE[request.param])


def test_no_token_sees_a_later_one(model: Decoder) -> None:
    x = model.embed_tokens(tokens()).detach().requires_grad_()
    model.embed_tokens.forward = lambda _: x  # type: ignore[method-assign]
    model(tokens())[:, 20].sum().backward()
    assert x.grad is not None
    assert x.grad[:, :21].abs().amin(-1).amin() > 0, "each token and those before it count"
    assert not x.grad[:, 21:].any()


@torch.no_grad()
def test_a_cache_changes_no_logit(model: Decoder) -> None:
    valid_BT = torch.ones(2, 40, dtype=torch.bool)
    valid_BT[0, :5] = False
    cache, parts, expected = model.empty_cache(), [], model.unembed(model.hidden(tokens(), valid_BT=valid_BT))
    for a, b in ((0, 3), (3, 4), (4, 30), (30, 31), (31, 40)):
        parts.append(model.unembed(model.hidden(tokens()[:, a:b], valid_BT=valid_BT[:, a:b], cache=cache)))
    torch.testing.assert_close(torch.cat(parts, 1)[valid_BT], expected[valid_BT])
    assert (cache.n_read, cache.n_texts) == (40, 2)


@torch.no_grad()
def test_padding_changes_no_logit(model: Decoder) -> None:
    valid_BT = torch.ones(1, 45, dtype=torch.bool)
    valid_BT[0, :5] = False
    padded = torch.cat([torch.full((1, 5), 7), tokens(1)], 1)
    found = model.unembed(model.hidden(padded, valid_BT=valid_BT))
    torch.testing.assert_close(found[:, 5:], model(tokens(1)))


@torch.no_grad()
def test_documents_do_not_see_each_other(model: Decoder) -> None:
    ends_BT = torch.zeros(2, 40, dtype=torch.bool)
    ends_BT[0, [0, 2, 20]] = ends_BT[1, 30] = True
    found = model(tokens(), ends_BT=ends_BT)
    for text in range(2):
        first = 0
        for end in [*ends_BT[text].nonzero()[:, 0].tolist(), 39]:
            part = slice(first, first := end + 1)
            torch.testing.assert_close(found[text : text + 1, part], model(tokens()[text : text + 1, part]))


@torch.no_grad()
def test_a_cache_of_latents_within_a_window_changes_no_logit() -> None:
    kind = {"window": 6}
    pattern = OmegaConf.create({"order": ["local"], "last": None, "whole": False, "local": kind})
    model = decoder(attention="latent", pattern=pattern)
    expected, cache, parts = model(tokens()), model.empty_cache(), []
    for a, b in ((0, 9), (9, 10), (10, 25), (25, 40)):
        parts.append(model.unembed(model.hidden(tokens()[:, a:b], cache=cache)))
    torch.testing.assert_close(torch.cat(parts, 1), expected)
    assert cache.layers[0].first > 0, "latents that no query sees are dropped"


@covering("layer,pe,softmax", PAIRS)
@torch.no_grad()
def test_every_encoding_and_normaliser_fits_the_other_layers(layer: str, pe: str, softmax: str) -> None:
    """A cache and documents change no logit."""
    if (layer, pe) == ("latent", "rope_values"):
        with pytest.raises(UserError, match="latent attention keeps none"):
            decoder(attention=layer, pe=pe)
        return
    model = decoder(pe=pe, softmax=softmax, **{"attention" if layer in LAYERS else "mix": layer})
    tokens_BT = torch.stack([torch.randperm(50, generator=torch.Generator().manual_seed(n))[:20] for n in range(2)])
    expected, cache, parts = model(tokens_BT), model.empty_cache(), []
    for a, b in ((0, 7), (7, 8), (8, 20)):
        parts.append(model.unembed(model.hidden(tokens_BT[:, a:b], cache=cache)))
    torch.testing.assert_close(torch.cat(parts, 1), expected)
    ends_BT = torch.zeros(2, 20, dtype=torch.bool)
    ends_BT[:, 7] = True
    torch.testing.assert_close(model(tokens_BT, ends_BT=ends_BT)[:, 8:], model(tokens_BT[:, 8:]))


@torch.no_grad()
def test_samples_of_a_cache_go_their_own_ways(model: Decoder) -> None:
    cache = model.empty_cache()
    model.hidden(tokens()[:, :30], cache=cache)
    cache.select(torch.tensor([1, 1, 0]))
    branch = cache.branch()
    more = tokens()[[1, 1, 0], 30:]
    found = model.unembed(model.hidden(more, cache=cache))
    torch.testing.assert_close(found, model(tokens())[[1, 1, 0], 30:])
    again = model.unembed(model.hidden(more.flip(1), cache=branch))
    whole = torch.cat([tokens()[[1, 1, 0], :30], more.flip(1)], 1)
    torch.testing.assert_close(again, model(whole)[:, 30:])


@pytest.mark.parametrize("attention", ["latent", "gated_deltanet"])
def test_another_softmax_or_encoding_reaches_the_layers_that_use_one(attention: str) -> None:
    """A latent layer, or a layer of attention behind linear ones; the model is itself again afterwards."""
    model = decoder(attention=attention)
    if attention == "gated_deltanet":
        with pytest.raises(UserError, match="nothing to patch"):
            rr.patch(model, softmax="entmax15")
        model = hybrid()
    with torch.no_grad():
        before = model(tokens())
        for options in ({"softmax": "entmax15"}, {"pe": "nope"}, {"pe": "rope", "theta": 500.0}):
            with rr.patch(model, **options):
                assert (model(tokens()) - before).abs().max() > 1e-3
        assert torch.equal(model(tokens()), before)
    if attention == "latent":
        with pytest.raises(UserError, match="latent attention keeps none"):
            rr.patch(model, pe="rope_values")


def hybrid() -> Decoder:
    """A linear layer, then one of attention."""
    torch.manual_seed(0)
    linear = {"pe": None, "softmax": None, "attention": option("attention", "gated_deltanet")}
    pattern = OmegaConf.create({"linear": linear, "attention": {"pe": None}, "order": ["linear", "attention"]})
    parts: Any = {"pe": option("pe", "rope"), "softmax": option("softmax", "softmax"), "pattern": pattern}
    return build_decoder(load_option("model", "tiny", **SMALL, initializer_range=0.2), n_vocab=50, **parts).eval()


def test_the_state_of_a_linear_layer_does_not_grow() -> None:
    model, sizes = decoder(attention="gated_deltanet"), []
    with torch.no_grad():
        for n in (10, 40):
            cache = model.empty_cache()
            model.hidden(tokens(1, n), cache=cache)
            sizes.append(cache.n_bytes)
    assert sizes[0] == sizes[1]


def test_a_latent_cache_holds_one_vector_for_each_token() -> None:
    """32 channels of the latent and 16 that rotate, whatever the number of heads; half as many again are spare."""
    model = decoder(attention="latent")
    with torch.no_grad():
        cache = model.empty_cache()
        model.hidden(tokens(1), cache=cache)
    assert cache.n_bytes == 2 * (40 + 32) * (32 + 16) * 8


def test_a_convolution_is_that_of_torch() -> None:
    x_BTW = torch.randn(2, 12, 5, dtype=torch.float64)
    weight_W1N = torch.randn(5, 1, 4, dtype=torch.float64)
    pos = torch.arange(12)[None]
    found = convolved(x_BTW, weight_W1N, Earlier(Keys(q_pos_BQ=pos, k_pos_BK=pos), None), "here")
    expected = nn.functional.conv1d(x_BTW.mT, weight_W1N, padding=3, groups=5)[..., :12].mT
    torch.testing.assert_close(found, expected)


def test_key_offset_takes_the_slow_half_of_each_key_from_the_token_before() -> None:
    shape = AttentionShape(n_heads=2, n_key_heads=2, head_dim=8, d_model=16, layer=0, train_length=8)
    x_BTW, pos = torch.arange(48.0).view(1, 3, 16), torch.arange(3)[None]
    made = KeyOffset(shape, {"keys": 16})(x_BTW, "keys", Earlier(Keys(q_pos_BQ=pos, k_pos_BK=pos), None))
    moved = [2, 3, 6, 7, 10, 11, 14, 15]  # pairs 2 and 3 of each head: channels (2, 6) and (3, 7)
    kept = [channel for channel in range(16) if channel not in moved]
    assert torch.equal(made[..., kept], x_BTW[..., kept])
    assert torch.equal(made[0, 1:, moved], x_BTW[0, :-1, moved])
    assert not made[0, 0, moved].any()


def test_a_mix_without_a_site_or_an_earlier_token_is_refused() -> None:
    shape = AttentionShape(n_heads=2, n_key_heads=2, head_dim=8, d_model=16, layer=0, train_length=8)
    options = dict.fromkeys(("before_attention", "inside_attention", "before_mlp", "inside_mlp"), False)
    with pytest.raises(ValueError, match="nothing to mix"):
        ShortConvolution(shape, {"input": 16}, **options, width=4, residual=True)
    with pytest.raises(ValueError, match="width=1 must be at least 2"):
        ShortConvolution(shape, {"input": 16}, **options | {"before_attention": True}, width=1, residual=True)


def test_documents_of_one_text_are_marked() -> None:
    """What `Earlier` reads of documents: the first token of each."""
    ends_BT = torch.tensor([[False, True, False, False]])
    documents, x = documents_of(ends_BT, lambda pos: pos), torch.arange(1.0, 5.0).view(1, 4, 1)
    keys = Keys(q_pos_BQ=documents.pos_BT, k_pos_BK=documents.pos_BT, documents=documents)
    before, two_before = Earlier(keys, None)(x, 2, "here")
    assert before.flatten().tolist() == [0, 1, 0, 3]
    assert two_before.flatten().tolist() == [0, 0, 0, 0]


def test_rotated_values_depend_on_distances_alone() -> None:
    """The rotation of the outputs takes back that of the values: with NoPE's weights the logits would move."""
    model = decoder(pe="rope_values")
    with torch.no_grad():
        found = [model.unembed(model.hidden(tokens(), pos_BT=torch.arange(40)[None] + shift)) for shift in (0, 1000)]
    torch.testing.assert_close(found[0], found[1])
    assert (found[0] - decoder(pe="rope")(tokens())).abs().max() > 1e-3


def test_a_linear_layer_keeps_its_state_over_padding() -> None:
    """Tokens that are padding in the middle of a text neither decay the state nor write to it."""
    model = decoder(attention="gated_deltanet")
    for layer in model.layers:
        layer.self_attn.conv.data[..., :-1] = 0  # the convolutions count padding as distance
    valid_BT = torch.ones(1, 40, dtype=torch.bool)
    valid_BT[0, 10:15] = False
    with torch.no_grad():
        found = model.unembed(model.hidden(tokens(1), valid_BT=valid_BT))
        expected = model(tokens(1)[valid_BT][None])
    torch.testing.assert_close(found[valid_BT][None], expected)
