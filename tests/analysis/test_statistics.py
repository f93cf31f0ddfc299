"""Intervals, paired tests and Holm's correction: scipy's numbers, a worked example by hand, a published one."""

from __future__ import annotations

import math
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from helpers_compare import write_eval, write_train
from scipy import stats

from roundround.analysis.comparison import Comparison, Record, compare, comparison_of, place_of
from roundround.analysis.intervals import holm, paired_p
from roundround.analysis.load import LongTable, Model, long_table
from roundround.report.comparison import sheets


def made_up(numbers: dict[str, dict[int, float]], metric: str = "perplexity") -> LongTable:
    """One number for each encoding and seed."""
    return long_table(
        [
            (Model(None, {"pe": pe}, seed, "made up"), metric, (("length", 256),), value)
            for pe, by_seed in numbers.items()
            for seed, value in by_seed.items()
        ]
    )


def row_of(found: Comparison, pe: str) -> Record:
    (row,) = [row for row in found.table if row["settings"]["pe"] == pe]
    return row


def test_a_worked_example_by_hand() -> None:
    """rope 10, 12, 14; nope 11, 14, 17: differences 1, 2, 3, whose mean is 2 and standard error 1 / sqrt(3).

    t of two degrees of freedom: 4.302653 at 97.5 %. t = 2 sqrt(3) = 3.4641; p = 1 - t / sqrt(t^2 + 2) = 0.074180.
    """
    found = comparison_of(made_up({"rope": {1: 10, 2: 12, 3: 14}, "nope": {1: 11, 2: 14, 3: 17}}), ["pe=rope"])
    rope, nope = row_of(found, "rope"), row_of(found, "nope")
    assert (rope["mean"], rope["n_seeds"], rope["difference"], rope["p"]) == (12, 3, None, None)
    assert rope["low"] == pytest.approx(12 - 4.302653 * 2 / math.sqrt(3), abs=1e-6)
    assert rope["high"] == pytest.approx(12 + 4.302653 * 2 / math.sqrt(3), abs=1e-6)
    assert nope["difference"] == pytest.approx(2)
    assert nope["difference_low"] == pytest.approx(2 - 4.302653 / math.sqrt(3), abs=1e-6)
    assert nope["difference_high"] == pytest.approx(2 + 4.302653 / math.sqrt(3), abs=1e-6)
    assert nope["p"] == pytest.approx(0.074180, abs=1e-6)
    assert nope["p_holm"] == nope["p"], "a family of one"


def test_statistics_are_scipys() -> None:
    drawn = np.random.default_rng(0).normal(20, 1, size=(4, 7))
    names = ["rope", "nope", "alibi", "fire"]
    found = comparison_of(made_up({pe: dict(enumerate(drawn[n])) for n, pe in enumerate(names)}), ["pe=rope"])
    for n, pe in enumerate(names):
        row = row_of(found, pe)
        interval = stats.ttest_1samp(drawn[n], 0).confidence_interval(0.95)
        assert (row["mean"], row["low"], row["high"]) == pytest.approx((drawn[n].mean(), interval.low, interval.high))
        if pe == "rope":
            continue
        paired = stats.ttest_rel(drawn[n], drawn[0])
        interval = paired.confidence_interval(0.95)
        assert row["p"] == pytest.approx(paired.pvalue)
        assert (row["difference_low"], row["difference_high"]) == pytest.approx((interval.low, interval.high))


def test_seeds_are_paired_and_not_taken_in_order() -> None:
    found = comparison_of(made_up({"rope": {1: 10, 2: 20, 3: 31}, "nope": {3: 32, 2: 21, 5: 99}}), ["pe=rope"])
    nope = row_of(found, "nope")
    assert (nope["n_seeds"], nope["n_pairs"], nope["difference"]) == (3, 2, 1)
    assert (nope["p"], nope["p_is_bound"]) == (0.5, True), "of four pairs of signs two are alike"


def test_holms_correction_of_a_published_example() -> None:
    """https://en.wikipedia.org/wiki/Holm-Bonferroni_method, "Example": the first and the fourth are rejected at 5 %."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_holms_correction_with_weights_is_the_closed_test_of_weighted_bonferroni() -> None:
    """p of a test is the largest over all sets with it of the smallest p_j W / w_j, W the weights' sum over the set."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        p, weights = rng.uniform(0, 0.3, 5), rng.uniform(0.5, 4, 5)
        sets = [list(some) for n in range(1, 6) for some in combinations(range(5), n)]
        of_sets = {tuple(some): min(1.0, (p[some] / weights[some]).min() * weights[some].sum()) for some in sets}
        closed = [max(value for some, value in of_sets.items() if k in some) for k in range(5)]
        assert holm([*p], [*weights]) == pytest.approx(closed)
        assert holm([*p], [2.0] * 5) == pytest.approx(holm([*p]))


