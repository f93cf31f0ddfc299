"""The standard set and its stored values: their form, the test of a difference, the verdicts."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from roundround.analysis.standings import (
    BETTER,
    EQUIVALENT,
    NO_CLEAR,
    NO_VALUE,
    NOT_TESTED,
    RATE,
    STANDINGS,
    TUNED,
    WORSE,
    Column,
    Part,
    StandardSet,
    Standing,
    add,
    at_better_rate,
    compared,
    complete,
    format_variant,
    read_set,
    read_standing,
    usual_variance,
    variants_of,
)
from roundround.config.options import options_of
from roundround.support.errors import UserError

SETS = {name: read_set(name, "default", None) for name in ("v1", "v2")}
V1 = SETS["v1"]
FILES = sorted(STANDINGS.rglob("*.json"))


def standing(name: str, values: dict[str, list[float | None]], *, seeds: int = 3) -> Standing:
    found = Standing("v1", "default", V1.hash, complete({"pe": name}), 3e-3)
    for n in range(seeds):
        numbers = {number: math.nan if own[n] is None else own[n] for number, own in values.items()}
        found.add(n + 1, {"copying": numbers}, {}, {"machine": "cpu: [a]"})  # type: ignore[dict-item]
    return found


def column(better: str = "higher", name: str = "copying", number: str = "token_accuracy@10", **more: Any) -> Column:
    return Column(name=name, part="copying", number=number, unit="share", better=better, **more)


def a_set(*columns: Column, like: Sequence[Standing] = ()) -> StandardSet:
    return replace(V1, parts=(Part(name="copying", question="Does it?", columns=columns),), like=tuple(like))


def drawn(
    rng: np.random.Generator, n: int, seeds: int, *, spread: float, of_seed: float = 0.0, means: float = 0.1
) -> list[Standing]:
    """n variants with other means, which share what a seed does: rows of a mean, an effect of the seed and a rest."""
    effects = rng.normal(0, of_seed, seeds)
    values = rng.normal(0.5, means, (n, 1)) + effects + rng.normal(0, spread, (n, seeds))
    return [standing(f"own{k}", {"token_accuracy@10": row}, seeds=seeds) for k, row in enumerate(values.tolist())]


# -- the better of two learning rates


def at_rates(name: str, first: list[float | None], second: list[float | None] | None) -> dict[str, Standing]:
    found = {name: standing(name, {"token_accuracy@10": first}, seeds=len(first))}
    if second is not None:
        other = standing(name, {"token_accuracy@10": second}, seeds=len(second))
        other.variant = {**other.variant, RATE: "0.01"}
        found[other.name] = other
    return found


WITH_TWO_RATES = replace(
    a_set(column(margin=0.1)),
    parts=(*a_set(column(margin=0.1)).parts, Part(name="cost", question="", columns=(), measures="costs")),
    tuned_rate=1e-2,
)


@pytest.mark.parametrize(("first", "second", "taken"), [
    ([0.5, 0.5, 0.5], [0.7, 0.7, 0.5], 2), ([0.5, 0.5, 0.5], [0.6, 0.6, 0.5], 1), ([0.5, 0.5, 0.5], [0.5, 0.4, 0.5], 1),
    ([0.5, 0.5, 0.5], [0.9, 0.9, None], 1), ([0.9, 0.9, None], [0.1, 0.1, 0.1], 2), ([None] * 3, [None] * 3, 1),
    ([0.1, 0.1, 0.1, 0.9], [0.3, 0.3, 0.3], 2), ([0.5, 0.5, 0.5], None, 0), ([0.5, 0.5, 0.5], [0.9], 0),
])  # fmt: skip
def test_the_better_rate_loses_fewer_seeds_or_has_a_mean_better_by_more_than_the_margin(
    first: list[float | None], second: list[float | None] | None, taken: int
) -> None:
    found = at_rates("nope", first, second)
    found["nope"].numbers["cost", "time"] = {1: 2.0}
    better = at_better_rate(found, ["nope"], WITH_TWO_RATES, [1, 2, 3])
    assert [*better] == ["nope"] * (taken > 0)
    for known in better.values():
        source = found[("nope", "nope + optim.lr=0.01")[taken - 1]].numbers.get(("copying", "token_accuracy@10"), {})
        assert known.numbers.get(("copying", "token_accuracy@10"), {}) == {n: source[n] for n in source if n < 4}
        assert known.tuned == ("copying",) * (taken == 2)
        assert known.numbers["cost", "time"] == {1: 2.0}


def test_all_that_are_shown_choose_by_the_seeds_that_all_have_at_both_rates() -> None:
    found = at_rates("rope", [0.5] * 12, [0.5, 0.5, 0.5, *[0.9] * 9]) | at_rates("nope", [0.5] * 3, [0.7] * 4)
    found |= at_rates("alibi", [0.5], [0.9])  # without the seeds that are asked for
    better = at_better_rate(found, ["rope", "nope", "alibi"], WITH_TWO_RATES, [1, 2])
    assert {name: ([*one.made], one.tuned) for name, one in better.items()} == {
        "rope": ([1, 2, 3], ()), "nope": ([1, 2, 3], ("copying",))
    }  # fmt: skip
    assert at_better_rate(found, ["rope"], WITH_TWO_RATES, [1, 2])["rope"].tuned == ("copying",)
    differs = compared(better["nope"], better["rope"], WITH_TWO_RATES)[0]
    assert (differs["rate"], differs["difference"]) == (1e-2, pytest.approx(0.2))


def test_where_one_is_at_the_second_rate_the_larger_variance_of_both_rates_counts() -> None:
    rng = np.random.default_rng(1)
    calm, wild = (tuple(drawn(rng, 6, 3, spread=spread)) for spread in (0.01, 0.1))
    base, own = standing("rope", {"token_accuracy@10": [0.5] * 3}), standing("own", {"token_accuracy@10": [0.6] * 3})
    tuned = replace(own, tuned=("copying",))
    for at_first, at_second, verdicts in ((calm, wild, (BETTER, NO_CLEAR)), (wild, calm, (NO_CLEAR, NO_CLEAR))):
        the_set = replace(WITH_TWO_RATES, like=at_first, like_tuned=at_second)
        assert tuple(compared(one, base, the_set)[0]["verdict"] for one in (own, tuned)) == verdicts
        assert compared(base, tuned, the_set)[0]["verdict"] == NO_CLEAR


def test_the_set_knows_which_variants_close_to_rope_have_the_second_rate() -> None:
    assert {format_variant(one.variant) for one in SETS["v2"].like_tuned} == {
        f"{name} + {RATE}=0.01" for name in ("rope", "rope_500k", "rope + sink", "rope + ssmax")
    }


# -- the test of a difference


def test_without_other_variants_it_is_students_paired_test() -> None:
    own, base = [0.8, 0.7, 0.95], [0.5, 0.6, 0.55]
    [found] = compared(
        standing("nope", {"token_accuracy@10": [*own]}),
        standing("rope", {"token_accuracy@10": [*base]}),
        a_set(column()),
    )
    theirs = stats.ttest_rel(own, base)
    interval = theirs.confidence_interval(0.95)
    assert (found["p"], found["difference_low"], found["difference_high"]) == pytest.approx((theirs.pvalue, *interval))


def test_a_number_has_its_weight_in_holms_correction() -> None:
    columns = column(weight=3), column(name="further", number="token_accuracy@15")
    own, base = (
        standing(name, {"token_accuracy@10": values, "token_accuracy@15": [0.5, 0.4, 0.6]})
        for name, values in (("own", [0.8, 0.7, 0.95]), ("rope", [0.5, 0.6, 0.55]))
    )
    found = compared(own, base, a_set(*columns))[0]
    assert found["p_holm"] == pytest.approx(found["p"] * (3 + 1) / 3)
    [loss] = [one for one in SETS["v2"].columns if one.weight != 1]
    assert (loss.name, loss.weight) == ("loss", 3)


def test_the_same_difference_in_every_seed_but_for_rounding_is_a_sign_test() -> None:
    own, base = (standing(name, {"token_accuracy@10": values}) for name, values in (
        ("own", [0.4, 0.6, 0.8]), ("rope", [0.3, 0.5, 0.7]),
    ))  # fmt: skip
    [found] = compared(own, base, a_set(column()))
    assert (found["p"], found["verdict"]) == (0.25, NO_CLEAR)


def test_a_gate_that_is_missed_alike_in_every_seed_is_closed() -> None:
    columns = column(margin=0.1), column(name="further", number="token_accuracy@15", gate="copying")
    own, base = (
        standing(name, {"token_accuracy@10": [value] * 3, "token_accuracy@15": [0.1, 0.2, 0.4]})
        for name, value in (("own", 0.0), ("rope", 1.0))
    )
    assert [record["verdict"] for record in compared(own, base, a_set(*columns))] == [WORSE, NOT_TESTED]


@pytest.mark.parametrize(("within", "verdicts"), [
    ([0.3, 0.9, 1.0], ["", NOT_TESTED]), ([0.9, 0.95, 1.0], ["", BETTER]), ([0.5, 0.51, 0.52], [WORSE, NOT_TESTED]),
    ([0.5], ["", NOT_TESTED]),  # nothing says how this varies
])  # fmt: skip
def test_a_gate_is_closed_by_its_mean_and_worse_by_its_interval(within: list[float], verdicts: list[str]) -> None:
    columns = column(margin=0.1), column(name="further", number="token_accuracy@15", gate="copying")
    further = [0.5, 0.5001, 0.5002][: len(within)]
    own = standing("own", {"token_accuracy@10": [*within], "token_accuracy@15": [*further]}, seeds=len(within))
    base = standing("rope", {"token_accuracy@10": [1.0] * 3, "token_accuracy@15": [0.1] * 3})
    assert [record["verdict"] for record in compared(own, base, a_set(*columns))] == verdicts


def test_a_variant_that_failed_in_one_of_its_seeds_has_no_value() -> None:
    base = standing("rope", {"token_accuracy@10": [0.5, 0.51, 0.52]})
    for own, verdict in (([0.9, None, 0.94], NO_VALUE), ([0.9, 0.93, 0.94], BETTER)):
        assert compared(standing("own", {"token_accuracy@10": own}), base, a_set(column()))[0]["verdict"] == verdict
    lost = standing("rope", {"token_accuracy@10": [0.5, None, 0.52]})  # where the baseline failed, nothing is lost
    [found] = compared(standing("own", {"token_accuracy@10": [0.9, None, 0.94]}), lost, a_set(column()))
    assert (found["verdict"], found["n_pairs"]) == (BETTER, 2)


def test_where_nothing_says_how_a_difference_varies_its_spread_is_at_least_a_hundredth() -> None:
    own, base = (
        standing(n, {"token_accuracy@10": v}, seeds=2) for n, v in (("own", [0.3, 0.40001]), ("rope", [0.29, 0.39]))
    )
    [found] = compared(own, base, a_set(column()))
    assert found["p"] == pytest.approx(2 * stats.t.sf(0.010005 / (0.01 / math.sqrt(2)), 1), rel=1e-3)


def test_how_a_difference_varies_is_the_rest_of_an_analysis_of_variance_in_two_ways() -> None:
    rng = np.random.default_rng(0)
    like = drawn(rng, 19, 3, spread=0.04, of_seed=0.3)
    y = np.array([[*one.values(column()).values()] for one in like])
    rest = y - y.mean(0) - y.mean(1, keepdims=True) + y.mean()
    assert usual_variance(column(), like) == pytest.approx((2 * float(np.square(rest).sum()) / 36, 36))
    longer = drawn(rng, 1, 12, spread=0.04)  # seeds that no other variant has say nothing of a difference
    assert usual_variance(column(), [*like, *longer])[1] == 38
    assert usual_variance(column(), [like[0].without([2, 3])]) == (0.0, 0)
    assert usual_variance(column(), []) == (0.0, 0)


@pytest.mark.parametrize("of_seed", [0.0, 0.05, 0.3])
def test_p_values_are_those_of_chance_where_there_is_no_difference(of_seed: float) -> None:
    """Whatever a seed does to all variants alike; so are the intervals."""
    rng, p, inside = np.random.default_rng(1), [], []
    for _ in range(600):
        rope, own, *like = drawn(rng, 21, 12, spread=0.05, of_seed=of_seed, means=0.0)
        own, *like = (one.without(range(4, 13)) for one in (own, *like))
        [found] = compared(own, rope, a_set(column(), like=[rope, *like]))
        p.append(found["p"])
        inside.append(found["difference_low"] < 0 < found["difference_high"])
    assert stats.kstest(p, "uniform", alternative="greater").pvalue > 0.01
    assert 0.93 < np.mean(inside) < 0.98


def test_a_variant_whose_seeds_vary_much_more_counts_by_its_own_variance() -> None:
    like = [standing(f"like{n}", {"token_accuracy@10": [0.5, 0.51, 0.49]}) for n in range(5)]
    base = standing("rope", {"token_accuracy@10": [0.5, 0.51, 0.49]})
    own = standing("own", {"token_accuracy@10": [0.9, 0.5, 0.1]})
    steady = standing("steady", {"token_accuracy@10": [0.6, 0.6, 0.6]})
    of_own, of_steady = (compared(one, base, a_set(column(), like=like))[0] for one in (own, steady))
    assert of_own["difference_high"] - of_own["difference_low"] > 1.9
    assert of_steady["p"] < 0.001


# -- verdicts


def test_a_variant_is_paired_with_the_baseline_seed_by_seed() -> None:
    base = standing("rope", {"token_accuracy@10": [0.5, 0.6, 0.7]})
    own = standing("nope", {"token_accuracy@10": [0.6, None, 0.9]})
    [found] = compared(own, base, a_set(column()))
    assert (found["n_pairs"], found["value"]) == (2, pytest.approx(0.75))
    assert found["difference"] == pytest.approx(0.15)


LIKE = [standing(f"like{n}", {"token_accuracy@10": [0.50 + 0.02 * (n % 2), 0.51, 0.49]}) for n in range(6)]


@pytest.mark.parametrize(("better", "shift", "verdict"), [
    ("higher", 0.5, BETTER), ("higher", -0.5, WORSE), ("lower", 0.5, WORSE), ("lower", -0.5, BETTER),
    ("higher", 0.001, EQUIVALENT), ("higher", 0.012, NO_CLEAR), ("none", 0.5, ""),
])  # fmt: skip
def test_which_way_is_better_is_the_columns(better: str, shift: float, verdict: str) -> None:
    base = standing("rope", {"token_accuracy@10": [0.50, 0.52, 0.49]})
    own = standing("nope", {"token_accuracy@10": [0.501 + shift, 0.519 + shift, 0.489 + shift]})
    [found] = compared(own, base, a_set(column(better, margin=0.02), like=LIKE))
    assert found["verdict"] == verdict


@pytest.mark.parametrize(("within", "beyond", "verdicts"), [
    ([0.5, 0.51, 0.49], [0.9, 0.9, 0.9], ["", BETTER]), ([0.2, 0.2, 0.2], [0.9, 0.9, 0.9], [WORSE, NOT_TESTED]),
    ([0.39, 0.39, 0.39], [0.9, 0.9, 0.9], ["", NOT_TESTED]),
    ([0.45] * 3, [0.9] * 3, ["", BETTER]), ([0.9, 0.9, 0.9], [0.1, 0.1, 0.1], ["", WORSE]),
])  # fmt: skip
def test_a_number_beyond_the_trained_lengths_is_tested_only_if_the_task_is_learned_as_well(
    within: list[float | None], beyond: list[float | None], verdicts: list[str]
) -> None:
    columns = column(margin=0.1), column(name="further", number="token_accuracy@15", gate="copying")
    like = [
        standing(
            f"like{n}", {key: [0.50 + 0.02 * (n % 2), 0.51, 0.49] for key in ("token_accuracy@10", "token_accuracy@15")}
        )
        for n in range(6)
    ]
    own = standing("own", {"token_accuracy@10": within, "token_accuracy@15": beyond})
    found = compared(own, like[0], a_set(*columns, like=like))
    assert [record["verdict"] for record in found] == verdicts
    assert found[0]["p_holm"] is None, "a gate is in no family of judged numbers"


def test_a_number_may_be_the_difference_of_two() -> None:
    own = standing("own", {"token_accuracy@10": [0.9, 0.8, None], "token_accuracy@15": [0.5, 0.1, 0.3]})
    rise = column(number="token_accuracy@15 - token_accuracy@10")
    assert own.values(rise) == pytest.approx({1: -0.4, 2: -0.7})


# -- variants and files


def test_variants_are_every_combination_of_what_is_named() -> None:
    found = variants_of(["pe=nope,rope", "softmax=ssmax", "pe.theta=100"])
    assert [(v["pe"], v["softmax"], v["pe.theta"]) for v in found] == [
        ("nope", "ssmax", "100"),
        ("rope", "ssmax", "100"),
    ]
    assert format_variant(complete({"pe": "nape", "softmax": "ssmax", "gate": "none"})) == "nape + ssmax"
    with pytest.raises(UserError, match=r"optim\.lr=1: the set fixes everything except pe, softmax"):
        variants_of(["optim.lr=1"])


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    own = standing("nope", {"token_accuracy@10": [0.1, None, 0.3]})
    path = tmp_path / own.file_name
    path.write_text(own.as_json())
    assert read_standing(path) == own


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("numbers", {"copying": {"token_accuracy@10": [0.1]}}),
        ("numbers", {"copying": {"token_accuracy@10": ["1", 1, 1]}}),
        ("numbers", {"copying": {"token_accuracy@10": [10**400, 1, 1]}}),
        ("numbers", {"copying": {"token_accuracy@10": [1.7e308, 1, 1]}}),
        ("made", []),
        ("made", ["", "", ""]),
        ("seeds", [1, 1, 1]),
        ("seeds", ["1", 2, 3]),
        ("seeds", [None, 2, 3]),
        ("remarks", None),
        ("remarks", {"copying": [1]}),
        ("variant", None),
        ("variant", ["rope"]),
        ("variant", {"pe": 3}),
        ("variant", {"softmax": "softmax"}),
    ],
)
def test_a_foreign_file_is_refused(tmp_path: Path, key: str, value: object) -> None:
    own = standing("nope", {"token_accuracy@10": [0.1, None, 0.3]})
    path = tmp_path / own.file_name
    path.write_text(json.dumps(json.loads(own.as_json()) | {key: value}))
    with pytest.raises(UserError, match="is not a file of values that roundround bench wrote: "):
        read_standing(path)


def test_seeds_of_two_files_are_put_together() -> None:
    first = standing("nope", {"token_accuracy@10": [0.1]}, seeds=1)
    second = standing("nope", {"token_accuracy@10": [0.9, 0.2]}, seeds=2)
    second.remarks["copying"] = ["seed 1: not this one", "seed 2: it diverged"]
    found = {first.name: first}
    add(found, second)
    both, left = found[first.name], second.without([1])
    assert both.numbers["copying", "token_accuracy@10"] == {1: 0.1, 2: 0.2}
    assert left.numbers["copying", "token_accuracy@10"] == {2: 0.2}
    assert both.remarks == left.remarks == {"copying": ["seed 2: it diverged"]}


def test_records_are_kept_by_length_and_position() -> None:
    [language] = [part for part in V1.parts if part.name == "language"]
    records: list[dict[str, Any]] = [
        {"metric": "nats_per_token", "length": 128, "value": 3.0},
        {"metric": "nats_per_token", "length": 1024, "value": "nan"},
        {"metric": "nats_per_token", "length": 128, "first_position": 0, "last_position": 3, "value": 9.0},
        {"metric": "nats_per_token", "length": 1024, "first_position": 512, "last_position": 1023, "value": 4.0},
        {"metric": "entropy", "length": 128, "layer": 0, "head": 0, "value": 1.0},
        {"metric": "entropy", "length": 128, "layer": 0, "head": 1, "value": 3.0},
        {"metric": "perplexity", "length": 128, "value": 20.0},
    ]
    found = language.numbers_of(records)
    assert math.isnan(found.pop("nats_per_token@1024"))
    assert found == {"nats_per_token@128": 3.0, "nats_per_token:position@1023": 4.0, "entropy@128": 2.0}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_stored_file_is_of_the_set_as_it_is(path: Path) -> None:
    """What one sends in is a file as `roundround bench` leaves it, of a variant of this package, with its origin."""
    found = read_standing(path)
    the_set = SETS[found.set]
    assert (found.size, found.hash) == (the_set.size, the_set.hash), "made with another set"
    folder = TUNED if RATE in found.variant else found.size
    assert path == STANDINGS / found.set / folder / found.file_name
    assert found.variant["pe"] in options_of("pe")
    assert found.variant["softmax"] in options_of("softmax")
    assert found.as_json() == path.read_text()
    assert all(made[name] for made in found.made.values() for name in ("commit", "machine", "command"))
    for one in the_set.columns:
        of_attention = one.number.startswith("largest_weight") and found.variant.get("attention") == "gated_deltanet"
        there = found.values(one) or one.part in found.remarks or (one.part, one.number) in found.numbers
        assert there or of_attention or (folder == TUNED and one.part == "cost"), one.name


def test_the_words_of_a_training_name_no_usual_option() -> None:
    [variant] = variants_of(["attention=gated_deltanet"])
    words = V1.words(V1.parts[0], variant, 1)
    assert "attention=gated_deltanet" in words
    assert [word for word in words if word.startswith(("pe=", "softmax="))] == []
