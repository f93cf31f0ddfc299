"""The tries of a search: the e-value, its threshold, what is added to a history, and what is refused."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import history_power
import numpy as np
import pytest
from conftest import ROOT
from scipy import optimize, stats

from roundround.analysis.intervals import ALPHA, e_needed, e_value
from roundround.analysis.standings import (
    Standing,
    complete,
    decide,
    paired,
    read_set,
    read_tries,
    stored,
)
from roundround.support.errors import UserError

V2 = read_set("v2", "default", None)
assert V2.decides is not None
LOSS, SPREAD, EFFECTS = V2.decides
ABOUT = {"set": "v2", "baseline": {"pe": "rope", "softmax": "softmax"}}
ROPE = next(standing for standing in stored("v2", "default") if standing.name == "rope")


def variant(*gains: float, first: int = 1) -> Standing:
    """A variant whose loss is below RoPE's by these gains; nan: no value."""
    found = Standing("v2", "default", V2.hash, complete({"pe": "mine"}), 3e-3)
    for seed, gain in enumerate(gains, start=first):
        found.add(seed, {LOSS.part: {LOSS.number: 3.3 - gain}}, {}, {})
    return found


def baseline() -> Standing:
    return variant(*[0.0] * 99)


def tried(path: Path, own: Standing, source: str = "a", *, seeds: list[int] | None = None) -> dict[str, Any]:
    return decide(path, ABOUT, (LOSS, SPREAD, EFFECTS), own, baseline(), seeds or [*own.made], source)


# -- the e-value


@pytest.mark.parametrize("gains", [[0.05], [0.04, 0.06, 0.05], [-0.01, 0.02], [0.3, -0.3, 0.2], [0.1, 0.1]])
def test_it_is_a_mixture_over_the_largest_likelihood_of_the_hypothesis(gains: list[float]) -> None:
    def likelihood(mean: float, deviation: float) -> float:
        return float(np.prod(stats.norm.pdf(gains, mean, deviation)))

    own = [likelihood(effect, deviation) for effect in EFFECTS for deviation in (SPREAD / 2, SPREAD)]
    most = max(SPREAD, float(np.std(gains)))
    found = [
        optimize.minimize(
            lambda x: -math.log(likelihood(*x) or 1e-300), start, bounds=[(-1, 0), (1e-4, most)], tol=1e-12
        )
        for start in ([-0.01, most], [0.0, most / 2], [-0.1, most / 1.5])
    ]
    largest = math.exp(-min(one.fun for one in found))
    assert float(e_value(np.array(gains), SPREAD, EFFECTS)) == pytest.approx(sum(own) / len(own) / largest, rel=1e-3)


@pytest.mark.parametrize("mean", [0.0, -0.005])
@pytest.mark.parametrize("deviation", [0.3 * SPREAD, SPREAD])
def test_without_an_effect_it_rarely_becomes_large_however_many_seeds_are_added(mean: float, deviation: float) -> None:
    """By Ville's inequality it ever reaches 20 in at most one of twenty searches, 100 in one of a hundred."""
    gains = mean + deviation * np.random.default_rng(0).standard_normal((30, 5_000))
    largest = np.max([e_value(gains[:n], SPREAD, EFFECTS) for n in range(1, 31)], axis=0)
    assert (largest >= 20).mean() < 0.05
    assert (largest >= 100).mean() < 0.01
    assert e_value(gains[:3], SPREAD, EFFECTS).mean() <= 1.0


def test_gains_that_are_zero_in_every_seed_are_no_evidence() -> None:
    assert float(e_value(np.zeros(3), SPREAD, EFFECTS)) < 1e-9


def test_gains_that_vary_more_than_is_assumed_are_little_evidence() -> None:
    assert float(e_value(np.array([0.01, 0.29, 0.02]), SPREAD, EFFECTS)) < 20
    assert float(e_value(np.array([0.09, 0.11, 0.12]), SPREAD, EFFECTS)) > 1e6


def test_the_shares_of_all_tries_add_up_to_alpha() -> None:
    shares = [1 / e_needed(number, 0) for number in range(1, 100_001)]
    assert 0.9 * ALPHA < sum(shares) < ALPHA
    assert e_needed(7, 3) == pytest.approx(e_needed(7, 0) / 4)


def test_stored_values_vary_no_more_than_the_set_says() -> None:
    pairs = [paired(standing, ROPE, LOSS) for standing in stored("v2", "default") if standing.name != "rope"]
    pairs = [some for some in pairs if len(some) == 3]
    assert 0.9 * SPREAD < math.sqrt(np.mean([np.var(some, ddof=1) for some in pairs])) < SPREAD
    assert (LOSS.part, LOSS.number, LOSS.better) == ("language", "nats_per_token@128", "lower")
    assert read_set("v2", "small", None).decides is None


# -- searches


@pytest.mark.parametrize(
    "kept",
    [
        lambda rng: history_power.kept_of_nothing(rng, SPREAD),
        lambda rng: history_power.kept_of_nothing(rng, SPREAD, own_seeds=True),
        lambda rng: history_power.kept_of_a_climb(rng, history_power.USUAL),
        history_power.kept_of_stored,
    ],
    ids=["the same seeds", "seeds of their own", "a climb", "stored differences"],
)
def test_of_a_thousand_searches_without_a_better_variant_at_most_five_in_a_hundred_keep_one(
    kept: Callable[[np.random.Generator], float],
) -> None:
    assert history_power.SEARCHES == 1_000
    assert kept(np.random.default_rng(1)) <= 0.05