def test_a_test_that_could_not_be_made_is_a_member_of_the_family() -> None:
    """The size of a family does not depend on what was measured: else whoever has fewer p-values has smaller ones."""
    corrected = holm([0.03, math.nan, 0.04])
    assert corrected[0] == corrected[2] == pytest.approx(0.09)
    assert math.isnan(corrected[1])


def test_a_setting_that_is_not_finite_in_every_seed_counts_in_the_family(tmp_path: Path) -> None:
    for seed in (1, 2, 3):
        for pe, value in {"rope": seed**2, "nope": seed**3, "alibi": math.inf}.items():
            trained = write_train(tmp_path / f"{pe}-{seed}", pe, seed, 3.0)
            write_eval(tmp_path / f"eval-{pe}-{seed}", trained, {16: value, 32: seed})
    rows = compare(tmp_path, baseline="pe=rope", metric="perplexity", where={"verb": "eval"}).table
    (nope,) = [row for row in rows if row["settings"] == {"pe": "nope"} and place_of(row) == {"length": 16}]
    assert nope["p_holm"] == pytest.approx(2 * (nope["p"] or 0))


def test_a_difference_that_is_the_same_in_every_seed_has_the_p_of_its_signs() -> None:
    """Of the 2^n ways to give n differences their signs, two have all alike; a t-test has nothing to measure by."""
    same = {"rope": {1: 0.0, 2: 0.0, 3: 0.0}, "nope": {1: 1.0, 2: 1.0, 3: 1.0}, "alibi": {1: 0.0, 2: 0.0, 3: 0.0}}
    found = comparison_of(made_up(same, "exact_match"), ["pe=rope"])
    nope, alibi, rope = (row_of(found, pe) for pe in ("nope", "alibi", "rope"))
    assert (nope["p"], nope["p_holm"], nope["p_is_bound"]) == (0.25, 0.5, True)
    assert (alibi["p"], alibi["p_holm"], alibi["p_is_bound"]) == (1, 1, False)
    assert (rope["p"], rope["p_holm"], rope["p_is_bound"]) == (None, None, False)
    (table,), _ = sheets(found.table)
    places = [table.columns.index(name) for name in ("pe", "p", "p (Holm)")]
    assert [[row[n] for n in places] for row in table.texts()] == [
        ["alibi", "1", "1"], ["nope", "<= 0.25", "<= 0.5"], ["rope", "", ""]
    ]  # fmt: skip
    assert {record["p"] for record in found.table} == {None, 1.0, 0.25}


def test_equal_but_for_rounding_is_equal() -> None:
    """Three sums whose order differs: 0.1 + 0.2 is not 0.3, and 4 is the difference of three pairs but for its end."""
    values = np.array([[0.1 + 0.2, 0.1 + 0.2 + 4, 5.0], [1.3, 5.3, 7.0], [2.3, 6.3, 8.5]])
    baseline = np.array([[0.3, 0.3, 1.0], [1.3, 1.3, 2.0], [2.3, 2.3, 3.0]])
    p, is_bound = paired_p(values, baseline)
    assert p.tolist() == [1, 0.25, pytest.approx(stats.ttest_rel(values[:, 2], baseline[:, 2]).pvalue)]
    assert is_bound.tolist() == [False, True, False]


def test_small_differences_of_large_values_are_tested() -> None:
    """Of a million, float64 tells apart 1e-10: differences of 1e-6 are no rounding, nor those of 1 beside 1e12."""
    for scale in (1e-6, 1.0, 1e6):
        baseline = np.array([[1e6], [1.2e6], [1.1e6]]) * scale
        values = baseline + np.array([[1e-6], [2e-6], [4e-6]]) * scale
        p, is_bound = paired_p(values, baseline)
        assert p == pytest.approx(stats.ttest_rel(values, baseline).pvalue)
        assert p == pytest.approx(stats.ttest_1samp([1, 2, 4], 0).pvalue, rel=1e-3), "of the differences as they are"
        assert not is_bound.any()
    large = np.array([[1e12], [2.0], [1.0]])
    p, _ = paired_p(large + np.array([[0], [1e-6], [2e-6]]), large)
    assert p < 1, "each seed has its own rounding: a large value beside small ones hides nothing of theirs"
