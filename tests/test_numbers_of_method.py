"""The families of docs/results/method.md have as many members as the pages' tables are corrected for."""

from __future__ import annotations

import re

import numpy as np
import pytest
from helpers_stored import text_of
from results import distance, encodings_by_normalisers, length, needles, table2
from results.stored import difference, family
from scipy import stats

FAMILIES = {
    "table2": [len(table2.p_of_differences(table2.sweep("tinystories")))],
    "distance": [len(distance.contrasts()), len(distance.less_control())],
    "encodings_by_normalisers": [
        len(encodings_by_normalisers.NAMES)
        * len(encodings_by_normalisers.COLUMNS)
        * len(encodings_by_normalisers.LENGTHS)
    ],
    "length": [len(length.p_of_repetition()), len(length.p_of_copying())],
    "needles": [len(needles.contrasts(8_192))],
}


@pytest.mark.parametrize("page", FAMILIES)
def test_members_of_a_family(page: str) -> None:
    (members,) = re.findall(rf"^\| \[[^|]*\]\({page}\.md\) \|.*\| ([\d, ]+) \|$", text_of("method"), re.M)
    assert [int(number) for number in members.split(", ")] == FAMILIES[page]


def test_a_floor_and_a_ceiling_are_no_members() -> None:
    zeros, ones, mixed = np.zeros(3), np.ones(3), np.array([0.0, 0.5, 1.0])
    p = family(
        {"floor": (zeros, zeros), "ends": (ones, zeros), "one varies": (mixed, zeros), "both": (mixed, 1 - mixed)}
    )
    assert list(p) == ["one varies", "both"]


def test_an_interval_of_shares_is_cut() -> None:
    assert difference(np.array([0.0, 0.0, 0.889]), np.zeros(3), 3) == "+0.296 (-0.979 to 1.000)"
    assert difference(np.array([0.0, 0.0, 2.0]), np.zeros(3), 1, np.inf) == "+0.7 (-2.2 to 3.5)"


def test_how_far_two_seeds_are_apart() -> None:
    text = " ".join(text_of("method").split("## How many seeds")[1].split())
    losses = re.findall(r"4\.4\d{3}", text)
    deviation = float(np.std([float(loss) for loss in losses], ddof=1))
    low, high = (deviation * (4 / stats.chi2.ppf(q, 4)) ** 0.5 for q in (0.975, 0.025))
    assert len(losses) == 5
    assert f"{deviation:.3f} ({low:.3f} to {high:.3f} by" in text
    single, mean = (deviation * (2 / n) ** 0.5 for n in (1, 5))
    assert f"about {1.96 * single:.2f} nats" in text
    assert 0.014 < 1.96 * mean < 0.0155
    assert f"it is {stats.t.ppf(0.975, 4) * single:.3f} and {stats.t.ppf(0.975, 4) * mean:.2f}" in text