def test_with_one_threshold_for_all_tries_more_searches_would_keep_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_power, "NEEDED", np.full(history_power.TRIES, 1 / ALPHA))
    assert history_power.kept_of_nothing(np.random.default_rng(1), SPREAD, own_seeds=True) > 0.05


def test_the_tables_of_the_docs_are_those_that_the_benchmark_prints(capsys: pytest.CaptureFixture[str]) -> None:
    history_power.main()
    lines = [line for line in capsys.readouterr().out.splitlines() if line]
    assert len(lines) > 12
    page = (ROOT / "docs/howto/search.md").read_text().splitlines()
    assert [line for line in lines if line not in page] == []


# -- what is added


def test_a_better_variant_is_kept_and_stays_kept(tmp_path: Path) -> None:
    path = tmp_path / "tries.jsonl"
    first = tried(path, variant(0.09, 0.08, 0.07))
    assert (first["kept"], first["try"], first["same_as"], first["seeds_are_new"]) == (True, 1, None, True)
    assert first["e_value"] > first["needed"] == e_needed(1, 0)
    again = tried(path, variant(-1.0, -1.0, -1.0, first=4))
    assert (again["kept"], again["same_as"]) == (True, 1)
    other = tried(path, variant(0.01, -0.01, 0.0), "b")
    assert (other["kept"], other["try"], other["seeds_are_new"]) == (False, 2, False)
    assert other["needed"] == e_needed(2, 1)
    assert len(read_tries(path, ABOUT)) == 2


def test_the_same_code_and_seeds_add_no_evidence_and_more_seeds_do(tmp_path: Path) -> None:
    path = tmp_path / "tries.jsonl"
    first = tried(path, variant(0.05, 0.04))
    assert not first["kept"]
    for _ in range(3):
        assert tried(path, variant(0.05, 0.04)) == first | {"same_as": 1}
    assert tried(path, variant(0.05, 0.04), seeds=[2])["same_as"] == 1
    more = tried(path, variant(0.06, 0.05, 0.04, first=3))
    assert (more["try"], [*more["differences"]]) == (2, ["3", "4", "5", "1", "2"])
    assert more["e_value"] > 50 * first["e_value"]
    assert len(read_tries(path, ABOUT)) == 2


def test_a_copy_is_known_by_its_numbers(tmp_path: Path) -> None:
    path = tmp_path / "tries.jsonl"
    tried(path, variant(0.09, 0.08, 0.07), "a")
    assert tried(path, variant(0.09, 0.08, 0.07), "a copy")["same_as"] == 1
    assert tried(path, variant(0.09, 0.08, 0.0700001), "another")["same_as"] is None


def test_a_variant_without_a_value_for_a_seed_is_not_kept(tmp_path: Path) -> None:
    found = tried(tmp_path / "tries.jsonl", variant(0.1, 0.1, math.nan, 0.1))
    assert (found["kept"], found["e_value"], found["differences"]["3"]) == (False, 0.0, None)


def test_rope_under_another_name_is_never_kept_in_200_tries(tmp_path: Path) -> None:
    """Its stored seeds 4, 5 and 6 are compared with its seeds 1, 2 and 3."""
    [own], path = [one for one in stored("v2", "default") if one.name == "rope"], tmp_path / "tries.jsonl"
    mine = {n: own.values(LOSS)[seed] for n, seed in enumerate([4, 5, 6], start=1)}
    own.numbers[LOSS.part, LOSS.number] = mine
    found = [
        decide(path, ABOUT, (LOSS, SPREAD, EFFECTS), own, ROPE, [*mine], f"copy {number % 2 * number}")
        for number in range(200)
    ]
    assert not any(one["kept"] for one in found)
    assert [one["same_as"] for one in found] == [None] + [1] * 199


# -- the file


def test_many_writers_at_once_leave_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "tries.jsonl"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: tried(path, variant(0.001 * n, 0.0), str(n)), range(40)))
    found = read_tries(path, ABOUT)
    assert sorted(int(one["source"]) for one in found) == [*range(40)]


DAMAGE: dict[str, Callable[[list[str]], str]] = {
    "torn": lambda lines: "\n".join(lines)[:-20],
    "a line is gone": lambda lines: lines[1],
    "another set": lambda lines: lines[0].replace('"v2"', '"v1"'),
    "another baseline": lambda lines: lines[0].replace('"rope"', '"nope"'),
    "a decision was changed": lambda lines: lines[0].replace('"kept": false', '"kept": true'),
    "a threshold was changed": lambda lines: lines[0].replace('"needed": 1', '"needed": 0.1'),
    "an endless number": lambda lines: lines[0].replace('"e_value": ', '"e_value": 1' + "0" * 400),
    "a text as a difference": lambda lines: lines[0].replace('{"1": ', '{"1": "x", "2": '),
    "no object": lambda lines: "[1]",
    "an object of others": lambda lines: json.dumps({"metric": "loss"}),
    "not json": lambda lines: "variant,loss\nmine,3.2\n",
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_or_foreign_file_is_refused_and_stays_as_it_is(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "tries.jsonl"
    tried(path, variant(0.01), "a")
    tried(path, variant(0.0), "b")
    text = DAMAGE[damage](path.read_text().splitlines())
    assert text.splitlines() != path.read_text().splitlines()
    path.write_text(text)
    with pytest.raises(
        UserError, match=r"tries\.jsonl is not the history of this search \(line [12]: .*\); give another file"
    ):
        tried(path, variant(0.02), "c")
    assert path.read_text() == text


@pytest.mark.parametrize("name", [".", "nowhere/tries.jsonl"])
def test_a_place_that_cannot_be_a_history_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match="is not the history of this search"):
        read_tries(tmp_path / name, ABOUT)
