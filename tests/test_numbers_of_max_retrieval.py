"""The claims of docs/results/max_retrieval.md, from the values that are stored beside it."""

from __future__ import annotations

import numpy as np
from helpers_stored import check_claim, check_listed
from results.max_retrieval import (
    ASKED,
    NAMES,
    NORMALISERS,
    SETTINGS,
    TABLE_1,
    distances,
    fits,
    gains,
    heads,
    p_of_fits,
    per_cent_right,
    slope,
    trainings,
    welch_of,
)
from results.stored import Array

from roundround.analysis.intervals import holm
from roundround.papers.max_retrieval import PAPER, P
from roundround.report import max_retrieval
from roundround.report.max_retrieval import BY_WEIGHT

TAKEN = (2.0, 0.8)  # points: the rule, fixed before the runs


def single_distances(setting: str, metric: str) -> Array:
    """Of each seed's gains from the paper's, in points, [S]."""
    apart = max_retrieval.from_paper(heads(setting), metric)
    assert apart is not None
    return np.asarray(np.sqrt((apart[1] ** 2).mean(1)))


def test_every_setting_has_five_seeds_and_every_size() -> None:
    assert all(heads(setting).seeds == [0, 1, 2, 3, 4] for setting in SETTINGS)
    assert all(heads(setting).sizes == list(PAPER) for setting in SETTINGS)


def test_no_setting_is_taken_for_the_papers() -> None:
    apart = [[of.value for of in distances(setting)] for setting in SETTINGS]
    assert not any(baseline < TAKEN[0] and gain < TAKEN[1] for baseline, gain in apart)
    gain = [of_gains for _, of_gains in apart]
    near = f"within 2.0 for {sum(baseline < TAKEN[0] for baseline, _ in apart)}."
    p = [welch_of(setting, n) for setting in SETTINGS for n in ASKED if n in P]
    low, corrected = (sum(value < 0.05 for value in values) for values in (p, holm(p)))
    of_p = f"{low} of {len(p)} p below 0.05, after Holm's correction {corrected}"
    numbers = [f"all {len(apart)}", f"{min(gain):.1f} to {max(gain):.1f} points", near, of_p]
    check_claim("max_retrieval", "None of the settings", numbers)


def test_heads_are_steeper_than_that_already() -> None:
    steps = ["max_steps=50000", "nothing", "max_steps=150000", "max_steps=200000"]
    slopes = [slope(setting).mean() for setting in steps]
    assert slopes == sorted(slopes)
    numbers = [", ".join(f"{value:.0f}" for value in slopes[:-1]) + f" and {slopes[-1]:.0f}"]
    check_claim("max_retrieval", "Steeper heads are not", numbers)


def test_rounding_in_training() -> None:
    numbers = [f"{gains('model.bfloat16_products=true', n).mean():+.1f} at {n:,}" for n in (1024, 4096)]
    check_claim("max_retrieval", "Rounding in training", numbers)


def test_what_the_layers_lose() -> None:
    (baseline, gain), (plain, full) = distances("nothing", BY_WEIGHT), distances("nothing")
    numbers = [f"{gain} instead of {full.value:.1f}", f"baseline {baseline.value:.1f} instead of {plain.value:.1f}"]
    weights, network = (single_distances("nothing", metric) for metric in (BY_WEIGHT, "accuracy"))
    numbers.append(f"alone in {(weights > network).sum()} of {len(weights)}")
    check_claim("max_retrieval", "By the weights alone", numbers)


def test_the_gains_that_are_apart() -> None:
    gain = TABLE_1["gain, 1,024 items"]
    apart = f"{gain['ours'] - gain['published']:.2f} ±{gain['error']:.2f}"
    check_claim(
        "max_retrieval", "It differs", [f"{gain['ours']:.2f} against {gain['published']:.1f}, difference {apart}"]
    )
    first, second, third = trainings()
    told = [[n for n, p in training.items() if p < 0.05] for training in (first, second, third)]
    assert told == [[256, 1024, 4096], [256], [1024, 4096]]
    p, of_third = ({n: f"{one:.3f}" for n, one in training.items()} for training in (first, third))
    numbers = [f"256 items (p {p[256]} after Holm over the five sizes), 1,024 ({p[1024]}) and 4,096 ({p[4096]})"]
    numbers += ["at 256 alone", f"at 1,024 (p {of_third[1024]} over four sizes) and 4,096 ({of_third[4096]})"]
    numbers += [f"not at 256 ({of_third[256]})"]
    check_claim("max_retrieval", "The gains are apart", numbers)


def test_hard_attention_is_the_limit_of_every_normaliser() -> None:
    means = {name: per_cent_right(name).mean(1) for name in NAMES}
    assert all((mean <= means["hard"]).all() for mean in means.values())
    assert all((NORMALISERS["log_n", *place] == NORMALISERS["ssmax", *place]).all() for _, *place in NORMALISERS)
    assert {len(values) for values in NORMALISERS.values()} == {10}


def test_fits_beyond_the_fitted_sizes() -> None:
    p = p_of_fits()
    of_holm = dict(zip(p, holm([*p.values()]), strict=True))
    numbers = [f"p {p['softmax']:.2f}, {of_holm['softmax']:.2f} after Holm over the four"]
    check_claim("max_retrieval", "It is ahead of the softmax in all five", numbers)
    assert min(of_holm.values()) > 0.05
    assert (fits("fitted") > fits("softmax")).all()
    assert (fits("fitted") < fits("hard")).all()


def test_every_claim_of_the_page_is_checked() -> None:
    check_listed("max_retrieval", __file__, [])
