"""Claims of encodings_by_normalisers.md and table2.md in docs/results, from the values of each seed."""

from __future__ import annotations

import numpy as np
import pytest
from helpers_stored import check_claim, check_listed, text_of
from results.encodings_by_normalisers import COLUMNS, CROSSED, LENGTHS, crossed
from results.stored import Array, stored
from results.table2 import (
    FIRST,
    MORE_TURNING,
    TURNING,
    excludes_zero,
    forty,
    in_nats,
    nats,
    p_of_differences,
    resting,
    sweep,
)
from scipy import stats

from roundround.analysis.intervals import half_width, holm
from roundround.papers.figures import own as table2


def test_adaptive_temperature_at_inference() -> None:
    cells = [cell for length in LENGTHS for cell in crossed("adaptive_temperature", length)]
    assert all(low > 0 for _, low, _, _ in cells)
    means = [mean for mean, *_ in cells]
    n_after_holm = sum(p < 0.05 for *_, p in cells)
    check_claim(
        "encodings_by_normalisers",
        "The adaptive temperature at inference",
        [f"{min(means):.2f} to {max(means):.2f} nats", f"all {len(cells)} cells, and in {n_after_holm} of them"],
    )


def test_adaptive_temperature_in_training() -> None:
    cells = crossed("adaptive_temperature_trained", 2048)
    assert min(p for *_, p in cells) > 0.05
    check_claim(
        "encodings_by_normalisers",
        "Trained with it",
        [
            "{:.2f} nats ({:.2f} to {:.2f})".format(*cells[1]),
            "{:.2f} ({:.2f} to {:.2f})".format(*cells[2]),
            f"(p {cells[1][3]:.2f} and {cells[2][3]:.2f})",
        ],
    )


def test_gains_within_the_training_context() -> None:
    found = []
    for softmax in ("entmax15", "adaptive_temperature_trained"):
        cells = crossed(softmax, 256)
        assert all(mean < 0 and p > 0.05 for mean, _, _, p in cells)
        n_apart = sum(high < 0 for _, _, high, _ in cells)
        found.append(f"{-max(c[0] for c in cells):.2f} to {-min(c[0] for c in cells):.2f}")
        found.append(f"with {'one' if n_apart == 1 else 'two encodings'}")
    for softmax in ("ssmax", "adaptive_temperature"):
        assert max(mean for mean, *_ in crossed(softmax, 256)) > 0
    assert all(crossed("entmax15", length)[3][0] < 0 for length in LENGTHS)
    assert all(mean > 0 for length in (1024, 2048) for mean, *_ in crossed("entmax15", length)[:3])
    check_claim("encodings_by_normalisers", "Two normalisers have means below", found)


def test_encodings_decide_more() -> None:
    apart = (CROSSED["nope", "softmax", 256] - CROSSED["rope", "softmax", 256]).mean()
    assert apart > max(abs(mean) for softmax in COLUMNS for mean, *_ in crossed(softmax, 256))
    check_claim("encodings_by_normalisers", "Within the training context the encoding decides", [f"{apart:.2f} nats"])


def test_what_the_crossing_does_not_show() -> None:
    assert all(low < 0 < high for length in LENGTHS for _, low, high, _ in crossed("ssmax", length))
    _, low, high, _ = crossed("ssmax", 2048)[1]
    beyond = [c for s in ("ssmax", "adaptive_temperature_trained") for n in LENGTHS[1:] for c in crossed(s, n)]
    assert all(high > 0 for _, _, high, _ in beyond)
    above, below = (sum(sign * mean > 0 for mean, *_ in beyond) for sign in (1, -1))
    assert (len(beyond), above, below) == (24, 18, 6)
    text = " ".join(text_of("encodings_by_normalisers").split())
    assert f"from {low:.2f} to {high:+.2f}" in text
    assert "of their 24 means beyond it" in text
    assert f"{above} lie above the softmax's, and none of the six others" in text


# -- table2.md

