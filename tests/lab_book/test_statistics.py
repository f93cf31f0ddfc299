"""Intervals, paired tests and Holm's correction: scipy's numbers, a worked example by hand, a published one."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from roundround.intervals import half_width, holm, paired_p
from roundround.lab_book.comparison import Comparison, Row, comparison_of
from roundround.lab_book.trials import LongTable, Trial


def trials(numbers: dict[str, dict[int, float]], metric: str = "perplexity") -> LongTable:
    """One number for each encoding and seed."""
    cell = (metric, (("length", 256),))
    return LongTable(
        [
            Trial(None, {"pe": pe}, seed, "made up", numbers={cell: value})
            for pe, by_seed in numbers.items()
            for seed, value in by_seed.items()
        ]
    )


def row_of(found: Comparison, pe: str) -> Row:
    (row,) = [row for row in found.table if row.settings["pe"] == pe]
    return row


def test_a_worked_example_by_hand() -> None:
    """rope 10, 12, 14; nope 11, 14, 17: differences 1, 2, 3, whose mean is 2 and standard error 1 / sqrt(3).

    t of two degrees of freedom: 4.302653 at 97.5 %. t = 2 sqrt(3) = 3.4641; p = 1 - t / sqrt(t^2 + 2) = 0.074180.
    """
    found = comparison_of(trials({"rope": {1: 10, 2: 12, 3: 14}, "nope": {1: 11, 2: 14, 3: 17}}), ["pe=rope"])
    rope, nope = row_of(found, "rope"), row_of(found, "nope")
    assert (rope.mean, rope.n_seeds, rope.difference, rope.p) == (12, 3, None, None)
    assert rope.low == pytest.approx(12 - 4.302653 * 2 / math.sqrt(3), abs=1e-6)
    assert rope.high == pytest.approx(12 + 4.302653 * 2 / math.sqrt(3), abs=1e-6)
    assert nope.difference == pytest.approx(2)
    assert nope.difference_low == pytest.approx(2 - 4.302653 / math.sqrt(3), abs=1e-6)
    assert nope.difference_high == pytest.approx(2 + 4.302653 / math.sqrt(3), abs=1e-6)
    assert nope.p == pytest.approx(0.074180, abs=1e-6)
    assert nope.p_holm == nope.p, "a family of one"


def test_statistics_are_scipys() -> None:
    drawn = np.random.default_rng(0).normal(20, 1, size=(4, 7))
    names = ["rope", "nope", "alibi", "fire"]
    found = comparison_of(trials({pe: dict(enumerate(drawn[n])) for n, pe in enumerate(names)}), ["pe=rope"])
    for n, pe in enumerate(names):
        row = row_of(found, pe)
        interval = stats.ttest_1samp(drawn[n], 0).confidence_interval(0.95)
        assert (row.mean, row.low, row.high) == pytest.approx((drawn[n].mean(), interval.low, interval.high))
        if pe == "rope":
            continue
        paired = stats.ttest_rel(drawn[n], drawn[0])
        interval = paired.confidence_interval(0.95)
        assert row.p == pytest.approx(paired.pvalue)
        assert (row.difference_low, row.difference_high) == pytest.approx((interval.low, interval.high))


def test_seeds_are_paired_and_not_taken_in_order() -> None:
    found = comparison_of(trials({"rope": {1: 10, 2: 20, 3: 31}, "nope": {3: 32, 2: 21, 5: 99}}), ["pe=rope"])
    nope = row_of(found, "nope")
    assert (nope.n_seeds, len(nope.pairs), nope.difference) == (3, 2, 1)
    assert nope.p is None, "both differences are 1: nothing to measure them by"


def test_one_seed_has_a_mean_and_a_difference_and_nothing_else() -> None:
    nope = row_of(comparison_of(trials({"rope": {1: 10}, "nope": {1: 11}}), ["pe=rope"]), "nope")
    assert (nope.mean, nope.low, nope.difference, nope.difference_low, nope.p) == (11, None, 1, None, None)


def test_holms_correction_of_a_published_example() -> None:
    """https://en.wikipedia.org/wiki/Holm-Bonferroni_method, "Example": the first and the fourth are rejected at 5 %."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_holms_correction_rejects_what_holms_procedure_does() -> None:
    """Fifteen p-values, Benjamini and Hochberg 1995, J. R. Stat. Soc. B 57:289, section 4.

    Bonferroni's and Hochberg's procedures both reject three there at 5 %, and Holm's lies between the two.
    """
    published = [0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459]
    published += [0.3240, 0.4262, 0.5719, 0.6528, 0.7590, 1.0000]
    corrected = holm(published)
    assert [p for p, q in zip(published, corrected, strict=True) if q <= 0.05] == [0.0001, 0.0004, 0.0019]
    assert max(corrected) == 1


def test_a_test_that_could_not_be_made_is_no_member_of_the_family() -> None:
    corrected = holm([0.03, math.nan, 0.04])
    assert corrected[0] == corrected[2] == pytest.approx(0.06)
    assert math.isnan(corrected[1])


def test_the_family_is_the_settings_at_one_metric_and_length() -> None:
    table = trials({"rope": {1: 1, 2: 2, 3: 4}, "nope": {1: 2, 2: 4, 3: 5.1}, "alibi": {1: 3, 2: 4.5, 3: 6}})
    for trial in table.trials:
        trial.numbers["accuracy", ()] = next(iter(trial.numbers.values())) / 10
    rows = comparison_of(table, ["pe=rope"]).table
    for metric in ("perplexity", "accuracy"):
        ps = sorted((row.p, row.p_holm) for row in rows if row.metric == metric and row.p is not None)
        assert [q for _, q in ps] == pytest.approx([2 * ps[0][0], max(2 * ps[0][0], ps[1][0])])


def test_no_p_where_all_differences_are_equal_or_there_is_one_seed() -> None:
    values = np.array([[0.1 + 0.2, 5.0], [1.3, 7.0], [2.3, 8.5]])
    baseline = np.array([[0.3, 1.0], [1.3, 2.0], [2.3, 3.0]])
    assert np.isnan(paired_p(values, baseline)).tolist() == [True, False]
    assert np.isnan(paired_p(values[:1], baseline[:1])).all()
    assert np.isnan(half_width(values[:1])).all()
