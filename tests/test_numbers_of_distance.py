"""The tables and claims of docs/results/distance.md, from the values of each seed in docs/results/distance."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from helpers_stored import DOCS, Array, check_claim, check_listed, difference, text_of

from roundround.analysis.intervals import half_width, holm, paired_p
from roundround.analysis.load import rows_of

SETTINGS = [(theta, p) for theta in (100, 1_000, 10_000, 500_000) for p in (1, 0.75, 0.5)] + [
    (10_000, 0.25),
    (10_000, 0),
]
SHOWN = (4, 16, 64, 128, 256, 512, 1024, 2032)
NEAR, FAR = (4, 8, 16, 32, 64, 96, 128), (1_024, 1_536, 2_032)  # distances within training, and beyond it
CONTRASTS = [(100, 16), (100, 256), (1_000, 64), (1_000, 1_024), (10_000, 384), (10_000, 2_032), (500_000, 2_032)]


def values() -> dict[tuple[float, float, int, int | None], Array]:
    """The exact match of each seed, [S], by theta, p, length and distance; None: over all distances."""
    found: dict[tuple[float, float, int, int | None], dict[int, float]] = defaultdict(dict)
    for _, row in rows_of(DOCS / "distance" / "distance.csv"):
        if row["metric"] == "exact_match":
            found[row["pe.theta"], row["pe.p"], row["length"], row.get("distance")][row["seed"]] = row["value"]
    return {place: np.array([by_seed[seed] for seed in sorted(by_seed)]) for place, by_seed in found.items()}


VALUES = values()


def mean(values: Array) -> str:
    return f"{values.mean():.2f}"


def at(theta: float, p: float, distances: tuple[int, ...]) -> Array:
    """Mean exact match over distances in inputs of 2,048 tokens, of each run that has solved its own lengths, [S]."""
    solved = VALUES[theta, p, 128, None] >= 0.99
    return np.mean([VALUES[theta, p, 2048, d][solved] for d in distances], axis=0)


def is_asked(theta: float, p: float) -> bool:
    return theta == 100 or VALUES[theta, p, 128, None].mean() >= 0.99


def quarter_turn(theta: float, p: float) -> float:
    """Tokens in which the slowest of the pairs that turn, 4 p of four, has turned by pi / 2."""
    return float(np.pi / 2 * theta ** ((4 * p - 1) / 4))


def named(theta: int, p: float) -> str:
    return "no position" if p == 0 else "fastest pair alone" if p == 0.25 else f"{theta:,}, p = {p}"


def test_every_setting_has_five_seeds() -> None:
    assert all(len(VALUES[theta, p, 128, None]) == 5 for theta, p in SETTINGS)


@pytest.mark.parametrize(("theta", "p"), SETTINGS)
def test_table_by_distance(theta: int, p: float) -> None:
    cells = [mean(VALUES[theta, p, 128, None]), *(mean(VALUES[theta, p, 2048, d]) for d in SHOWN)]
    assert f"| {named(theta, p)} | {' | '.join(cells)} |" in text_of("distance")


def contrasts() -> dict[tuple[int, int], tuple[str, float]]:
    """The differences of the rule as the page prints them, and their p after Holm; NaN where not asked."""
    pairs = {(theta, d): (VALUES[theta, 1, 2048, d], VALUES[theta, 0.5, 2048, d]) for theta, d in CONTRASTS}
    p = [
        float(paired_p(mine[:, None], theirs[:, None])[0][0]) if is_asked(theta, 1) and is_asked(theta, 0.5) else np.nan
        for (theta, _), (mine, theirs) in pairs.items()
    ]
    return {
        place: (difference(*pair), corrected) for (place, pair), corrected in zip(pairs.items(), holm(p), strict=True)
    }


def test_table_of_contrasts() -> None:
    for (theta, d), (apart, p) in contrasts().items():
        mine, theirs = VALUES[theta, 1, 2048, d], VALUES[theta, 0.5, 2048, d]
        away = abs((mine - theirs).mean()) > half_width(mine - theirs)
        quarter = quarter_turn(theta, 1)
        side = "before" if d < quarter else "behind"
        cells = [f"{theta:,}", f"{quarter:,.0f}", f"{d:,}, {side}", mean(mine), mean(theirs)]
        told = "not asked | -" if np.isnan(p) else f"{f'**{apart}**' if away else apart} | {p:.3f}"
        assert f"| {' | '.join(cells)} | {told} |" in text_of("distance")


def test_at_base_1000_rope_fails_behind_the_quarter_turn_and_half_at_rest_does_not() -> None:
    rope, half = (VALUES[1_000, p, 2048, 1_024] for p in (1, 0.5))
    (behind, p_behind), (before, p_before) = contrasts()[1_000, 1_024], contrasts()[1_000, 64]
    numbers = [f"{mean(rope)} of", f"{mean(half)} of", f"{behind}, p {p_behind:.3f}", f"{before}, p {p_before:.3f}"]
    check_claim("distance", "At base 1,000 RoPE no longer", numbers)


def test_other_bases_have_no_verdict() -> None:
    own = [mean(VALUES[theta, p, 128, None]) for theta, p in ((10_000, 1), (500_000, 1), (500_000, 0.5))]
    check_claim("distance", "At bases 10,000 and 500,000", ["{}, {} and {} at 128 tokens".format(*own)])
    found = [contrasts()[100, d] for d in (16, 256)]
    check_claim("distance", "At base 100", [f"{apart}, p {p:.3f}" for apart, p in found])


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


def test_every_claim_of_the_page_is_checked() -> None:
    not_claims = ["The task", "The models", "The rule", "This suggests how", "A task of search alone"]
    check_listed("distance", __file__, not_claims)
