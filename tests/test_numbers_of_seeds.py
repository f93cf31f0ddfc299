"""The numbers of docs/howto/seeds.md, from the stored values of each seed."""

from __future__ import annotations

import math
import re
import statistics

import numpy as np
import pytest
from conftest import ROOT
from results.stored import Array
from results.table2 import forty, sweep
from scipy import special

from roundround.analysis.standings import read_set, usual_variance
from roundround.report.findings import seeds_to_tell

PAGE = (ROOT / "docs" / "howto" / "seeds.md").read_text()
SEEDS = (3, 5, 10)


def seen(n: int) -> float:
    """The difference, in standard deviations, that a paired t-test of n seeds finds with 80 % power at p = 0.05."""
    critical = special.stdtrit(n - 1, 0.975)
    effects = np.arange(0.2, 5, 0.0005)
    return float(effects[np.argmax(1 - special.nctdtr(n - 1, effects * math.sqrt(n), critical) >= 0.8)])


def spread(differences: list[Array]) -> float:
    """The root of the mean variance over seeds."""
    return math.sqrt(np.mean([np.var(some, ddof=1) for some in differences]))


def row(name: str, spread: float, digits: int = 3) -> str:
    return f"| {name} | {spread:.{digits}f} | {' | '.join(f'{seen(n) * spread:.{digits}f}' for n in SEEDS)} |"


def test_seeds_see_differences_of_so_many_standard_deviations() -> None:
    words = ", ".join(f"{n} seeds {seen(n):.1f}" for n in SEEDS)
    assert f"{words} times the spread" in " ".join(PAGE.split())


def test_the_rows_of_the_standard_set() -> None:
    the_set = read_set("v2", "default", None)
    for column in the_set.columns:
        if column.name in ("loss", "counting", "induction"):
            (line,) = re.findall(rf"^\| standard set, {column.name}(?: \(.*\))? \|.*$", PAGE, re.M)
            name = line.split(" | ")[0].removeprefix("| ")
            assert line == row(name, math.sqrt(usual_variance(column, the_set.like)[0]))
    table = (ROOT / "docs" / "howto" / "bench.md").read_text()
    (found,) = re.findall(r"^\| loss \|.* -0.05: (\d+%) \|$", table, re.M)
    assert f"finds 0.05 in loss with three seeds in {found}" in PAGE


@pytest.mark.parametrize(("corpus", "name"), [("tinystories", "TinyStories"), ("wikitext2", "WikiText-2")])
def test_the_rows_of_a_million_parameters(corpus: str, name: str) -> None:
    nats = np.log(sweep(corpus)[256])
    differences = [nats[one].to_numpy() - nats["rope"].to_numpy() for one in nats.columns if one != "rope"]
    assert row(f"1 million, {name}", spread(differences)) in PAGE


def test_the_row_of_forty_seeds() -> None:
    whole, _ = forty(256)
    assert (
        row(f"1 million, [{len(whole)} seeds](../results/table2.md#where-the-slow-pairs-would-turn)", whole.std(ddof=1))
        in PAGE
    )


def test_the_seeds_that_a_hundredth_of_a_nat_needs() -> None:
    found = re.search(r"for 0\.01 nats (\d+) to (\d+)\.", PAGE)
    assert found is not None
    for n, spread in zip(map(int, found.groups()), (0.017, 0.028), strict=True):
        assert seen(n) * spread <= 0.01 < seen(n - 1) * spread


def test_single_runs_of_the_recipe() -> None:
    page = " ".join((ROOT / "docs" / "results" / "method.md").read_text().split())
    [losses] = re.findall(r"The five seeds have held-out losses of ([\d., and]+) nats", page)
    values = [float(loss) for loss in re.findall(r"\d\.\d+", losses)]
    assert len(values) == 5
    assert f"have a standard deviation of {statistics.stdev(values):.3f} nats." in " ".join(PAGE.split())


def test_what_compare_would_print() -> None:
    three = {"n_pairs": 3, "difference": 0.02, "difference_high": 0.02 + 4.3027 * 0.03 / math.sqrt(3)}
    assert f"about {seeds_to_tell(three, 1)} seeds" in PAGE
    assert f"about {seeds_to_tell(three, 4)} with four" in " ".join(PAGE.split())
