"""A cache changes no logit: for every encoding, normaliser and pattern, however a text is cut into calls.

Shapes: B batch, T tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest
import torch
from conftest import beside, option, variants, variants_alone
from helpers_attention import covering
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig
from torch import Tensor

from roundround.config.options import conf_dir, load_option
from roundround.model.block import LayerKind
from roundround.model.decoder import Decoder
from roundround.pe.base import PositionalEncoding
from roundround.softmax.softmax import Softmax
from roundround.trained.models import build_decoder
from roundround.trained.patterns import parts_of

N_VOCAB = 101
PIECES = (64, 7, 1, 1, 1)
TOLERANCE = 1e-5  # logits are about 1, and a normaliser may amplify what two layers round
SMALL = {
    **{"d_model": 32, "n_layers": 2, "n_heads": 4, "n_key_heads": 2, "d_mlp": 24, "train_length": 128},
    "initializer_range": 0.1,
}
ENCODINGS, NORMALISERS = variants_alone("pe"), variants_alone("softmax")
BY_ORDER = [name for name in NORMALISERS if beside(name) == "nope"]
PATTERNS = sorted(name for name in variants("pattern") if name not in ("uniform", "kind/layer"))


def decoder(pe: str = "rope", softmax: str = "softmax", pattern: DictConfig | None = None, **sizes: Any) -> Decoder:
    torch.manual_seed(0)
    model = load_option("model", "tiny", **(SMALL | sizes))
    return build_decoder(model, option("pe", pe), option("softmax", softmax), N_VOCAB, pattern=pattern).eval()


def tokens(n_texts: int = 2, n_tokens: int = sum(PIECES)) -> Tensor:
    """Texts without a token that stands twice: without positions their logits tie, and top_k would have to choose."""
    generator = torch.Generator().manual_seed(0)
    return torch.stack([torch.randperm(N_VOCAB, generator=generator)[:n_tokens] for _ in range(n_texts)])


def padded(n_texts: int = 2, n_tokens: int = sum(PIECES), n_pad: int = 5) -> Tensor:
    """Which tokens are no padding: the first text begins after some."""
    valid_BT = torch.ones(n_texts, n_tokens, dtype=torch.bool)
    valid_BT[0, :n_pad] = False
    return valid_BT


@torch.no_grad()
def in_pieces(
    model: Decoder, tokens_BT: Tensor, pieces: Sequence[int], valid_BT: Tensor | None = None, length: int | None = None
) -> Tensor:
    """Logits of a text that is read in pieces of so many tokens."""
    cache, found, start = model.empty_cache(length=length), [], 0
    for n in pieces:
        part = slice(start, start := start + n)
        valid = None if valid_BT is None or bool(valid_BT[:, part].all()) else valid_BT[:, part]
        found.append(model.unembed(model.hidden(tokens_BT[:, part], valid_BT=valid, cache=cache)))
    return torch.cat(found, 1)


@torch.no_grad()
def at_once(model: Decoder, tokens_BT: Tensor, valid_BT: Tensor | None = None) -> Tensor:
    return model.unembed(model.hidden(tokens_BT, valid_BT=valid_BT))


def assert_alike(found: Tensor, expected: Tensor, valid_BT: Tensor | None = None) -> None:
    if valid_BT is not None:
        found, expected = found[valid_BT], expected[valid_BT]
    assert expected.abs().max() > 0.1, "logits that say something"
    torch.testing.assert_close(found, expected, rtol=TOLERANCE, atol=TOLERANCE)


@covering(
    "pe,softmax",
    ENCODINGS,
    [name for name in NORMALISERS if name not in BY_ORDER],
    also=[("nope", name) for name in BY_ORDER],
)
def test_a_cache_changes_no_logit(pe: str, softmax: str) -> None:
    """Left-padded texts, grouped queries, in pieces of 64, 7 and 1; the tests below have layers above each other."""
    model, valid_BT = decoder(pe, softmax, n_layers=1), padded()
    expected = at_once(model, tokens(), valid_BT)
    assert_alike(in_pieces(model, tokens(), PIECES, valid_BT), expected, valid_BT)


SEEN = {
    "five": {"window": 5},
    "itself": {"window": 1},
    "a chunk": {"chunk": 6},
    "four of a chunk": {"chunk": 6, "window": 4},
}


def local(**sizes: int) -> DictConfig:
    """A layer that sees so far, then one that sees all."""
    kind = {"pe": None, "softmax": None, "qk_norm": None, "gate": None}
    return DictConfig({"local": kind | sizes, "global": dict(kind), "order": ["local", "global"]})


@covering("pe,softmax,seen", [*product(ENCODINGS, ["softmax"]), *((beside(name), name) for name in NORMALISERS)], SEEN)
def test_a_window_keeps_what_its_queries_see(pe: str, softmax: str, seen: str) -> None:
    """Normalisers that count positions count those that the cache has dropped."""
    sizes = SEEN[seen]
    model, tokens_BT, valid_BT = decoder(pe, softmax, local(**sizes)), tokens(n_tokens=24), padded(n_tokens=24)
    expected, pieces = at_once(model, tokens_BT, valid_BT), (9, 1, 7, 1, 1, 1, 4)
    assert_alike(in_pieces(model, tokens_BT, pieces, valid_BT), expected, valid_BT)


@pytest.mark.parametrize("name", PATTERNS)
def test_every_pattern_has_a_cache(name: str) -> None:
    torch.manual_seed(0)
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        config = compose("train", [f"pattern={name}"])
    model = load_option("model", "tiny", **(SMALL | {"n_layers": 8}))
    model = build_decoder(model, n_vocab=N_VOCAB, **parts_of(config)).eval()
    for kind in model.kinds:  # so short that they hide something here
        object.__setattr__(kind, "window", kind.window and 9)
        object.__setattr__(kind, "chunk", kind.chunk and 9)
    assert_alike(in_pieces(model, tokens(), (*PIECES[:2], 1, 1, 1)), at_once(model, tokens()))


def test_a_window_keeps_no_more_keys_than_it_needs() -> None:
    model = decoder(pattern=local(window=5))
    cache = model.empty_cache()
    with torch.no_grad():
        for token_B1 in tokens(n_tokens=90).split(1, 1):
            model(token_B1, cache=cache)
    rooms = [layer.buffers[0].shape[2] for layer in cache.layers]
    assert rooms[0] <= 5 + 32, "a window and the least room"
    assert 90 <= rooms[1] <= 1.5 * 90 + 32, "all tokens and half as much again"


@pytest.mark.parametrize("pe", ["ntk_dynamic", "longrope", "xpos"])
def test_what_follows_the_length_follows_that_of_the_whole_text(pe: str) -> None:
    """Beyond the training context: the text's length is known, so that its keys are those of the whole text."""
    model = decoder(pe, train_length=16)
    assert_alike(in_pieces(model, tokens(), PIECES, length=sum(PIECES)), at_once(model, tokens()))


