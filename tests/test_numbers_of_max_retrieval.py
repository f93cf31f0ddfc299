"""The tables and claims of docs/results/max_retrieval_heads.md, from the values of each seed in heads.csv."""

from __future__ import annotations

import numpy as np
import pytest
from helpers_stored import DOCS, Array, check_claim, check_listed, text_of
from scipy import stats

from roundround.analysis.intervals import half_width, holm
from roundround.analysis.load import rows_of
from roundround.papers.max_retrieval import PAPER, SEEDS, P
from roundround.report import max_retrieval
from roundround.report.max_retrieval import BY_WEIGHT, Distance, Measured, measured_of

PAGE = "max_retrieval_heads"
ROWS = [row for _, row in rows_of(DOCS / "max_retrieval" / "heads.csv")]
SETTINGS = list(dict.fromkeys(row["setting"] for row in ROWS))
ASKED = (256, 512, 1024)  # items
TAKEN = (2.0, 0.8)  # points: the rule, fixed before the runs


def heads(setting: str) -> Measured:
    rows = [row for row in ROWS if row["setting"] == setting]
    return measured_of([{k: v for k, v in row.items() if v is not None} for row in rows])


def distances(setting: str, metric: str = "accuracy") -> tuple[Distance, Distance]:
    """Of the baseline and of the gains from the paper's, in points."""
    found = max_retrieval.distances(heads(setting), metric)
    assert found is not None
    return found


def single_distances(setting: str, metric: str) -> Array:
    """Of each seed's gains from the paper's, in points, [S]."""
    apart = max_retrieval.from_paper(heads(setting), metric)
    assert apart is not None
    return np.asarray(np.sqrt((apart[1] ** 2).mean(1)))


def gains(setting: str, n: int, metric: str = "accuracy") -> Array:
    """Of the adaptive temperature, in points, [S]."""
    found = heads(setting)
    plain, sharp = (found.accuracy(name, metric) for name in ("softmax", "adaptive_temperature"))
    return (sharp - plain)[:, found.sizes.index(n)]


def welch(setting: str, n: int) -> float:
    """p of the difference from the paper's gain, whose error follows from its own p."""
    ours, theirs = gains(setting, n), PAPER[n][1] - PAPER[n][0]
    their_spread = theirs / stats.t(SEEDS - 1).isf(P[n] / 2) * SEEDS**0.5
    test = stats.ttest_ind_from_stats(ours.mean(), ours.std(ddof=1), len(ours), theirs, their_spread, SEEDS, False)
    return float(test.pvalue)


def slope(setting: str) -> Array:
    return heads(setting).of_heads["logit_slope"]


def around(values: Array, digits: int) -> str:
    return f"{values.mean():.{digits}f} ±{float(half_width(values)):.{digits}f}"


def between(values: Array) -> str:
    mean, half = values.mean(), float(half_width(values))
    middle, low, high = (round(float(value), 1) + 0.0 for value in (mean, mean - half, mean + half))  # no -0.0
    return f"{middle} ({low} to {high})"


def gained(setting: str, metric: str = "accuracy") -> str:
    return ", ".join(f"{round(float(gains(setting, n, metric).mean()), 1) + 0.0:+.1f}" for n in ASKED)


def typed(setting: str) -> str:
    return f"`{setting}`" if "=" in setting else setting


def row_of(setting: str) -> str:
    cells = [around(slope(setting), 0), around(heads(setting).of_heads["class_offset_spread"], 4)]
    cells += map(str, distances(setting))
    cells.append(gained(setting))
    cells.append(", ".join(f"{welch(setting, n):.2g}" for n in ASKED if n in P))
    return f"| {' | '.join([typed(setting), *cells])} |"


def by_weight() -> list[str]:
    """Settings whose weights were looked at too."""
    return [name for name in SETTINGS if BY_WEIGHT in heads(name).values["softmax"]]


def row_by_weight(setting: str) -> str:
    cells = [*map(str, distances(setting, BY_WEIGHT))]
    cells.append(gained(setting, BY_WEIGHT))
    lost = [gains(setting, n) - gains(setting, n, BY_WEIGHT) for n in ASKED]
    return f"| {' | '.join([typed(setting), *cells, *map(between, lost)])} |"


def test_every_setting_has_five_seeds_and_every_size() -> None:
    assert all(heads(setting).seeds == [0, 1, 2, 3, 4] for setting in SETTINGS)
    assert all(heads(setting).sizes == list(PAPER) for setting in SETTINGS)


@pytest.mark.parametrize("setting", SETTINGS)
def test_table(setting: str) -> None:
    assert row_of(setting) in text_of(PAGE)


def test_table_by_weight() -> None:
    text = text_of(PAGE)
    assert all(row_by_weight(setting) in text for setting in by_weight())


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


def test_every_claim_of_the_page_is_checked() -> None:
    check_listed("max_retrieval_heads", __file__, ["Two numbers of a head", "The rule"])
