"""Claims of encodings_by_normalisers.md and table2.md in docs/results, from the values of each seed."""

from __future__ import annotations

import numpy as np
import pytest
from helpers_stored import check_claim, check_listed, text_of
from results.encodings_by_normalisers import COLUMNS, CROSSED, LENGTHS, crossed
from results.stored import Array, stored
from results.table2 import (
    CORPORA,
    FIRST,
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
        "No sign of it: the adaptive temperature at",
        [
            f"{min(means):.2f} to {max(means):.2f} nats",
            f"All {len(cells)} intervals",
            f"{n_after_holm} of the differences",
        ],
    )


def test_adaptive_temperature_in_training() -> None:
    assert all(p > 0.05 for *_, p in crossed("adaptive_temperature_trained", 256))
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


def test_entmax_within_the_training_context() -> None:
    cells = crossed("entmax15", 256)
    assert all(p > 0.05 for length in LENGTHS for *_, p in crossed("entmax15", length))
    assert all(crossed("entmax15", length)[3][0] < 0 for length in LENGTHS)
    assert all(mean > 0 for length in (1024, 2048) for mean, *_ in crossed("entmax15", length)[:3])
    numbers = [f"{-max(c[0] for c in cells):.2f} to {-min(c[0] for c in cells):.2f} nats"]
    check_claim("encodings_by_normalisers", "Entmax-1.5 is below the softmax", numbers)


def test_no_normaliser_gains_after_holm() -> None:
    cells = [one for softmax in COLUMNS for length in LENGTHS for one in crossed(softmax, length)]
    assert all(mean > 0 for mean, _, _, p in cells if p < 0.05)


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
    check_claim("encodings_by_normalisers", "SSMax shows no clear", [f"from {low:.2f} to {high:+.2f}"])
    text = " ".join(text_of("encodings_by_normalisers").split())
    assert f"There {above} of their 24 means lie above the softmax's, and no interval of the six others" in text


# -- table2.md

PLACES = ("on TinyStories", "on WikiText-2")
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
    there, close = (apart("wikitext2", pe) for pe in ("nope", "p_rope_25"))
    assert nope[0].low > 0 < quarter[0].low
    assert there[0].low > 0
    assert not any(map(excludes_zero, [quarter[3], *close]))
    values = sweep("tinystories")
    rise = [np.log(values[2048, pe] / values[256, pe]).mean() for pe in ("nope", "rope")]
    check_claim(
        "table2",
        "NoPE and 0.25-RoPE are worse",
        [
            f"by {nope[0].nats:.2f} and {quarter[0].nats:.2f} nats",
            f"loses {rise[0]:.2f} nats from 256 to 2,048 tokens and RoPE {rise[1]:.2f}",
            f"behind by {there[0].nats:.2f} nats (p {p_of_differences(sweep('wikitext2'))['nope', 256]:.3f}",
        ],
    )


def test_fast_pairs_count() -> None:
    far = [apart(corpus, "p_rope_reversed", 2048)[0] for corpus in CORPORA]
    p = [p_of_differences(sweep(corpus)) for corpus in CORPORA]
    assert all(one["p_rope_reversed", 2048] < 0.05 < one["p_rope_reversed", 256] for one in p)
    numbers = [f"by {far[0].nats:.2f} and {far[1].nats:.2f} nats", f"(p {p[0]['p_rope_reversed', 256]:.2f} on"]
    check_claim("table2", "The four fastest pairs matter", numbers)


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


def test_slower_frequencies() -> None:
    within, *beyond = apart("tinystories", "rope_500k")
    assert not any(map(excludes_zero, [within, *apart("wikitext2", "rope_500k")]))
    assert all(one.low > 0 for one in beyond)
    check_claim("table2", "Theta 500,000 extrapolates", [f"{ends(beyond)} nats"])


def test_which_of_the_papers_differences_lie_within() -> None:
    assert (len(outside("tinystories")), len(outside("wikitext2"))) == (4, 0)


def test_three_quarters_and_rope() -> None:
    assert not any(excludes_zero(one) for corpus in CORPORA for one in apart(corpus, "p_rope"))
    numbers = [
        f"{one.nats:+.4f} ({one.low:+.4f} to {one.high:+.4f})" for one in (apart(c, "p_rope", 256)[0] for c in CORPORA)
    ]
    check_claim("table2", "0.75-RoPE shows no clear", [*numbers, nats(forty(256)[0], bold=False)])


def test_four_slow_pairs_hardly_turn() -> None:
    """Of 16 pairs with the frequencies 10,000^(-k/16), the fastest of the last four over 256 tokens, in radians."""
    numbers = [f"{256 * 10_000 ** (-12 / 16):.2f} radians"]
    numbers.append(
        "{} pairs of runs on TinyStories and {} on".format(*(pairs_needed(corpus, 0.8) for corpus in CORPORA))
    )
    check_claim("table2", "A missing difference between", numbers)


# -- where the slow pairs would turn


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
    assert all((one.mean() - half_width(one)) > 0 for one in contrasts)
    check_claim("table2", "Resting costs where the pairs", [f"p {p[0]:.3f} (p = 0.75) and {p[1]:.3f} (p = 0.5)"])


def test_over_forty_seeds_resting_costs() -> None:
    whole, more = forty(256)
    p, n = stats.ttest_1samp(whole, 0).pvalue, (whole > 0).sum()
    assert whole.mean() - half_width(whole) > -MARGIN
    numbers = [unsigned(whole), f"(p {p:.4f})", f"{n} of the forty", f"{MARGIN}", unsigned(more)]
    check_claim("table2", "Over forty seeds", numbers)


def test_the_first_measurement_says_the_same_at_256_tokens_and_not_at_2048() -> None:
    (then, now), (then_far, now_far) = ((resting("98", "0.75", n, FIRST), forty(n)[0]) for n in (256, 2048))
    assert {len(one) for one in (then, now, then_far, now_far)} == {40}
    assert abs(then.mean() - now.mean()) < 0.001
    numbers = [nats(then, bold=False), f"{nats(then_far, bold=False)} in place of {nats(now_far, bold=False)}"]
    check_claim("table2", "Nothing is said of 2,048", numbers)


# headings, and sentences without a number of their own
NOT_CLAIMS = {
    "encodings_by_normalisers": [],
    "table2": ["The rule, fixed"],
}


@pytest.mark.parametrize("page", NOT_CLAIMS)
def test_every_bold_sentence_with_a_number_is_checked_here(page: str) -> None:
    check_listed(page, __file__, NOT_CLAIMS[page])
