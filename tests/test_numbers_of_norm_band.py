"""The claims of docs/results/norm_band.md, from the values of each seed in docs/results/norm_band."""

from __future__ import annotations

import numpy as np
from helpers_stored import check_claim, check_listed
from results.norm_band import ASKED, CONTEXTS, LENGTHS, contexts, of_layers
from results.stored import Array

from roundround.analysis.intervals import half_width, holm, paired_p


def interval(values: Array) -> str:
    mean, half = values.mean(), float(half_width(values))
    return f"{mean:.2f} ({mean - half:.2f} to {mean + half:.2f})"


def slopes(theta: int) -> Array:
    """Of ln wavelength in ln L, by least squares within a seed, [S]."""
    logs = np.log([contexts(theta, length) * length for length in LENGTHS])
    return np.asarray(np.polyfit(np.log(LENGTHS), logs, 1)[0])


def slope_p() -> list[float]:
    """p of each slope against 0 after Holm."""
    return holm([float(paired_p(slopes(theta)[:, None], np.zeros((3, 1)))[0][0]) for theta in ASKED])


def log_ratios(lengths: tuple[int, ...]) -> Array:
    """ln of the wavelength at base 500,000 over that at 10,000, the mean over L, [S]."""
    return np.asarray(np.log([contexts(500_000, length) / contexts(10_000, length) for length in lengths]).mean(0))


def ratio(lengths: tuple[int, ...]) -> str:
    ratios, half = log_ratios(lengths), float(half_width(log_ratios(lengths)))
    low, middle, high = np.exp([ratios.mean() - half, ratios.mean(), ratios.mean() + half])
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def scatter(trained: str) -> tuple[float, float]:
    """Share of the strongest pair, and deviation of ln wavelength within a model; mean, asked bases, L = 256."""
    shares = [of_layers("share_of_strongest_pair", theta, 256, trained).mean() for theta in ASKED]
    logs = [
        np.log(of_layers("wavelength_of_strongest_pair", theta, 256, trained)).std(1, ddof=1).mean() for theta in ASKED
    ]
    return float(np.mean(shares)), float(np.mean(logs))


def test_every_setting_has_three_seeds() -> None:
    assert all(values.shape == (3,) for values in CONTEXTS.values())


def test_a_number_is_the_median_over_layers_of_queries_and_keys() -> None:
    for (theta, trained, _, length), values in CONTEXTS.items():
        waves = of_layers("wavelength_of_strongest_pair", int(theta), int(length), str(trained))
        np.testing.assert_allclose(np.median(waves, axis=1) / length, values, rtol=1e-9)


def test_the_band_follows_the_trained_length() -> None:
    (one, other), (p_one, p_other) = (interval(slopes(theta)) for theta in ASKED), slope_p()
    assert f"{p_one:.3f}" == f"{p_other:.3f}"
    check_claim("norm_band", "The trained length sets the band", [one, other, f"p {p_one:.3f} for both"])
    reach = [abs(slopes(theta).mean() - 1) + half_width(slopes(theta)) for theta in ASKED]
    assert reach[0] < 0.5 < reach[1] < 0.6
    check_claim("norm_band", "Base 500,000 is less certain", ["margin of 0.5"])


def test_no_part_of_the_base_is_seen_at_two_lengths() -> None:
    told = [bool(abs(of.mean()) + half_width(of) < np.log(2)) for of in (log_ratios((n,)) for n in LENGTHS)]
    assert told == [False, True, True]
    check_claim("norm_band", "No part of the base", [ratio((length,)) for length in LENGTHS])


def test_place_of_the_band() -> None:
    values = np.concatenate([contexts(theta, length) for theta in ASKED for length in LENGTHS])
    numbers = [f"{values.min():.1f} to {values.max():.1f} trained lengths", f"median {np.median(values):.1f}"]
    slowest = 2 * np.pi * 100 ** (15 / 16) / 512
    strongest = of_layers("wavelength_of_strongest_pair", 100, 512) / 512
    at_slowest = int(np.isclose(strongest, slowest).sum())
    check_claim("norm_band", "It lies at", [*numbers, f"{slowest:.2f} L", f"in {at_slowest} of the {strongest.size}"])
    control = np.concatenate([contexts(1_000, length) for length in LENGTHS])
    assert f"{control.min():.1f} to {control.max():.1f}" in numbers[0]


def test_training_makes_the_band() -> None:
    (share, spread), (share_before, spread_before) = scatter("yes"), scatter("no")
    numbers = [
        f"{share_before:.2f} of the squared norm before and {share:.2f} after",
        f"{spread_before:.1f} to {spread:.2f}",
    ]
    check_claim("norm_band", "Training makes it", numbers)


def test_every_claim_of_the_page_is_checked() -> None:
    check_listed("norm_band", __file__, ["The rule"])
