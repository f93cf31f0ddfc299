"""The claims of docs/results/needles.md, from the values of each seed in docs/results/needles."""

from __future__ import annotations

from helpers_stored import check_claim, check_listed
from results.needles import (
    AT_INFERENCE,
    CHOSEN,
    FAR,
    LONG,
    NAMES,
    SAME,
    SHORT,
    TRAINED,
    VALUES,
    Settings,
    at,
    contrasts,
)
from results.stored import DOCS, difference, printed

from roundround.analysis.load import rows_of


def test_the_rule_chose_rates_and_steps() -> None:
    for name in ("softmax", *TRAINED):
        of_rates = {
            rate: tuple(
                VALUES[name, rate, SHORT, metric, 128, None][:3].mean() for metric in ("exact_match", "nats_per_token")
            )
            for rate in (5e-3, 1e-2, 2e-2)
        }
        solved = {rate: nats for rate, (right, nats) in of_rates.items() if right >= 0.99}
        best = min(solved, key=solved.__getitem__) if solved else max(of_rates, key=lambda rate: of_rates[rate][0])
        assert (best, SHORT if solved else LONG) == CHOSEN[name]
    assert at("softmax", 128).mean() >= 0.99


def told(name: str, length: int, of: Settings = CHOSEN) -> tuple[str, str]:
    mine, softmax, p = contrasts(length, of)[name]
    return difference(mine, softmax), f"p {printed(p)}"


def test_by_the_rule_as_entmax_loses_more() -> None:
    check_claim("needles", "By the rule ASEntmax", [", ".join(told("as_entmax_nape", 8_192))])
    assert all(contrasts(length)["as_entmax_nape"][2] < 0.05 for length in (2_048, 8_192))


def test_one_is_not_tested_and_the_others_show_no_clear_difference() -> None:
    own = at("adaptive_temperature_trained", 128)
    check_claim("needles", "The adaptive temperature in training is not tested", [f"({own.min():.2f} at 128"])
    assert [name for name in CHOSEN if name not in AT_INFERENCE and at(name, 128).mean() < 0.99] == [
        "adaptive_temperature_trained"
    ]
    assert all(
        contrasts(length)[name][2] > 0.05
        for length in FAR
        for name in NAMES
        if name not in ("softmax", "as_entmax_nape")
    )


def test_the_same_steps_and_rate_solve_the_trained_length() -> None:
    assert all(at(name, 128, of=SAME).mean() >= 0.99 for name in SAME)


def test_with_the_same_steps_and_rate_none_is_told_apart() -> None:
    fast, slow = at("softmax", 8_192, of=SAME), at("softmax", 8_192)
    numbers = [f"{slow.mean():.2f} at 1e-2 and {fast.mean():.2f} at 2e-2, {difference(fast, slow)}"]
    check_claim("needles", "Rate and steps may explain", numbers)
    assert all(contrasts(length, SAME)[name][2] > 0.05 for name in TRAINED for length in FAR)


def test_seeds_differ_more_than_normalisers() -> None:
    lost = {name: sorted(1 - at(name, 8_192, of=SAME)) for name in SAME}
    numbers = [f"{lost[name][0]:.2f} to {lost[name][4]:.2f}" for name in ("softmax", "as_entmax_nape")]
    check_claim("needles", "Seeds differ more", numbers)
    means = [at(name, 8_192, of=SAME).mean() for name in SAME]
    assert all(max(of) - min(of) > max(means) - min(means) for of in lost.values())


def large(**asked: object) -> list[tuple[int, float]]:
    """Seed and token accuracy of the large models that are asked for, at the rates that seed 0 chose."""
    rows = [row for _, row in rows_of(DOCS / "needles" / "recall_30m.csv") if row["metric"] == "token_accuracy"]
    chosen = [row for row in rows if row["optim.lr"] == (1e-3 if row["softmax"] == "ssmax" else 1e-4)]
    return [(row["seed"], row["value"]) for row in chosen if all(row.get(key) == value for key, value in asked.items())]


def test_large_models_solve_their_lengths() -> None:
    trained = large(length=None)
    assert {right for _, right in trained} == {1}
    different = {(name, seed) for name in ("softmax", *TRAINED) for seed, _ in large(length=None, softmax=name)}
    check_claim("needles", "All four solve", [f"the {len(trained)} runs", f"{len(different)} different pairs"])


def test_large_as_entmax_is_right_in_all() -> None:
    found = {length: large(softmax="as_entmax_nape", length=length) for length in FAR}
    assert {right for rows in found.values() for _, right in rows} == {1}
    assert {length: [seed for seed, _ in rows] for length, rows in found.items()} == {
        512: [1, 2, 3, 4, 5],
        2_048: [1, 2, 3, 4, 5],
        8_192: [1, 3],
    }
    check_claim("needles", "ASEntmax stays right", ["five seeds at 512 and 2,048 tokens and of two at 8,192"])


def test_large_adaptive_temperature_is_not() -> None:
    found = [large(softmax="adaptive_temperature_trained", length=length) for length in FAR]
    assert [len(rows) for rows in found] == [1, 1, 1]
    a, b, c = (f"{rows[0][1]:.2f}" for rows in found)
    check_claim(
        "needles", "The adaptive temperature in training does not", [f"{a} right at 512 tokens, {b} at 2,048 and {c}"]
    )


def test_every_claim_of_the_page_is_checked() -> None:
    check_listed("needles", __file__, ["The rule"])
