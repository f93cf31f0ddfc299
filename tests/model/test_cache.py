"""A cache changes no logit: for every encoding, normaliser and pattern, however a text is cut into calls.

Shapes: B batch, T tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest
import torch
from conftest import option, variants
from omegaconf import DictConfig
from torch import Tensor

from roundround.config.options import load_option
from roundround.loading.models import build_decoder
from roundround.model.decoder import Decoder
from roundround.model.kinds import LayerKind
from roundround.pe.base import PositionalEncoding
from roundround.pe.fox import FoX
from roundround.pe.nope import NoPE
from roundround.pe.rope import RoPE
from roundround.softmax.adaptive_temperature import AdaptiveTemperature
from roundround.softmax.softmax import Softmax

N_VOCAB = 37
PIECES = (64, 7, 1, 1, 1)
TOLERANCE = 1e-5  # logits are about 1; two layers of float32 rounding are a tenth of it
SMALL = {
    **{"d_model": 32, "n_layers": 2, "n_heads": 4, "n_key_heads": 2, "d_mlp": 24, "train_length": 128},
    "initializer_range": 0.2,
}
ENCODINGS, NORMALISERS = sorted(variants("pe")), sorted(variants("softmax"))
PATTERNS = sorted(path for path in variants("pattern"))


def decoder(pe: str = "rope", softmax: str = "softmax", pattern: DictConfig | None = None, **sizes: Any) -> Decoder:
    torch.manual_seed(0)
    model = load_option("model", "tiny", **(SMALL | sizes))
    return build_decoder(model, option("pe", pe), option("softmax", softmax), N_VOCAB, pattern=pattern).eval()


def tokens(n_texts: int = 2, n_tokens: int = sum(PIECES)) -> Tensor:
    return torch.randint(N_VOCAB, (n_texts, n_tokens), generator=torch.Generator().manual_seed(0))


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
        valid = None if valid_BT is None or bool(valid_BT[:, start : start + n].all()) else valid_BT[:, start : start + n]
        found.append(model.unembed(model.hidden(tokens_BT[:, start : start + n], valid_BT=valid, cache=cache)))
        start += n
    return torch.cat(found, 1)


@torch.no_grad()
def at_once(model: Decoder, tokens_BT: Tensor, valid_BT: Tensor | None = None) -> Tensor:
    return model.unembed(model.hidden(tokens_BT, valid_BT=valid_BT))


def assert_alike(found: Tensor, expected: Tensor, valid_BT: Tensor | None = None) -> None:
    if valid_BT is not None:
        found, expected = found[valid_BT], expected[valid_BT]
    assert expected.abs().max() > 0.1, "logits that say something"
    torch.testing.assert_close(found, expected, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("pe", ENCODINGS)
@pytest.mark.parametrize("softmax", NORMALISERS)
def test_a_cache_changes_no_logit(pe: str, softmax: str) -> None:
    """Left-padded texts, grouped queries, in pieces of 64, 7 and 1."""
    model, valid_BT = decoder(pe, softmax), padded()
    expected = at_once(model, tokens(), valid_BT)
    assert_alike(in_pieces(model, tokens(), PIECES, valid_BT), expected, valid_BT)
