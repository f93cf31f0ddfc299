"""What docs/howto/bench.md says the standard set finds, simulated again with fewer variants than the benchmark's."""

from __future__ import annotations

import csv
import math
import re
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import pytest
import standard_set
from conftest import ROOT
from scipy import stats

from roundround.analysis.standings import (
    BETTER,
    EQUIVALENT,
    NO_CLEAR,
    RATE,
    TUNED,
    WORSE,
    at_better_rate,
    compared,
    format_variant,
    read_set,
    stored,
    usual_variance,
)
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


@pytest.mark.parametrize("tune", [False, True])
def test_equal_variants_are_rarely_called_different(tune: bool) -> None:
    words = (
        r"with `tune=true` in (\S+)% and (\S+)%" if tune else r"in (\S+)% of all cases, with a single seed in (\S+)%"
    )
    for stated, n_seeds in zip(map(float, re.findall(words, PAGE)[0]), (3, 1), strict=True):
        share, _ = standard_set.false_shares(SET, np.random.default_rng(1), n=N, n_seeds=n_seeds, tune=tune)
        assert share == pytest.approx(stated / 100, abs=5 * math.sqrt(stated / 100 / (5 * N)))


def test_at_two_rates_only_large_differences_are_found() -> None:
    found = re.findall(r"0.05 and 0.1 nats of loss are found in (\d+)% and (\d+)%", PAGE)[0]
    for effect, stated in zip((-0.05, -0.1), found, strict=True):
        share = standard_set.found_share(SET, np.random.default_rng(1), "loss", effect, n=N, tune=True)
        assert share == pytest.approx(int(stated) / 100, abs=0.15)


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
def test_the_table_of_encodings(name: str) -> None:
    better, worse = verdicts_of(name)
    assert f"| `{name}` | {better} | {worse} |" in (ROOT / "docs" / "reference" / "encodings.md").read_text()


@pytest.mark.parametrize(("page", "name"), [
    ("reference/normalisers.md", "nope + stick_breaking"), ("reference/normalisers.md", "rope + stieltjes"),
    ("howto/patterns.md", "rope + attention=diff"), ("howto/patterns.md", "rope + attention=diff_v1"),
])  # fmt: skip
def test_what_a_page_says_of_a_variant(page: str, name: str) -> None:
    text = " ".join((ROOT / "docs" / page).read_text().split())
    found = zip(verdicts_of(name), ("better", "worse"), strict=True)
    said = " and ".join(f"{word} in {numbers}" for numbers, word in found if numbers)
    short = name.rpartition("=")[2].rpartition(" ")[2]
    listed = re.escape(said).replace(r",\ ", "(, | and )")
    after = rf"are {listed}[.;]" if said else "have no clear difference"
    assert re.search(rf"`{short}`[^`;]* {after}", text)


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


def test_what_the_page_says_of_the_second_rate() -> None:
    """Of the seeds that all ten variants have at both rates."""
    second = {format_variant(one.variant).removesuffix(f" + {RATE}=0.01"): one for one in stored("v2", TUNED)}
    seeds = set.intersection(*({*one.made} for one in second.values()))
    assert (len(second), seeds) == (10, {1, 2, 3})
    first, second = (
        {name: of[name].without(of[name].made.keys() - seeds) for name in second} for of in (STORED, second)
    )
    loss, induction = (
        {name: (first[name].mean(COLUMNS[column]), second[name].mean(COLUMNS[column])) for name in first}
        for column in ("loss", "induction")
    )
    assert all(there < here for here, there in loss.values())
    assert all(there < 0.1 for _, there in induction.values())
    at_both = STORED | {f"{name} + {RATE}=0.01": one for name, one in second.items()}
    better = at_better_rate(at_both, [*first], SET, seeds)
    judged = [name for name in standard_set.EFFECTS if name in COLUMNS]
    changed: list[tuple[str, str, str, str]] = []
    for name in first.keys() - {"rope"}:
        before, after = ({r["metric"]: r for r in compared(of[name], of["rope"], SET)} for of in (first, better))
        pairs = [(name, metric, before[metric]["verdict"], after[metric]["verdict"]) for metric in judged]
        changed += [pair for pair in pairs if pair[2] != pair[3]]
        if name == "fox":
            fox = [fixed(of["loss"]["difference"], 3, "+") for of in (before, after)]
    assert ("fox", "loss", BETTER, NO_CLEAR) in changed
    assert [verdicts for _, *verdicts in changed].count(["loss", EQUIVALENT, NO_CLEAR]) == 5
    (here, there), (learned, lost) = loss["rope"], induction["rope"]
    assert f"all have a lower loss at 1e-2, RoPE by {here - there:.3f}, and none learns induction there" in PAGE
    of_all = f"{len(changed)} of {len(judged) * (len(first) - 1)} verdicts change, all in the loss"
    assert f"(RoPE {learned:.2f} and {lost:.2f}). With each part at its better rate {of_all}" in PAGE
    assert f"no longer lower ({fox[0]}, then {fox[1]}), and five are no longer equivalent" in PAGE


