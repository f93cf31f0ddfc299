"""The standard set and its stored values: their form, the pairing, the moderated test, the verdicts."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from roundround.analysis.intervals import fitted_prior, moderated
from roundround.analysis.standings import (
    BETTER,
    NO_CLEAR,
    STANDINGS,
    WORSE,
    Column,
    Standing,
    add,
    compared,
    complete,
    format_variant,
    priors,
    read_set,
    read_standing,
    variants_of,
)
from roundround.config.options import options_of
from roundround.support.errors import UserError

V1 = read_set("v1", "default", None)
FILES = sorted(STANDINGS.rglob("*.json"))


def standing(name: str, values: dict[str, list[float | None]], *, seeds: int = 3) -> Standing:
    found = Standing("v1", "default", V1.hash, complete({"pe": name}), 3e-3)
    for n in range(seeds):
        numbers = {number: math.nan if own[n] is None else own[n] for number, own in values.items()}
        found.add(n + 1, {"copying": numbers}, {}, {"machine": "cpu: [a]"})  # type: ignore[dict-item]
    return found


def column(better: str = "higher") -> Column:
    return Column(name="copying", part="copying", number="token_accuracy@10", unit="share", better=better)


# -- the moderated test


def groups(n: int, size: int, *, s0: float, d0: float, seed: int = 0) -> list[list[float]]:
    """Differences whose variances are drawn as the model of `moderated` has it, around 0."""
    rng = np.random.default_rng(seed)
    variances = d0 * s0**2 / rng.chisquare(d0, n)
    return [rng.normal(0, math.sqrt(variance), size).tolist() for variance in variances]


def test_without_other_groups_it_is_students_test() -> None:
    own = [0.3, 0.1, 0.4]
    theirs = stats.ttest_1samp(own, 0)
    _, low, high, p = moderated(own, (0.0, 0.0))
    assert (p, low, high) == pytest.approx((theirs.pvalue, *theirs.confidence_interval(0.95)))


def test_the_prior_is_that_which_the_groups_were_drawn_from() -> None:
    variance, degrees = fitted_prior(groups(100_000, 3, s0=0.2, d0=6.0))
    assert math.sqrt(variance) == pytest.approx(0.2, rel=0.05)
    assert degrees == pytest.approx(6.0, rel=0.15)


def test_p_values_are_uniform_where_there_is_no_difference() -> None:
    drawn = groups(600, 3, s0=1.0, d0=4.0, seed=2)
    prior = fitted_prior(drawn)
    p = [moderated(own, prior)[-1] for own in drawn]
    assert stats.kstest(p, "uniform").pvalue > 0.01
    assert np.mean(np.array(p) < 0.05) == pytest.approx(0.05, abs=0.02)


# -- verdicts


def test_a_variant_is_paired_with_the_baseline_seed_by_seed() -> None:
    base = standing("rope", {"token_accuracy@10": [0.5, 0.6, 0.7]})
    own = standing("nope", {"token_accuracy@10": [0.6, None, 0.9]})
    [found] = compared(own, base, [(0.0, 0.0)], [column()])
    assert (found["n_pairs"], found["value"]) == (2, pytest.approx(0.75))
    assert found["difference"] == pytest.approx(0.15)


@pytest.mark.parametrize(("better", "shift", "verdict"), [
    ("higher", 0.5, BETTER), ("higher", -0.5, WORSE), ("lower", 0.5, WORSE), ("lower", -0.5, BETTER),
    ("higher", 0.0, NO_CLEAR), ("none", 0.5, ""),
])  # fmt: skip
def test_which_way_is_better_is_the_columns(better: str, shift: float, verdict: str) -> None:
    base = standing("rope", {"token_accuracy@10": [0.50, 0.52, 0.49]})
    others = [standing(f"other{n}", {"token_accuracy@10": [0.5 + 0.01 * n, 0.5, 0.49]}) for n in range(5)]
    own = standing("nope", {"token_accuracy@10": [0.501 + shift, 0.519 + shift, 0.489 + shift]})
    [found] = compared(own, base, priors(base, others, [column()]), [column(better)])
    assert found["verdict"] == verdict


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
        ("made", []),
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
    the_set = read_set(found.set, found.size, None)
    assert found.hash == the_set.hash, "made with another set"
    assert path == STANDINGS / found.set / found.size / found.file_name
    assert found.variant["pe"] in options_of("pe")
    assert found.variant["softmax"] in options_of("softmax")
    assert found.as_json() == path.read_text()
    assert all(made[name] for made in found.made.values() for name in ("commit", "machine", "command"))
    for one in the_set.columns:
        of_attention = one.number.startswith("largest_weight") and found.variant.get("attention") == "gated_deltanet"
        there = found.values(one) or one.part in found.remarks or (one.part, one.number) in found.numbers
        assert there or of_attention, one.name


def test_equal_variants_are_told_apart_no_oftener_than_the_p_value_says() -> None:
    """All differences share the baseline's seeds, so that a quiet baseline makes all variances small at once."""
    rng = np.random.default_rng(0)
    p = []
    for _ in range(400):
        values = rng.normal(size=(22, 3)).tolist()
        base, *others = (standing(f"other{n}", {"token_accuracy@10": own}) for n, own in enumerate(values))
        [prior] = priors(base, others, [column()])
        p += [compared(other, base, [prior], [column()])[0]["p"] or 1.0 for other in others]
    assert np.mean(np.array(p) < 0.05) < 0.065
    assert np.mean(np.array(p) < 0.05 / 19) < 0.0036


def test_the_words_of_a_training_name_no_usual_option() -> None:
    [variant] = variants_of(["attention=gated_deltanet"])
    words = V1.words(V1.parts[0], variant, 1)
    assert "attention=gated_deltanet" in words
    assert [word for word in words if word.startswith(("pe=", "softmax="))] == []
