"""The sentences that a comparison begins with."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from roundround.analysis.intervals import half_width, paired_p
from roundround.report.findings import MOST_SEEDS, findings, seeds_to_tell


def record(differences: list[float], pe: str = "nope", metric: str = "perplexity", **place: Any) -> dict[str, Any]:
    """A setting whose seeds differ from the baseline by these numbers."""
    values = np.array(differences)[:, None]
    mean, half = float(values.mean()), float(half_width(values)[0])
    p = None if len(differences) < 2 else float(paired_p(values, np.zeros_like(values))[0][0])
    known = {"difference": mean, "difference_low": mean - half, "difference_high": mean + half, "p": p, "p_holm": p}
    if p is None:
        known |= {"difference_low": None, "difference_high": None}
    settings = {"pe": pe}
    about = {"metric": metric, "verb": "eval", **place, "settings": settings, "baseline": {"pe": "rope"}}
    return {**about, "values": differences, "n_pairs": len(differences), **known}


def told(*records: dict[str, Any]) -> str:
    return " ".join(findings({"eval: perplexity": records}))


def test_better_worse_and_not_told_apart_are_said_with_size_interval_and_seeds() -> None:
    text = told(
        record([9.0, 10.0, 11.0], "nope"), record([-9.0, -10.0, -11.0], "p_rope"), record([1.0, -2.0, 3.0], "alibi")
    )
    assert text.startswith(
        "eval: perplexity against pe=rope, 3 seeds: better: pe=p_rope -10.0 (-12.5 to -7.5, p 0.003); "
    )
    assert "worse: pe=nope +10.0 (+7.5 to +12.5, p 0.003); " in text
    assert (
        "no clear difference: pe=alibi +0.7 (-5.6 to +6.9, p 0.691); about 153 seeds would be needed to detect" in text
    )


def test_the_last_place_is_told_and_the_others_are_counted() -> None:
    same = [record([9.0, 10.0, 11.0], length=n) for n in (128, 256, 512)]
    assert "at length=512, 3 seeds: worse: pe=nope" in told(*same)
    assert told(*same).endswith("The same at the 2 other places, as far as measured.")
    odd = [record([1.0, -2.0, 3.0], length=128), *same[1:]]
    assert told(*odd).endswith(" Elsewhere: pe=nope: no clear difference at length=128.")


def test_one_seed_tells_nothing() -> None:
    assert "no clear difference: pe=nope +10" in told(record([10.0]))
    assert "a test needs three seeds or more" in told(record([10.0]))
    assert findings({"eval: perplexity": []}) == []


def test_a_whole_is_told_before_its_parts() -> None:
    whole = [record([9.0, 10.0, 11.0], length=n) for n in (256, 512)]
    text = told(*whole, record([-9.0, -10.0, -11.0], length=512, depth=0.5))
    assert "at length=512, 3 seeds: worse" in text
    assert text.endswith(" Elsewhere: pe=nope: better at length=512, depth=0.5.")


@pytest.mark.parametrize(("effect", "n_compared"), [(0.2, 1), (0.5, 1), (1.0, 1), (3.0, 1), (0.5, 4), (1.0, 13)])
def test_so_many_seeds_have_80_percent_power(effect: float, n_compared: int) -> None:
    """By simulation: with the number of seeds the t-test finds the difference in four of five draws, with fewer not."""
    n = seeds_to_tell(record([effect - 1.0, effect, effect + 1.0]), n_compared)
    assert n is not None
    draws = np.random.default_rng(0).normal(effect, 1.0, (4000, n))
    found = float((stats.ttest_1samp(draws, 0.0, axis=1).pvalue < 0.05 / n_compared).mean())
    assert found > 0.8 - 0.03
    if n > 4:
        fewer = float((stats.ttest_1samp(draws[:, : n * 3 // 4], 0.0, axis=1).pvalue < 0.05 / n_compared).mean())
        assert fewer < 0.8


def test_a_difference_that_no_study_would_find_needs_more_than_a_thousand_seeds() -> None:
    tiny = record([-1.0, 0.0, 1.003])
    assert seeds_to_tell(tiny, 1) == MOST_SEEDS + 1
    assert "about more than 1,000 seeds" not in told(tiny)
    assert "more than 1,000 seeds would be needed to detect" in told(tiny)
    assert seeds_to_tell(record([0.0, 0.0, 0.0]), 1) is None