CORPORA, PLACES = ("tinystories", "wikitext2"), ("on TinyStories", "here")
MARGIN = 0.0048  # nats per token, 0.75-RoPE before RoPE on Wikipedia


def apart(corpus: str, encoding: str, *lengths: int, baseline: str = "rope") -> list[table2.Difference]:
    return [table2.difference(sweep(corpus), encoding, baseline, length) for length in lengths or LENGTHS]


def ends(found: list[table2.Difference], digits: int = 2) -> str:
    sizes = sorted(abs(one.nats) for one in found)
    return f"{sizes[0]:.{digits}f} to {sizes[-1]:.{digits}f}"


def outside(corpus: str) -> set[str]:
    """The encodings whose published difference from RoPE on Wikipedia lies outside the interval at 256 tokens."""
    found = {pe: apart(corpus, pe, 256)[0] for pe in table2.PAPER if pe != "rope"}
    published = {pe: (table2.paper_difference(pe, "rope") or (np.nan,))[0] for pe in found}
    return {pe for pe, one in found.items() if not one.low <= published[pe] <= one.high}


def pairs_needed(corpus: str, power: float) -> str:
    values = sweep(corpus)
    nats = np.log(values[256, "p_rope"]) - np.log(values[256, "rope"])
    return f"{((stats.norm.ppf(0.975) + stats.norm.ppf(power)) * nats.std(ddof=1) / MARGIN) ** 2:.0f}"


def test_nope_and_a_quarter_are_worse() -> None:
    nope, quarter = (apart("tinystories", pe) for pe in ("nope", "p_rope_25"))
    assert nope[0].low > 0 < quarter[0].low
    assert not excludes_zero(quarter[3])
    values = sweep("tinystories")
    rise = [np.log(values[2048, pe] / values[256, pe]).mean() for pe in ("nope", "rope")]
    check_claim(
        "table2",
        "NoPE and 0.25-RoPE are worse",
        [
            f"by {nope[0].nats:.2f} and {quarter[0].nats:.2f} nats",
            f"loses {rise[0]:.2f} nats from 256 to 2,048 tokens and RoPE {rise[1]:.2f}",
        ],
    )


def test_fast_pairs_count() -> None:
    found = apart("tinystories", "p_rope_reversed", 256, 2048)
    p = p_of_differences(sweep("tinystories"))["p_rope_reversed", 256]
    assert all(one.low > 0 for one in found)
    check_claim(
        "table2",
        "The four fastest pairs matter most",
        [
            f"costs {found[0].nats:.2f} nats within it (p 0.02, {p:.2f} after Holm",
            f"and {found[1].nats:.2f} at eight",
        ],
    )


def test_slower_frequencies() -> None:
    within, *beyond = apart("tinystories", "rope_500k")
    assert not excludes_zero(within)
    assert all(one.low > 0 for one in beyond)
    check_claim("table2", "On TinyStories slower frequencies", [f"{ends(beyond)} nats"])


def test_partial_ladder_loses() -> None:
    rope, mine = (apart("tinystories", "partial_rope", baseline=other) for other in ("rope", "p_rope"))
    assert rope[2].low > 0 < mine[2].low
    assert not excludes_zero(rope[3])
    assert excludes_zero(mine[3])
    assert not any(excludes_zero(one) for one in (rope[0], mine[0]))
    assert outside("tinystories") == {"nope", "p_rope_25", "p_rope_reversed", "rope_500k"}
    check_claim(
        "table2",
        "The partial ladder loses",
        [
            f"by {rope[2].nats:.2f} and {mine[2].nats:.2f} nats",
            f"at 2,048 by {rope[3].nats:.2f} and {mine[3].nats:.2f}",
        ],
    )


def test_nope_is_worse_again() -> None:
    there, here = (apart(corpus, "nope", 256, 2048) for corpus in ("wikitext2", "tinystories"))
    assert all(one.low > 0 for one in (*there, *here))
    check_claim(
        "table2",
        "NoPE is worse than RoPE again",
        [
            f"by {there[0].nats:.2f} nats in the training context and by {there[1].nats:.2f} at",
            f"it is {here[0].nats:.2f} and {here[1].nats:.2f}",
        ],
    )