def test_the_first_seeds_suit_rope_and_the_spread_of_the_next_is_on_the_page() -> None:
    means = [
        STORED["rope"].without(gone).mean(COLUMNS[name]) or 0.0
        for gone in (range(4, 13), range(1, 4))
        for name in ("largest", "induction")
    ]
    text = "largest {:.2f} and induction {:.2f}, over seeds 4 to 12 {:.2f} and {:.2f}."
    assert text.format(*means) in PAGE
    later = [STORED[name].without(range(1, 4)) for name in ("rope", "rope_500k", "rope + sink")]
    assert all({*one.made} == {*range(4, 13)} for one in later)
    assert f"a spread of {math.sqrt(usual_variance(COLUMNS['largest 4x'], later)[0]):.3f} in largest 4x" in PAGE


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
    together = np.corrcoef(rope, sink)[0, 1]
    assert f"(losses [correlate](bench/seeds.csv), {together:.2f}) {(sink - rope).std(ddof=1):.3f}." in PAGE


def ranks(small: list[float], large: list[float]) -> str:
    """Spearman's rank correlation with its 95 % interval by Fisher's z, and what the page's rule says of it."""
    rank, n = float(stats.spearmanr(small, large).statistic), len(small)
    if abs(rank) > 1 - 1e-9:  # z is infinite: the next smaller correlation
        rank = math.copysign(1 - 12 / (n**3 - n), rank)
    half = 1.96 * math.sqrt((1 + rank**2 / 2) / (n - 3))
    low, high = np.tanh([np.arctanh(rank) - half, np.arctanh(rank) + half])
    verdict = "holds" if low > 0.5 else "does not hold" if high < 0.5 else "is not clear"
    return f"{verdict} ({rank:.2f}, {low:.2f} to {high:.2f})"


LARGER: dict[str, dict[str, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))  # by column, variant, seed
for own in csv.DictReader((ROOT / "docs" / "results" / "larger_size" / "small.csv").read_text().splitlines()):
    LARGER[own["column"]][own["variant"]][own["seed"]] = float(own["value"])


def at_both_sizes(column: str, names: Sequence[str]) -> tuple[list[float], list[float]]:
    """The mean over seeds at 0.2 million parameters; at 5 million that of the difference from RoPE."""
    means = [float(np.mean([STORED[name].values(COLUMNS[column])[seed] for seed in (1, 2, 3)])) for name in names]
    of = LARGER[column]
    return means, [float(np.mean([value - of["rope"][seed] for seed, value in of[name].items()])) for name in names]


def rows_of(page: str, column: str, names: Sequence[str]) -> tuple[list[float], list[float]]:
    """`at_both_sizes`; the page's table has the values."""
    both = at_both_sizes(column, names)
    seeds = sorted({seed for name in names for seed in LARGER[column][name]})
    rows = {"0.2 million": both[0]} | {
        "5 million" + f", seed {seed}" * (len(seeds) > 1): [LARGER[column][name].get(seed) for name in names]
        for seed in seeds
    }
    assert f"| | {' | '.join(f'`{name}`' for name in names)} |" in page
    for size, values in rows.items():
        cells = ["-" if value is None else f"{value:.3f}" for value in values]
        assert f"| {column}, {size} | {' | '.join(cells)} |" in page
    return both