def test_xpos_has_one_reference_for_all_calls() -> None:
    """Where a call begins moves no logit: its exponents do not count from the middle of the call."""
    model, tokens_BT = decoder("xpos"), tokens(n_tokens=40)
    one, other = (in_pieces(model, tokens_BT, pieces) for pieces in ((20, 20), (1, 39)))
    assert_alike(one, other)


@pytest.mark.parametrize("pe", ["rope", "fox", "t5_bias"])
def test_texts_can_be_chosen_and_repeated(pe: str) -> None:
    model, tokens_BT, valid_BT = decoder(pe), tokens(n_tokens=12), padded(n_tokens=12)
    texts = torch.tensor([1, 0, 0])
    with torch.no_grad():
        cache = model.empty_cache()
        model.hidden(tokens_BT[:, :9], valid_BT=valid_BT[:, :9], cache=cache)
        cache.select(texts)
        found = model(tokens_BT[texts, 9:], cache=cache)
    assert_alike(found, at_once(model, tokens_BT, valid_BT)[texts, 9:])


@pytest.mark.parametrize("pe", ["rope", "fox", "t5_bias"])
@pytest.mark.parametrize("n_more", [3, 60])
def test_a_branch_goes_on_from_where_the_cache_stands_and_leaves_it_there(pe: str, n_more: int) -> None:
    """Within the room behind the kept keys, and beyond it."""
    model, pattern = decoder(pe), torch.tensor([0, 1])
    begin, others = tokens(n_tokens=9), [tokens(n_tokens=9 + n_more)[texts, 9:] for texts in (pattern, pattern.flip(0))]
    with torch.no_grad():
        cache = model.empty_cache()
        model.hidden(begin, cache=cache)
        for more_BT in [*others, others[0]]:
            found = model(more_BT, cache=cache.branch())
            assert_alike(found, at_once(model, torch.cat([begin, more_BT], 1))[:, 9:])
    assert cache.n_read == 9


def test_given_positions_are_those_of_the_keys() -> None:
    model, pos_1T = decoder("t5_bias"), torch.tensor([[3, 4, 9, 10, 30, 31]])
    with torch.no_grad():
        expected, cache = model.hidden(tokens(1, 6), pos_BT=pos_1T), model.empty_cache()
        parts = [(tokens(1, 6)[:, part], pos_1T[:, part]) for part in (slice(4), slice(4, 6))]
        found = torch.cat([model.hidden(ids, pos_BT=pos, cache=cache) for ids, pos in parts], 1)
    assert_alike(found, expected)


def test_gradients_reach_what_the_cache_holds() -> None:
    model, tokens_BT = decoder("fox"), tokens(n_tokens=8)
    at_once_grads = torch.autograd.grad(model(tokens_BT).square().sum(), [*model.parameters()])
    cache = model.empty_cache()
    parts = [model(tokens_BT[:, :5], cache=cache), model(tokens_BT[:, 5:], cache=cache)]
    grads = torch.autograd.grad(torch.cat(parts, 1).square().sum(), [*model.parameters()])
    for found, expected in zip(grads, at_once_grads, strict=True):
        assert (found - expected).abs().max() <= 1e-4 * expected.abs().max()


class Summed(PositionalEncoding):
    """Reads the layer's input and does not say what a cache carries."""

    def prepare_layer(self, x_BTD: Tensor, prepared: Any, keys: Any) -> Tensor:
        return x_BTD.cumsum(1)


def test_what_a_cache_cannot_do_is_refused() -> None:
    model = decoder("rope_random")
    with pytest.raises(ValueError, match="leave out step="):
        model.hidden(tokens(), step=3, cache=model.empty_cache())
    with pytest.raises(ValueError, match=r"leave out step= .* and ends_BT="):
        model.hidden(tokens(), ends_BT=tokens() == 0, cache=model.empty_cache())
    kind = LayerKind(make_encoding=Summed, make_softmax=Softmax)
    sizes = {"tied_embeddings": True, "geglu": False, "scaled_embeddings": False, "norm_eps": 1e-5, "head_dim": None}
    summed = Decoder(n_vocab=N_VOCAB, kinds=[kind], **(SMALL | sizes))
    with pytest.raises(ValueError, match="Summed cannot be used with a cache"):
        summed.empty_cache()
