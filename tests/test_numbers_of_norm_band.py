"""The claims of norm_band.md and norm_band_public.md, from the values in docs/results/norm_band."""

from __future__ import annotations

from collections import Counter

import norm_band_public
import numpy as np
import pytest
from helpers_stored import check_claim, check_listed, text_of
from results import norm_band
from results.norm_band import (
    ASKED,
    CASES,
    CONTEXTS,
    LENGTHS,
    bounds,
    contexts,
    lengths_a_turn,
    median_turn,
    of_layers,
    public_row,
    rows_of_case,
    verdict,
)
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
    numbers = [f"{one} at base 10,000", f"{other} at 500,000", f"p {p_one:.3f} for both"]
    check_claim("norm_band", "The band follows the trained length", numbers)
    reach = [abs(slopes(theta).mean() - 1) + half_width(slopes(theta)) for theta in ASKED]
    assert reach[0] < 0.5 < reach[1] < 0.6
    check_claim("norm_band", "By the rule the length sets it at base 10,000", ["margin of 0.5"])


def test_no_part_of_the_base_is_seen_at_two_lengths() -> None:
    told = [bool(abs(of.mean()) + half_width(of) < np.log(2)) for of in (log_ratios((n,)) for n in LENGTHS)]
    assert told == [False, True, True]
    at_128, at_256, at_512 = (ratio((length,)) for length in LENGTHS)
    numbers = [f"500,000 is {at_256} and {at_512} times that at 10,000", f"and {at_128} times at 128"]
    check_claim("norm_band", "No part of the base is seen at 256 and 512 tokens; at 128", numbers)


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


STORIES, LOCAL, GLOBAL, SMOLLM2 = CASES


def before(case: tuple[str, str], length: int, base: int, n_pairs: int) -> tuple[float, float]:
    """The median and the share in the range where the same pairs turn at another base, in other lengths."""
    pairs, (low, high) = np.array([int(row["pair"]) for row in rows_of_case(case)]), bounds()
    turns = 2 * np.pi * base ** (pairs / n_pairs) / length
    return float(np.median(turns)), float(((turns >= low) & (turns <= high)).mean())


def test_every_layer_of_a_public_model_has_its_queries_and_keys() -> None:
    assert [len(rows_of_case(case)) for case in CASES] == [10, 30, 6, 60]
    for case in CASES:
        assert len({(row["layer"], row["of"]) for row in rows_of_case(case)}) == len(rows_of_case(case))


def test_a_wavelength_is_that_of_the_pair() -> None:
    for case, base, n_pairs, length in (
        (STORIES, 10_000, 4, 512),
        (LOCAL, 10_000, 128, 512),
        (GLOBAL, 1_000_000, 128, 32_768),
        (SMOLLM2, 100_000, 32, 8_192),
    ):
        rows = rows_of_case(case)
        waves = [2 * np.pi * base ** (int(row["pair"]) / n_pairs) / length for row in rows]
        np.testing.assert_allclose(lengths_a_turn(rows), waves, rtol=1e-4)


def test_the_prediction_is_that_of_the_small_models() -> None:
    low, high = bounds()
    np.testing.assert_allclose(norm_band_public.PREDICTED, (low, high), rtol=1e-4)
    small = f"({2 * low:.2f} to {high / 2:.2f})"
    check_claim("norm_band", "Prediction", [f"{low:.2f} to {high:.2f}", small])
    inside = {
        trained: [
            np.mean([low <= wave <= high for wave in waves / length])
            for theta in ASKED
            for length in (LENGTHS if trained == "yes" else (256,))
            for waves in of_layers("wavelength_of_strongest_pair", theta, length, trained)
        ]
        for trained in ("yes", "no")
    }
    numbers = f"{min(inside['yes']):.2f} to {max(inside['yes']):.2f}; before training {np.mean(inside['no']):.2f}"
    check_claim("norm_band", "Spread", [numbers])


def test_two_of_four_public_cases_hold() -> None:
    found = Counter(verdict(case) for case in CASES)
    assert found == {"holds": 2, "does not hold": 2}
    assert {verdict(LOCAL), verdict(GLOBAL)} == {"holds"}
    check_claim("norm_band", "No, it is no law", ["two of four cases hold"])
    check_claim("norm_band", "In public models", ["2 of 4 cases hold"])
    high = bounds()[1]
    assert 1 < median_turn(rows_of_case(SMOLLM2)) / high < 1.001
    assert median_turn(rows_of_case(STORIES)) > 2 * high


def test_smollm2_lies_on_the_bound() -> None:
    rows, (low, high) = rows_of_case(SMOLLM2), bounds()
    median, turns = median_turn(rows), lengths_a_turn(rows)
    percent = f"fails by {100 * (median / high - 1):.2f} %"
    wider = ((turns >= low) & (turns <= median)).mean()
    share = np.median([float(row["share"]) for row in rows])
    numbers = [
        percent,
        f"median {median:.4f}, bound {high:.4f}",
        f"{share:.2f} of the squared",
        f"would be {wider:.2f}",
    ]
    check_claim("norm_band", "SmolLM2", numbers)


def test_the_pairs_before_the_context_was_extended() -> None:
    (smollm2, within), (low, high) = before(SMOLLM2, 2_048, 10_000, 32), bounds()
    assert low < smollm2 < high
    today = f"{median_turn(rows_of_case(SMOLLM2)) * 4:.1f}"
    numbers = [f"in {smollm2:.2f} lengths there (share in range {within:.2f})", f"turn once in {today}"]
    check_claim("norm_band", "Training may have set it", numbers)


def test_stories260k_prefers_its_slowest_pair() -> None:
    rows = rows_of_case(STORIES)
    shares = [float(row["share"]) for row in rows]
    assert {row["pair"] for row in rows} == {"3"}
    check_claim("norm_band", "stories260K has", [f"has {min(shares):.2f} to {max(shares):.2f} of the squared norm"])


def test_another_pair_and_another_bound_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(public_row(case) in text_of("norm_band") for case in CASES)
    other = [row | {"wavelength": row["trained_length"]} for row in norm_band.PUBLIC]
    monkeypatch.setattr(norm_band, "PUBLIC", other)
    assert {verdict(case) for case in CASES} == {"holds"}
    assert not any(public_row(case) in text_of("norm_band") for case in CASES)


def test_every_claim_of_the_page_is_checked() -> None:
    rules = ["The rule", "Texts", "Verdict"]
    check_listed("norm_band", __file__, rules)