def test_fast_pairs_count_again() -> None:
    beyond = apart("wikitext2", "p_rope_reversed", 512, 1024, 2048)
    mine = apart("wikitext2", "p_rope_reversed", baseline="p_rope")
    assert all(one.low > 0 for one in (*beyond, *mine))
    check_claim(
        "table2",
        "Cutting the fastest pairs costs again",
        [f"{ends(beyond)} nats to RoPE", f"{ends(mine)} to 0.75-RoPE at every length"],
    )


def test_what_is_told_after_holm() -> None:
    told = {corpus: {place for place, p in p_of_differences(sweep(corpus)).items() if p < 0.05} for corpus in CORPORA}
    assert told["wikitext2"] == {("p_rope_reversed", 1024), ("p_rope_reversed", 2048)}
    assert {pe for pe, _ in told["tinystories"]} == {"nope", "rope_500k", "p_rope_reversed", "p_rope_25"}


def test_slower_pairs_within_the_training_context() -> None:
    apart_by = [
        in_nats(sweep(corpus), "p_rope_25", 256) - in_nats(sweep(corpus), "p_rope_reversed", 256) for corpus in CORPORA
    ]
    assert [bool(abs(one.mean()) > half_width(one)) for one in apart_by] == [True, False]
    numbers = " and ".join(f"{nats(one, bold=False)} {where}" for one, where in zip(apart_by, PLACES, strict=True))
    check_claim("table2", "Whether the twelve slower pairs", [numbers])


def rise_less_rope(corpus: str) -> Array:
    """How much more the loss of theta 500,000 rises from 256 to 2,048 tokens than RoPE's."""
    mine, theirs = (in_nats(sweep(corpus), pe, 2048) - in_nats(sweep(corpus), pe, 256) for pe in ("rope_500k", "rope"))
    return mine - theirs


def test_not_confirmed() -> None:
    quarter, partial, slow = (apart("wikitext2", pe) for pe in ("p_rope_25", "partial_rope", "rope_500k"))
    assert not any(excludes_zero(one) for one in (*quarter, *partial, *slow))
    assert all(one.nats > 0 for one in (*quarter, *partial[1:], *slow[1:]))
    assert outside("wikitext2") == set()
    there, here = (rise_less_rope(corpus) for corpus in CORPORA)
    ends_of = [(min(one.nats for one in some), max(one.nats for one in some)) for some in (partial[1:], slow[1:])]
    check_claim(
        "table2",
        "That 0.25-RoPE, the partial ladder",
        [
            "+{:.2f} to +{:.2f} nats for 0.25-RoPE".format(*(float(end) for end in ends(quarter).split(" to "))),
            "{:.2f} to +{:.2f} for the partial one".format(*ends_of[0]),
            "{:.2f} to +{:.2f} for theta 500,000".format(*ends_of[1]),
            f"by {nats(here, bold=False)}, p {stats.ttest_1samp(here, 0).pvalue:.3f}",
            f"there by {nats(there, bold=False)}",
        ],
    )


def test_three_quarters_and_rope() -> None:
    assert not any(excludes_zero(one) for corpus in ("tinystories", "wikitext2") for one in apart(corpus, "p_rope"))
    (one,) = apart("wikitext2", "p_rope", 256)
    check_claim(
        "table2",
        "0.75-RoPE and RoPE are not told apart",
        [
            f"{one.nats:.3f} ({one.low:.3f} to {one.high:+.3f})",
            "{} pairs of runs on TinyStories and {} on WikiText-2".format(
                *(pairs_needed(corpus, 0.8) for corpus in ("tinystories", "wikitext2"))
            ),
            "({} and {} for a power of one half)".format(
                *(pairs_needed(corpus, 0.5) for corpus in ("tinystories", "wikitext2"))
            ),
        ],
    )


