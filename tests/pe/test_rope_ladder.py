"""The plane of rotary ladders: every named scheme is a number of pairs and a slowest wavelength."""

from __future__ import annotations

import math

import pytest
import torch
from conftest import ROOT
from helpers_pe import attention_shape, build, noise, positions, rotated
from torch import Tensor

from roundround.pe.rotary import RotaryEncoding

SHAPE = attention_shape(head_dim=128, train_length=4096)
NAMED = {  # name and numbers -> pairs of 64 that rotate, slowest wavelength in tokens, by hand
    "rope": ({"theta": 1e4}, 64, 2 * math.pi * 1e4 ** (126 / 128)),
    "rope_500k": ({}, 64, 2 * math.pi * 5e5 ** (126 / 128)),
    "p_rope": ({"p": 0.75, "theta": 1e4}, 48, 2 * math.pi * 1e4 ** (94 / 128)),
    "p_rope_25": ({"theta": 1e6}, 16, 2 * math.pi * 1e6 ** (30 / 128)),
    "partial_rope": ({"p": 0.25, "theta": 1e7}, 16, 2 * math.pi * 1e7 ** (30 / 32)),
    "clipped_rope": ({"theta": 5e5, "n_clipped": 20, "hard": True}, 44, 2 * math.pi * 5e5 ** (86 / 128)),
}


def rotating(encoding: RotaryEncoding) -> Tensor:
    frequencies = encoding.frequencies(torch.float64)
    return frequencies[frequencies != 0]


@pytest.mark.parametrize("name", NAMED)
def test_a_named_scheme_is_a_point_of_the_plane(name: str) -> None:
    numbers, n_pairs, wavelength = NAMED[name]
    own = build(name, SHAPE, **numbers)
    assert own.facts() == {"rotated_pairs": n_pairs, "pairs": 64, "slowest_wavelength": round(wavelength)}
    point = build("rope_ladder", SHAPE, p=n_pairs / 64, slowest_wavelength=wavelength)
    torch.testing.assert_close(rotating(point), rotating(own), rtol=1e-12, atol=0)
    torch.testing.assert_close(point.frequencies()[:n_pairs], own.frequencies()[:n_pairs], rtol=1e-6, atol=0)


def test_half_of_the_speedruns_ladder_is_p_rope_of_another_base() -> None:
    """modded-nanogpt: (1 / 1024) ** linspace(0, 1, C / 4), and as many zeros."""
    theirs = (1 / 1024) ** torch.linspace(0, 1, 32, dtype=torch.float64)
    torch.testing.assert_close(
        rotating(build("rope_ladder", SHAPE, p=0.5, slowest_wavelength=2 * math.pi * 1024)), theirs
    )
    p_rope = build("p_rope", SHAPE, p=0.5, theta=1024 ** (64 / 31))
    torch.testing.assert_close(rotating(p_rope), theirs, rtol=1e-12, atol=0)


def test_clipped_ropes_taper_is_the_raised_cosine() -> None:
    own, rope = build("clipped_rope", SHAPE, theta=5e5, n_clipped=20), build("rope_500k", SHAPE)
    expected = [1.0] * 44 + [0.5 * (1 + math.cos(math.pi * j / 19)) for j in range(20)]
    ratio = own.frequencies(torch.float64) / rope.frequencies(torch.float64)
    torch.testing.assert_close(ratio, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-15)
    automatic = build("clipped_rope", SHAPE, theta=5e5, n_clipped=None, hard=True)
    assert automatic.facts()["slowest_wavelength"] <= SHAPE.train_length
    assert bool(2 * math.pi / rope.frequencies(torch.float64)[len(rotating(automatic))] > SHAPE.train_length)


def test_no_pair_that_rotates_is_nope() -> None:
    still = build("rope_ladder", SHAPE, p=0.0)
    assert still.facts() == {"rotated_pairs": 0, "pairs": 64}
    q = noise(1, 4, 5, 128).float()
    assert torch.equal(rotated(still, q, positions(5)), q)


def test_learned_frequencies_begin_as_ropes_and_have_a_gradient() -> None:
    learned, rope = build("rope", SHAPE, learned_frequencies=True), build("rope", SHAPE)
    q = noise(1, 4, 30, 128).float()
    out = rotated(learned, q, positions(30))
    assert torch.equal(out, rotated(rope, q, positions(30)))
    out.square().mul(torch.arange(128.0)).sum().backward()
    assert bool((learned.log_factor_P.grad.abs() > 0).all())


@pytest.mark.parametrize("wavelength", [0.0, 6.28, math.inf, math.nan])
def test_a_wavelength_below_the_fastest_pairs_is_refused(wavelength: float) -> None:
    with pytest.raises(ValueError, match="slowest_wavelength="):
        build("rope_ladder", SHAPE, slowest_wavelength=wavelength)


# name -> channels, base, channels that its ladder spans, pairs that rotate, trained length
SHIPPED = {
    "llama_2": (128, 1e4, 128, 64, 4096),
    "llama_3": (128, 5e5, 128, 64, 8192),
    "p_rope_paper": (256, 1e4, 256, 96, 8192),
    "gemma_4_global": (512, 1e6, 512, 64, 32768),
    "clipped_llama_3": (128, 5e5, 128, 44, 8192),
    "lfm3_global": (128, 1e6, 128, 32, 32768),
    "speedrun": (128, 1024 ** (64 / 31), 128, 32, 2048),
    "pythia": (64, 1e4, 16, 8, 2048),
    "qwen3_next": (256, 1e7, 64, 32, 262144),
}


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_ladder_is_its_models_own_at_its_own_length(name: str) -> None:
    head_dim, base, spans, n_pairs, length = SHIPPED[name]
    own = rotating(build(f"ladder/{name}", attention_shape(head_dim=head_dim, train_length=length)))
    assert len(own) == n_pairs
    expected = base ** (-2 * torch.arange(n_pairs, dtype=torch.float64) / spans)
    torch.testing.assert_close(own, expected, rtol=2e-4, atol=0)  # of wavelengths rounded to four digits


def test_every_shipped_ladder_is_checked_here() -> None:
    assert [path.stem for path in sorted((ROOT / "conf" / "pe" / "ladder").glob("*.yaml"))] == sorted(SHIPPED)


@pytest.mark.parametrize("name", SHIPPED)
def test_another_length_keeps_the_share_of_pairs_that_turn_within_it(name: str) -> None:
    """In a ladder without end it is ln(T / 2 pi) / ln(w / 2 pi), of T tokens and the slowest wavelength w."""
    shares = []
    for length in (SHIPPED[name][-1], 128):
        slowest = 2 * math.pi / rotating(build(f"ladder/{name}", attention_shape(head_dim=32, train_length=length)))[-1]
        shares.append(math.log(length / 2 / math.pi) / math.log(slowest / 2 / math.pi))
    assert shares[1] == pytest.approx(shares[0], rel=1e-12)


def test_a_length_too_short_for_the_fastest_pair_is_refused() -> None:
    for of_length, train_length in ((6, 128), (128, 6)):
        with pytest.raises(ValueError, match=f"of_length={of_length} and the trained length"):
            build("rope_ladder", attention_shape(head_dim=32, train_length=train_length), of_length=of_length)
