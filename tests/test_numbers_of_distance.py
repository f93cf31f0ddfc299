"""The tables and claims of docs/results/distance.md, from the values of each seed in docs/results/distance."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from helpers_stored import DOCS, Array, check_claim, check_listed, difference, printed, text_of

from roundround.analysis.intervals import half_width, holm, paired_p
from roundround.analysis.load import rows_of

SETTINGS = [(theta, p) for theta in (100, 1_000, 10_000, 500_000) for p in (1, 0.75, 0.5)] + [
    (10_000, 0.25),
    (10_000, 0),
]
SHOWN = (4, 16, 64, 128, 256, 512, 1024, 2032)
DISTANCES = (4, 8, 16, 32, 64, 96, 128, 256, 384, 512, 768, 1_024, 1_536, 2_032)
NEW = [(3_000, 0.75), (30_000, 0.75)]
NEAR, FAR = DISTANCES[:7], (1_024, 1_536, 2_032)  # distances within training, and beyond it
CONTRASTS = [(100, 16), (100, 256), (1_000, 64), (1_000, 1_024), (10_000, 384), (10_000, 2_032), (500_000, 2_032)]


def values(file: str) -> dict[tuple[float, float, int, int | None], Array]:
    """The exact match of each seed, [S], by theta, p, length and distance; None: over all distances."""
    found: dict[tuple[float, float, int, int | None], dict[int, float]] = defaultdict(dict)
    for _, row in rows_of(DOCS / "distance" / file):
        if row["metric"] == "exact_match":
            found[row["pe.theta"], row["pe.p"], row["length"], row.get("distance")][row["seed"]] = row["value"]
    return {place: np.array([by_seed[seed] for seed in sorted(by_seed)]) for place, by_seed in found.items()}


VALUES = values("distance.csv") | values("resting.csv")


def mean(values: Array) -> str:
    return f"{values.mean():.2f}"


def at(theta: float, p: float, distances: tuple[int, ...]) -> Array:
    """Mean exact match over distances in inputs of 2,048 tokens, of each run that has solved its own lengths, [S]."""
    solved = VALUES[theta, p, 128, None] >= 0.99
    return np.mean([VALUES[theta, p, 2048, d][solved] for d in distances], axis=0)


def quarter_turn(theta: float, p: float) -> float:
    """Tokens in which the slowest of the pairs that turn, 4 p of four, has turned by pi / 2."""
    return float(np.pi / 2 * theta ** ((4 * p - 1) / 4))


def named(theta: int, p: float) -> str:
    return "no position" if p == 0 else "fastest pair alone" if p == 0.25 else f"{theta:,}, p = {p}"


def test_every_setting_has_five_seeds_and_may_be_asked() -> None:
    for theta, p in SETTINGS:
        own = VALUES[theta, p, 128, None]
        assert len(own) == 5
        assert theta == 100 or own.mean() >= 0.99


@pytest.mark.parametrize(("theta", "p"), SETTINGS)
def test_table_by_distance(theta: int, p: float) -> None:
    cells = [mean(VALUES[theta, p, 128, None]), *(mean(VALUES[theta, p, 2048, d]) for d in SHOWN)]
    assert f"| {named(theta, p)} | {' | '.join(cells)} |" in text_of("distance")


def contrasts() -> dict[tuple[int, int], tuple[str, float]]:
    """The differences of the rule as the page prints them, and their p after Holm."""
    pairs = [(VALUES[theta, 1, 2048, d], VALUES[theta, 0.5, 2048, d]) for theta, d in CONTRASTS]
    p = holm([float(paired_p(mine[:, None], theirs[:, None])[0][0]) for mine, theirs in pairs])
    return {place: (difference(*pair), corrected) for place, pair, corrected in zip(CONTRASTS, pairs, p, strict=True)}


# (theta, p): seeds that were run again with 6,000 steps
AGAIN = {(10_000, 1): {4, 5}, (500_000, 1): {5}, (500_000, 0.5): {2, 3}}


def test_without_the_seeds_that_were_run_again() -> None:
    for theta, d, n in ((10_000, 2_032, 3), (10_000, 384, 3), (500_000, 2_032, 2)):
        again = AGAIN[theta, 1] | AGAIN.get((theta, 0.5), set())
        kept = [seed - 1 for seed in range(1, 6) if seed not in again]
        assert len(kept) == n
        apart = difference(*(VALUES[theta, p, 2048, d][kept] for p in (1, 0.5)))
        assert (apart if n > 2 else f"{apart[:-1]}; two seeds)") in text_of("distance")


def told(places: list[tuple[int, int]]) -> list[str]:
    return [f"{apart}, p {printed(p)}" for apart, p in (contrasts()[place] for place in places)]


def test_table_of_contrasts() -> None:
    for (theta, d), (apart, p) in contrasts().items():
        mine, theirs = VALUES[theta, 1, 2048, d], VALUES[theta, 0.5, 2048, d]
        away = abs((mine - theirs).mean()) > half_width(mine - theirs)
        quarter = quarter_turn(theta, 1)
        side = "before" if d < quarter else "beyond"
        cells = [f"{theta:,}", f"{quarter:,.0f}", f"{d:,}, {side}", mean(mine), mean(theirs)]
        assert f"| {' | '.join(cells)} | {f'**{apart}**' if away else apart} | {printed(p)} |" in text_of("distance")


def test_beyond_the_quarter_turn_rope_fails_and_half_at_rest_does_not() -> None:
    places = [(1_000, 1_024), (10_000, 2_032)]
    rope, half = ([mean(VALUES[theta, p, 2048, d]) for theta, d in places] for p in (1, 0.5))
    numbers = [f"in {rope[0]} of the cases", f"in {rope[1]}, where", f"{half[0]} and {half[1]} of the same searches"]
    check_claim("distance", "At bases 1,000 and 10,000 RoPE no longer", numbers + told(places))
    assert all(contrasts()[place][1] < 0.05 for place in places)


def test_rope_breaks_before_the_quarter_turn_too() -> None:
    places = [(10_000, 384), (500_000, 2_032), (1_000, 64)]
    check_claim("distance", "It breaks well before", told(places))
    assert [contrasts()[place][1] < 0.05 for place in places] == [True, True, False]
    assert [round(quarter_turn(theta, 1) / d) for theta, d in places[:2]] == [4, 15]  # a quarter, a fifteenth


def test_at_base_100_the_seeds_differ_too_much() -> None:
    (one, p_one), (other, p_other) = (contrasts()[100, d] for d in (16, 256))
    unsolved = {place: int((VALUES[*place, 128, None] < 0.99).sum()) for place in SETTINGS}
    numbers = [one, f"{other}, p {p_one:.3f} for both", f"{unsolved[100, 1]} of the 5 runs of RoPE and"]
    assert f"{p_one:.3f}" == f"{p_other:.3f}"
    check_claim("distance", "At base 100", [*numbers, f"{unsolved.pop((100, 0.75))} of p = 0.75"])
    assert sum(unsolved.values()) == unsolved[100, 1]


def test_without_position_length_does_harm_and_distance_none() -> None:
    near, far = at(10_000, 0, NEAR), at(10_000, 0, FAR)
    assert -0.1 < (far - near).mean() - half_width(far - near) < 0 < (far - near).mean() + half_width(far - near)
    numbers = [f"{mean(near)} is right near", f"{mean(far)} far away ({difference(far, near)})"]
    numbers += [f"{mean(VALUES[10_000, 0, 128, None])}."]
    check_claim("distance", "Without position", numbers)


def test_a_search_lasts_where_all_that_turns_turns_a_quarter_within_training() -> None:
    apart = {place: float((at(*place, FAR) - at(*place, NEAR)).mean()) for place in SETTINGS}
    for (theta, p), change in apart.items():
        near, far = at(theta, p, NEAR), at(theta, p, FAR)
        cells = [
            named(theta, p),
            f"{quarter_turn(theta, p):,.0f}" if p else "none turns",
            str(len(near)),
            mean(near),
            mean(far),
        ]
        away, shown = abs(change) > half_width(far - near), difference(far, near)
        assert f"| {' | '.join(cells)} | {f'**{shown}**' if away else shown} |" in text_of("distance")
    visible = {place: place[1] == 0 or quarter_turn(*place) <= 128 for place in SETTINGS}
    last = [change for place, change in apart.items() if visible[place] and place[1] < 1]
    lost = [-change for place, change in apart.items() if not visible[place]]
    check_claim(
        "distance",
        "A search lasts where",
        [
            f"change by {min(last):+.2f} to {max(last):+.2f} from near to far",
            f"lose {min(lost):.2f} to {max(lost):.2f}",
        ],
    )
    assert (len(last), len(lost)) == (8, 5)


def test_rope_breaks_at_the_quarter_turn_of_the_first_pair_that_makes_it_beyond_training() -> None:
    turns, falls = [], []
    for theta in (1_000, 10_000, 500_000):
        turns.append(min(turn for k in range(1, 5) if (turn := quarter_turn(theta, k / 4)) > 128))
        near = np.mean([VALUES[theta, 1, 2048, d] for d in DISTANCES if d <= turns[-1] / 2], axis=0)
        beyond = VALUES[theta, 1, 2048, min(d for d in DISTANCES if d >= turns[-1])]
        assert (beyond - near).mean() + half_width(beyond - near) < 0
        falls.append(f"{mean(near)} to {mean(beyond)}")
    places = "{:,.0f} tokens at base 1,000, {:,.0f} at 10,000, {:,.0f} at 500,000".format(*turns)
    check_claim("distance", "RoPE breaks at the quarter turn", [places, *falls])


def test_new_bases_lose_more_where_a_pair_turns_a_quarter_beyond_training() -> None:
    change = {}
    for theta, p in NEW:
        near, far = at(theta, p, NEAR), at(theta, p, FAR)
        assert len(near) == 5  # all have solved their own lengths
        change[theta], apart = far - near, difference(far, near)
        away = abs(change[theta].mean()) > half_width(change[theta])
        cells = [f"{theta:,}", f"{quarter_turn(theta, p):,.0f}", mean(near), mean(far)]
        assert f"| {' | '.join(cells)} | {f'**{apart}**' if away else apart} |" in text_of("distance")
    old, new = change[3_000], change[30_000]
    p_value = float(paired_p(new[:, None], old[:, None])[0][0])
    check_claim("distance", "The search loses more", [f"{difference(new, old)}, p {p_value:.3f}"])
    assert (new - old).mean() + half_width(new - old) > -0.1 > old.mean() - half_width(old)


def test_a_quarter_turn_just_within_training_may_not_be_enough() -> None:
    here, there, back = (VALUES[3_000, 0.75, 2048, d] for d in (64, 256, 384))
    numbers = [f"{mean(here)} is right at 64", f"{mean(there)} at 256 ({difference(there, here)})"]
    slowest = max(quarter_turn(*place) for place in SETTINGS if place[1] < 1 and quarter_turn(*place) <= 128)
    numbers += [f"{mean(back)} at 384", f"within {slowest:.0f} of the 128"]
    check_claim("distance", "A quarter turn just within", numbers)


def test_every_claim_of_the_page_is_checked() -> None:
    rules = ["The rule", "Added to the rule", "The new rule"]
    not_claims = ["The task", "The models", *rules, "This suggests how", "A task of search alone"]
    check_listed("distance", __file__, not_claims)
