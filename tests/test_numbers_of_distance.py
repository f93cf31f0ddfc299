"""The claims of docs/results/distance.md, from the values of each seed in docs/results/distance."""

from __future__ import annotations

from helpers_stored import check_claim, check_listed, text_of
from results.distance import (
    FAR,
    NEAR,
    NEW,
    SETTINGS,
    VALUES,
    at,
    contrasts,
    control,
    less_control,
    mean,
    quarter_turn,
)
from results.stored import difference, printed

from roundround.analysis.intervals import half_width, paired_p


def test_every_setting_has_five_seeds_and_may_be_asked() -> None:
    for theta, p in SETTINGS:
        own = VALUES[theta, p, 128, None]
        assert len(own) == 5
        assert theta == 100 or own.mean() >= 0.99


# (theta, p): seeds that were run again with 6,000 steps
AGAIN = {(10_000, 1): {4, 5}, (500_000, 1): {5}, (500_000, 0.5): {2, 3}}


def test_without_the_seeds_that_were_run_again() -> None:
    for theta, d, n in ((10_000, 2_032, 3), (10_000, 384, 3), (500_000, 2_032, 2)):
        again = AGAIN[theta, 1] | AGAIN.get((theta, 0.5), set())
        kept = [seed - 1 for seed in range(1, 6) if seed not in again]
        assert len(kept) == n
        apart = difference(*(VALUES[theta, p, 2048, d][kept] for p in (1, 0.5)))
        assert (apart if n > 2 else f"{apart[:-1]}; two seeds)") in text_of("distance")


def told(places: list[tuple[int, int]], among: dict[tuple[int, int], tuple[str, float]]) -> list[str]:
    return [f"{apart}, p {printed(p)}" for apart, p in (among[place] for place in places)]


def test_beyond_the_quarter_turn_rope_fails_and_half_at_rest_does_not() -> None:
    places = [(1_000, 1_024), (10_000, 2_032)]
    rope, half = ([mean(VALUES[theta, p, 2048, d]) for theta, d in places] for p in (1, 0.5))
    numbers = [f"{rope[0]} and {rope[1]} of its answers", f"{half[0]} and {half[1]} are."]
    check_claim("distance", "At bases 1,000 and 10,000 RoPE no longer", numbers + told(places, less_control()))
    assert all(found[place][1] < 0.05 for place in places for found in (contrasts(), less_control()))


def test_rope_breaks_well_before_the_quarter_turn_at_one_base() -> None:
    places = [(10_000, 384), (500_000, 2_032), (1_000, 64)]
    assert [contrasts()[place][1] < 0.05 for place in places] == [True, True, False]
    assert [less_control()[place][1] < 0.05 for place in places] == [False, True, False]
    check_claim("distance", "Well before that turn", ["500,000 alone"])


def test_the_length_alone_does_harm_at_one_base() -> None:
    harm = {theta: control(theta) for theta in (1_000, 10_000, 500_000)}
    assert [bool(abs(one.mean()) > half_width(one)) for one in harm.values()] == [True, False, False]
    first, *others = (difference(one, 0 * one) for one in harm.values())
    check_claim("distance", "The length alone does harm", [f"control is {first}.", " and ".join(others)])


def test_at_base_100_the_seeds_differ_too_much() -> None:
    assert all(contrasts()[100, d][1] > 0.05 for d in (16, 256))
    unsolved = {place: int((VALUES[*place, 128, None] < 0.99).sum()) for place in SETTINGS}
    numbers = [f"{unsolved[100, 1]} of the 5 runs of RoPE and"]
    check_claim("distance", "At base 100", [*numbers, f"{unsolved.pop((100, 0.75))} of p = 0.75"])
    assert sum(unsolved.values()) == unsolved[100, 1]


def test_without_position_distance_does_little_or_no_harm() -> None:
    near, far = at(10_000, 0, NEAR), at(10_000, 0, FAR)
    assert -0.1 < (far - near).mean() - half_width(far - near) < 0 < (far - near).mean() + half_width(far - near)
    numbers = [f"{mean(near)} is right near", f"{mean(far)} far away ({difference(far, near)})"]
    check_claim("distance", "Without position", numbers)


def test_a_search_lasts_where_all_that_turns_turns_a_quarter_within_training() -> None:
    apart = {place: float((at(*place, FAR) - at(*place, NEAR)).mean()) for place in SETTINGS}
    visible = {place: place[1] == 0 or quarter_turn(*place) <= 128 for place in SETTINGS}
    last = [change for place, change in apart.items() if visible[place] and place[1] < 1]
    lost = [-change for place, change in apart.items() if not visible[place]]
    check_claim(
        "distance",
        "A search lasts where",
        [
            f"change by {min(last):+.2f} to {max(last):+.2f} from 4",
            f"lose {min(lost):.2f} to {max(lost):.2f}",
        ],
    )
    assert (len(last), len(lost)) == (8, 5)


def test_new_bases_lose_more_where_a_pair_turns_a_quarter_beyond_training() -> None:
    change = {}
    for theta, p in NEW:
        near, far = at(theta, p, NEAR), at(theta, p, FAR)
        assert len(near) == 5  # all have solved their own lengths
        change[theta] = far - near
    old, new = change[3_000], change[30_000]
    turns = {theta: f"{quarter_turn(theta, 0.75):,.0f}" for theta in change}
    p_value = float(paired_p(new[:, None], old[:, None])[0][0])
    check_claim(
        "distance",
        "The search loses more",
        [
            f"base 30,000 ({turns[30_000]} tokens) less base 3,000 ({turns[3_000]})",
            f"{difference(new, old)}, p {p_value:.3f}",
            f"3,000: {difference(old, 0 * old)}",
        ],
    )
    assert (new - old).mean() + half_width(new - old) > -0.1 > old.mean() - half_width(old)


def test_every_claim_of_the_page_is_checked() -> None:
    check_listed("distance", __file__, ["The rule", "Changed after"])
