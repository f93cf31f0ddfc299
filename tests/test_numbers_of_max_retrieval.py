"""The claims of docs/results/max_retrieval_heads.md, from the values of each seed in heads.csv."""

from __future__ import annotations

import json

import numpy as np
from helpers_stored import check_claim, check_listed, text_of
from results.max_retrieval import ASKED, SETTINGS, distances, gains, heads, slope, welch
from results.stored import DOCS, Array

from roundround.analysis.intervals import holm
from roundround.papers.max_retrieval import PAPER, P
from roundround.report import max_retrieval
from roundround.report.max_retrieval import BY_WEIGHT

PAGE = "max_retrieval_heads"
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
    near = f"within 2.0 for {sum(baseline < TAKEN[0] for baseline, _ in apart)} of {len(apart)} settings"
    p = [welch(setting, n) for setting in SETTINGS for n in ASKED if n in P]
    low, corrected = (sum(value < 0.05 for value in values) for values in (p, holm(p)))
    of_p = f"Of the {len(p)} p above {low} are below 0.05, after Holm's correction {corrected}"
    numbers = [f"{min(gain):.1f} to {max(gain):.1f} points", near, of_p]
    check_claim("max_retrieval_heads", "None of the settings", numbers)


def test_heads_are_steeper_than_that_already() -> None:
    steps = ["max_steps=50000", "nothing", "max_steps=150000", "max_steps=200000"]
    slopes = [slope(setting).mean() for setting in steps]
    assert slopes == sorted(slopes)
    numbers = [", ".join(f"{value:.0f}" for value in slopes[:-1]) + f" and {slopes[-1]:.0f}"]
    check_claim("max_retrieval_heads", "Steeper heads are not", numbers)


def test_rounding_in_training() -> None:
    rounded = "model.bfloat16_products=true"
    baseline, gain = distances(rounded)
    sizes = (1024, 4096, 16384)
    numbers = [f"{baseline.value:.1f}", f"{gain.value:.1f}", *(f"{gains(rounded, n).mean():+.1f}" for n in sizes)]
    check_claim("max_retrieval_heads", "Rounding in training", numbers)


def test_adamw() -> None:
    numbers = [f"{slope('optim=adamw').mean():.0f} nats", f"{distances('optim=adamw')[0].value:.1f} points"]
    rounded = [distances(f"optim=adamw, then bfloat16={how}") for how in ("true", "factors")]
    numbers += [" and ".join(f"{of.value:.1f}" for of in both) for both in zip(*rounded, strict=True)]
    check_claim("max_retrieval_heads", "AdamW", numbers)


def test_what_the_layers_lose() -> None:
    (baseline, gain), (plain, full) = distances("nothing", BY_WEIGHT), distances("nothing")
    numbers = [f"{gain} instead of {full.value:.1f}", f"{baseline.value:.1f} instead of {plain.value:.1f}"]
    weights, network = (single_distances("nothing", metric) for metric in (BY_WEIGHT, "accuracy"))
    numbers.append(f"in {(weights > network).sum()} of {len(weights)}")
    check_claim("max_retrieval_heads", "By the weights alone", numbers)


def test_the_end_of_the_fit_of_the_first_training() -> None:
    outcomes = json.loads((DOCS / "reproduction" / "outcomes.json").read_text())
    (figure,) = [one for one in outcomes if one["name"] == "softmax.fig5"]
    held = {one["what"]: one["ours"] for one in figure["comparisons"]}["beta, held at the ends of the fit, at 6 nats"]
    quartic = np.polynomial.Polynomial([-3.26589, 7.02409, -2.3796, -0.0381044, 0.126853])
    (end,) = [x.real for x in (quartic - held).roots() if abs(x.imag) < 1e-9 and 2 < x.real < 4]
    assert f"(with the first fit {held:.2f}, from {end:.2f} nats on)" in " ".join(text_of("max_retrieval").split())


def test_every_claim_of_the_page_is_checked() -> None:
    check_listed("max_retrieval_heads", __file__, ["Two numbers of a head", "The rule"])
