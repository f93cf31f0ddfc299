"""What docs/howto/bench.md says the standard set finds, simulated again with fewer variants than the benchmark's."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import standard_set
from conftest import ROOT

from roundround.analysis.standings import read_set

PAGE = " ".join((ROOT / "docs" / "howto" / "bench.md").read_text().split())
SET = read_set("v2", "default", None)
COLUMNS = {column.name: column for column in SET.columns}
N = 4  # boards of 50 variants


def shares_of(name: str) -> dict[float, float]:
    """The differences of a row of the page, each with the share that is found."""
    [cells] = re.findall(rf"\| {re.escape(name)} \| [\d.]+ \| ([^|]*) \|", PAGE)
    return {float(effect): int(share) / 100 for effect, share in re.findall(r"(\S+): (\d+)%", cells)}


@pytest.mark.parametrize("name", standard_set.EFFECTS)
def test_a_row_has_the_spread_of_the_stored_values(name: str) -> None:
    assert standard_set.row(COLUMNS[name], SET, shares_of(name)) in PAGE


@pytest.mark.parametrize(("name", "effect"), [("loss", -0.03), ("loss", -0.05), ("needle 2x", 0.2), ("counting", -0.2)])
def test_a_difference_is_found_as_often_as_the_page_says(name: str, effect: float) -> None:
    share = standard_set.found_share(SET, np.random.default_rng(1), name, effect, n=N)
    assert share == pytest.approx(shares_of(name)[effect], abs=0.12)  # boards share RoPE's seeds


def test_equal_variants_are_rarely_called_different() -> None:
    [one, board] = (float(share) for share in re.findall(r"in ([\d.]+) ?% of all cases.*?is in ([\d.]+) ?%", PAGE)[0])
    assert one <= 4
    share, _ = standard_set.false_shares(SET, np.random.default_rng(1), n=N)
    assert share == pytest.approx(one / 100, abs=4 * math.sqrt(one / 100 / (50 * N)))
    assert board >= one


def test_the_margins_are_those_of_the_set() -> None:
    for column in SET.columns:
        if column.name in standard_set.EFFECTS:
            assert re.search(rf"\| {re.escape(column.name)}[:,][^|]*\|[^|]*\|[^|]*\| {column.margin} \|", PAGE), column