def test_four_slow_pairs_hardly_turn() -> None:
    """Of 16 pairs with the frequencies 10,000^(-k/16), the last four over 256 and 2,048 tokens, in radians."""
    fastest, slowest = 10_000 ** (-12 / 16), 10_000 ** (-15 / 16)
    turns = [f"{256 * fastest:.2f} radians", f"by {256 * slowest:.2f}", f"up to {2048 * fastest:.0f} radians"]
    check_claim("table2", "What 0.75-RoPE leaves out", turns)


# -- table2_turning.md


def unsigned(values: Array) -> str:
    """A difference without its sign, and its interval."""
    mean, half = abs(values.mean()), float(half_width(values))
    return f"{mean:.4f} ({mean - half:.4f} to {mean + half:.4f})"


def test_runs_that_table_2_has_too_are_its_own() -> None:
    for p, pe in (("1", "rope"), ("0.75", "p_rope")):
        for length in LENGTHS:
            own = TURNING["10000", p, "nats_per_token", length][:5]
            np.testing.assert_array_equal(own, stored("table2/tinystories", "pe")[pe, "nats_per_token", length])


def test_resting_costs_where_the_pairs_turn() -> None:
    contrasts = [resting("98", p, 256) - resting("10000", p, 256) for p in ("0.75", "0.5")]
    assert all(len(one) == 8 for one in contrasts)
    p = holm([stats.ttest_1samp(one, 0).pvalue for one in contrasts])
    numbers = [nats(one, bold=False) for one in contrasts]
    check_claim("table2", "Resting matters where the pairs", [*numbers, f"p {p[0]:.3f} after Holm", f"(p {p[1]:.3f})"])
    here, there = resting("98", "0.75", 256), resting("10000", "0.75", 256)
    assert here.mean() - half_width(here) > 0  # and so beyond the paper's gain
    check_claim("table2", "At base 98 0.75-RoPE is worse", [unsigned(here), f"{there.mean():.4f} (", f"{MARGIN}"])


def test_over_forty_seeds_resting_costs() -> None:
    whole, more = forty(256)
    p, n = stats.ttest_1samp(whole, 0).pvalue, (whole > 0).sum()
    assert 1.55 < resting("98", "0.75", 256).mean() / more.mean() < 1.65
    check_claim("table2", "Over forty seeds", [unsigned(whole), f"(p {p:.4f})", f"{n} of the forty", unsigned(more)])
    assert all(0.008 < forty(length)[0].mean() < 0.011 for length in LENGTHS[:3])  # alike


def test_the_first_measurement_says_the_same_at_256_tokens_and_not_at_2048() -> None:
    numbers = []
    rope = {n: np.concatenate([values["98", "1", "nats_per_token", n] for values in (TURNING, MORE_TURNING)])
            for n in (256, 2048)}  # fmt: skip
    pairs = {n: (FIRST["98", "1", "nats_per_token", n], rope[n]) for n in rope}
    numbers.append("{:.3f} at 256 tokens and {:.3f} at 2,048".format(*(np.corrcoef(*p)[0, 1] for p in pairs.values())))
    numbers.append("higher by {:.3f} and {:.3f}".format(*((first - now).mean() for first, now in pairs.values())))
    for length in rope:
        then, now = resting("98", "0.75", length, FIRST), forty(length)[0]
        assert len(then) == len(now) == 40
        numbers.append(f"{nats(then, bold=False)} and {nats(now, bold=False)}")
    numbers.append(f"a change of {nats(now - then, bold=False)}")
    check_claim("table2", "All runs were made twice", numbers)


# headings, and sentences without a number of their own
NOT_CLAIMS = {
    "encodings_by_normalisers": ["from the softmax of the same encoding"],
    "table2": [
        "A missing difference between",
        "The rule, fixed",
        "The hard cut or the number",
        "WikiText-2, five seeds",
    ],
}


@pytest.mark.parametrize("page", NOT_CLAIMS)
def test_every_bold_sentence_with_a_number_is_checked_here(page: str) -> None:
    check_listed(page, __file__, NOT_CLAIMS[page])