IN_ALL_PARTS = ["rope", "p_rope", "rope + ssmax", "alibi", "nope", "fox"]
LARGER_PAGE = " ".join((ROOT / "docs" / "results" / "larger_size.md").read_text().split())


def left_by_the_rule(within: tuple[list[float], list[float]]) -> list[str]:
    """Those whose number within the trained length is at neither size less than RoPE's by more than the margin."""
    assert COLUMNS["needle"].margin == COLUMNS["copying"].margin == 0.1
    return [name for k, name in enumerate(IN_ALL_PARTS) if all(own[k] >= own[0] - 0.1 for own in within)]


def test_copying_at_a_larger_size() -> None:
    within, further = (rows_of(LARGER_PAGE, column, IN_ALL_PARTS) for column in ("copying", "copying 1.5x"))
    least = min(value for name in IN_ALL_PARTS for value in LARGER["copying"][name].values())
    assert f"within the trained length**, {least:.3f} or more. By the rule the order {ranks(*within)}" in LARGER_PAGE
    assert f"in differences of at most {1 - least:.3f}, which" in LARGER_PAGE
    kept = left_by_the_rule(within)
    assert kept == IN_ALL_PARTS[:4]
    assert f"The order of the four others {ranks(*at_both_sizes('copying 1.5x', kept))}." in LARGER_PAGE
    assert [IN_ALL_PARTS[k] for k in np.argsort(further[1])[-2:]] == ["nope", "fox"]


def test_needles_at_a_larger_size() -> None:
    within, further = (rows_of(LARGER_PAGE, column, IN_ALL_PARTS) for column in ("needle", "needle 2x"))
    assert f"NoPE and FoX find least at both sizes.** The order {ranks(*within)}." in LARGER_PAGE
    assert all([IN_ALL_PARTS[k] for k in np.argsort(own)[:2]] == ["fox", "nope"] for own in within)
    kept = left_by_the_rule(within)
    assert kept == IN_ALL_PARTS[:4]
    said = f"the order of the four others {ranks(*at_both_sizes('needle 2x', kept))}.** ALiBi finds most at both sizes."
    assert said in LARGER_PAGE
    assert all(IN_ALL_PARTS[np.argmax(own)] == "alibi" for own in further)
    ssmax, rope = (LARGER["needle 2x"][name] for name in ("rope + ssmax", "rope"))
    apart = [ssmax[seed] - rope[seed] for seed in ("1", "2")]
    assert f"SSMax finds {apart[0]:.3f} more than RoPE with seed 1 and {-apart[1]:.3f} less with seed 2." in LARGER_PAGE


def test_the_order_at_a_larger_size() -> None:
    page = LARGER_PAGE
    names = [*LARGER["loss"]]
    small, loss = (dict(zip(names, values, strict=True)) for values in at_both_sizes("loss", names))
    order = sorted(names, key=small.__getitem__)
    assert len(order) == 9
    for metric in ("loss", "rise 8x"):
        assert f"of the {metric.split()[0]} {ranks(*rows_of(page, metric, order))}" in page
    others = [name for name in order if name != "nope"]
    assert f"without NoPE that of the loss {ranks(*at_both_sizes('loss', others))}" in page
    assert f"Without NoPE the order of the rise {ranks(*at_both_sizes('rise 8x', others))}" in page
    lead = small["rope"] - small["fox"], -loss["fox"]
    assert (order[0], sorted(order, key=loss.__getitem__)[2]) == ("fox", "fox")
    assert f"{lead[0]:.3f} nats of loss in the small model, {lead[1]:.3f} in the larger one" in page
    rises = at_both_sizes("rise 8x", ["nope"])[0][0], np.mean([*LARGER["rise 8x"]["nope"].values()])
    assert f"by {rises[0]:.2f} nats from 128 to 1,024 tokens in the small model and by {rises[1]:.2f} in" in page
