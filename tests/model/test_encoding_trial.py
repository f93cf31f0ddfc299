"""Every packaged encoding passes the trial, with every kind of attention that takes it; it leaves no trace.

`train` refuses what breaks the rules: tests/training/test_preflight.py.
"""

from __future__ import annotations

import pytest
import torch
from conftest import option, variants_alone

from roundround.config.options import load_option
from roundround.model.decoder import Decoder
from roundround.model.trial import check_encodings
from roundround.trained.models import build_decoder

SIZES = {"d_model": 32, "n_layers": 1, "n_heads": 4, "n_key_heads": 2, "d_mlp": 24, "train_length": 8}


def decoder(pe: str, **others: str) -> Decoder:
    parts = {part: option(part, name) for part, name in {"pe": pe, "softmax": "softmax", **others}.items()}
    return build_decoder(load_option("model", "tiny", **SIZES), n_vocab=11, **parts)


@pytest.mark.parametrize("pe", variants_alone("pe"))
@pytest.mark.parametrize("attention", ["grouped", "diff"])
def test_every_encoding_passes_and_no_random_state_changes(pe: str, attention: str) -> None:
    model, before = decoder(pe, attention=attention), torch.get_rng_state()
    for parameter in model.encodings.parameters():
        parameter.data += 0.1
    check_encodings(model)
    with torch.device("meta"):
        plan = decoder(pe, attention=attention)
    torch.set_rng_state(before)
    check_encodings(plan)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_rotation_into_more_channels_needs_a_norm_before_it() -> None:
    check_encodings(decoder("pope", qk_norm="rms"))
    with pytest.raises(ValueError, match="PoPE gives heads 16 channels, but qk_norm= after the rotation takes 8"):
        check_encodings(decoder("pope", qk_norm="rms_after"))
