"""What docs/howto/bench.md says the standard set finds, simulated again with fewer variants than the benchmark's."""

from __future__ import annotations

import csv
import math
import re

import numpy as np
import pytest
import standard_set
from conftest import ROOT
from scipy import stats

from roundround.analysis.standings import BETTER, EQUIVALENT, TUNED, WORSE, compared, read_set, stored
from roundround.report.drawing.tables import fixed

PAGE = " ".join((ROOT / "docs" / "howto" / "bench.md").read_text().split())
SET = read_set("v2", "default", None)
COLUMNS = {column.name: column for column in SET.columns}
N = 60  # boards of 5 variants, which share RoPE's runs


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
    assert share == pytest.approx(shares_of(name)[effect], abs=0.15)


def test_equal_variants_are_rarely_called_different() -> None:
    [three, one] = (
        float(share) for share in re.findall(r"in ([\d.]+)% of all cases, with a single seed in ([\d.]+)%", PAGE)[0]
    )
    for stated, n_seeds in ((three, 3), (one, 1)):
        share, _ = standard_set.false_shares(SET, np.random.default_rng(1), n=N, n_seeds=n_seeds)
        assert share == pytest.approx(stated / 100, abs=5 * math.sqrt(stated / 100 / (5 * N)))


def test_the_margins_are_those_of_the_set() -> None:
    for column in SET.columns:
        if column.name in standard_set.EFFECTS:
            assert re.search(rf"\| {re.escape(column.name)}[:,][^|]*\|[^|]*\|[^|]*\| {column.margin} \|", PAGE), column


STORED = {one.name: one for one in stored("v2", "default")}


def verdicts_of(name: str) -> tuple[str, str]:
    """The numbers in which a stored variant is better, and worse, than RoPE, each with its difference."""
    records = compared(STORED[name], STORED["rope"], SET)
    found = [
        ", ".join(f"{r['metric']} ({fixed(r['difference'], 2, '+')})" for r in records if r["verdict"] == verdict)
        for verdict in (BETTER, WORSE)
    ]
    return found[0], found[1]


@pytest.mark.parametrize("name", ["cope", "pope", "rope_values", "scale_invariant", "selective_rope"])
def test_the_table_of_encodings_with_one_seed(name: str) -> None:
    better, worse = verdicts_of(name)
    assert f"| `{name}` | {better} | {worse} |" in (ROOT / "docs" / "reference" / "encodings.md").read_text()


@pytest.mark.parametrize(("page", "name"), [
    ("reference/normalisers.md", "nope + stick_breaking"), ("reference/normalisers.md", "rope + stieltjes"),
    ("howto/patterns.md", "rope + attention=diff"), ("howto/patterns.md", "rope + attention=diff_v1"),
])  # fmt: skip
def test_what_a_page_says_of_a_variant_with_one_seed(page: str, name: str) -> None:
    text = " ".join((ROOT / "docs" / page).read_text().split())
    for found, word in zip(verdicts_of(name), ("better in", "worse in"), strict=True):
        assert not found or f"{word} {found}" in text


@pytest.mark.parametrize(("name", "metric", "verdict", "difference"), [
    ("alibi", "rise 8x", BETTER, "-0.414"), ("p_rope_25", "loss", WORSE, "+0.149"),
    ("rope + ssmax", "induction", WORSE, "-0.893"), ("rope + ssmax", "order 4x", BETTER, "+0.125"),
    ("rope + adaptive_temperature", "loss", WORSE, "+0.062"),
    ("rope + hard", "rise 8x", BETTER, "-0.396"), ("rope + hard", "loss", WORSE, "+0.361"),
])  # fmt: skip
def test_what_the_page_says_of_the_stored_values(name: str, metric: str, verdict: str, difference: str) -> None:
    [record] = [r for r in compared(STORED[name], STORED["rope"], SET) if r["metric"] == metric]
    assert (record["verdict"], fixed(record["difference"], 3, "+")) == (verdict, difference)
    if name != "rope + hard":
        assert difference in PAGE


def test_what_the_second_rate_does_to_rope() -> None:
    [second] = [one for one in stored("v2", TUNED) if one.variant["pe"] == "rope"]
    loss = [one.values(COLUMNS["loss"])[1] for one in (STORED["rope"], second)]
    assert f"at 1e-2 RoPE's loss is {loss[0] - loss[1]:.3f} lower" in PAGE
    assert f"does not learn induction ({second.values(COLUMNS['induction'])[1]:.2f}; one seed)" in PAGE
    assert [*second.made] == [1]


def test_how_many_numbers_the_page_names() -> None:
    verdicts = {
        name: [r["verdict"] for r in compared(STORED[name], STORED["rope"], SET)] for name in ("nape", "p_rope")
    }
    assert (verdicts["nape"].count(BETTER), verdicts["nape"].count(WORSE)) == (5, 0)
    assert (verdicts["p_rope"].count(EQUIVALENT), verdicts["p_rope"].count(WORSE)) == (5, 0)
    assert "better in five numbers and worse in none" in PAGE
    assert "equivalent to RoPE in five" in PAGE


def test_seeds_are_high_and_low_in_two_variants_alike() -> None:
    rows = list(csv.DictReader((ROOT / "docs" / "howto" / "bench" / "seeds.csv").read_text().splitlines()))
    rope, sink = (
        np.array([float(row["loss"]) for row in rows if row["variant"] == name]) for name in ("rope", "rope + softmax1")
    )
    known = STORED["rope"].numbers["language", "nats_per_token@128"]
    assert rope.tolist() == pytest.approx([known[seed] for seed in range(1, 13)], abs=1e-6)
    assert f"standard deviation of {rope.std(ddof=1):.3f} over seeds 1 to 12" in PAGE
    assert f"correlation {np.corrcoef(rope, sink)[0, 1]:.2f}" in PAGE
    assert f"their differences vary by {(sink - rope).std(ddof=1):.3f}" in PAGE


def test_the_order_at_a_larger_size() -> None:
    folder, columns = ROOT / "docs" / "results", {name: COLUMNS[name] for name in ("loss", "rise 8x")}
    page = " ".join((folder / "larger_size.md").read_text().split())
    rows = list(csv.DictReader((folder / "larger_size" / "small.csv").read_text().splitlines()))
    order = re.findall(r"`(\w+)`", page.split("|\n")[0].split("|---")[0])
    rows.sort(key=lambda row: order.index(row["pe"]))
    larger = {row["pe"]: (float(row["loss"]), float(row["loss_8x"]) - float(row["loss"])) for row in rows}
    for n, (name, column) in enumerate(columns.items()):
        small = [np.mean([STORED[one].values(column)[seed] for seed in (1, 2, 3)]) for one in larger]
        large = [values[n] for values in larger.values()]
        for size, values in (("0.2 million", small), ("5 million", large)):
            parameters = " parameters" if (name, size) == ("loss", "0.2 million") else ""
            assert f"| {name}, {size}{parameters} | {' | '.join(f'{value:.3f}' for value in values)} |" in page
        rank = float(stats.spearmanr(small, large).statistic)
        half = 1.96 * math.sqrt((1 + rank**2 / 2) / (len(small) - 3))
        low, high = np.tanh([np.arctanh(rank) - half, np.arctanh(rank) + half])
        assert re.search(rf"{rank:.2f}, {low:.2f} to {high:.2f}", page)
