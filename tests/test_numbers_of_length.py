"""The claims of docs/results/length.md, from the values of each seed in docs/results/length."""

from __future__ import annotations

import re

import numpy as np
import pytest
from helpers_stored import check_claim, check_listed, text_of
from results.length import (
    CELLS,
    CLRS,
    COPY,
    ENCODINGS,
    MQAR,
    NORMALISERS,
    RANDOM,
    RATES,
    REPEAT,
    REVERSE,
    SOLVED,
    SORT,
    of_algorithms,
    p_of_copying,
    p_of_repetition,
    p_of_sorting,
    random_positions,
    solved,
)
from results.stored import Array, difference, family, seeds, share

from roundround.analysis.intervals import half_width, holm, paired_p


def p_of(pairs: list[tuple[Array, Array]]) -> list[float]:
    """p of each difference after Holm over all that can be tested; 1 for a cell at the floor."""
    return [family(dict(enumerate(pairs))).get(n, 1.0) for n in range(len(pairs))]


def p_solved(task: str) -> list[float]:
    """p of exact match at 24, 32 and 64 symbols."""
    return p_of([solved(task, length) for length in (24, 32, 64)])


def test_sorting_where_the_trained_lengths_are_solved() -> None:
    assert min(values.mean() for values in solved("sort", 16)) >= 0.99
    assert min(p_solved("sort")) > 0.05
    assert not np.any(solved("sort", 64))
    apart = difference(*solved("sort", 32), 3)
    numbers = [f"twice the length is not told apart**: {apart}"]
    numbers += [f"{difference(*solved('sort', 24), 3)} at 1.5 times"]
    numbers += ["{:.2f}, {:.2f} and {:.2f} of the".format(*solved("sort", 32)[1])]
    check_claim("length", "Sort: once both solve", numbers)
    shares = [f"{values.mean():.2f}" for values in solved("sort", 32)]
    of_both = f"| {' and '.join(shares)}, where both solve the trained lengths; {apart}"
    assert f"{of_both}, published +1.00 | differs |" in text_of("length")


def test_reversal_where_the_trained_lengths_are_solved() -> None:
    assert min(values.mean() for values in solved("reverse", 16)) >= 0.99
    assert min(p_solved("reverse")) > 0.05
    mine = [solved("reverse", length)[0] for length in (24, 32)]
    assert (np.array(mine) > 0.005).sum(1).tolist() == [1, 1]
    assert np.max(solved("reverse", 24)[1]) < 0.005
    numbers = [f"{difference(*solved('reverse', 24), 3)} at 1.5", f"{difference(*solved('reverse', 32), 3)} at twice"]
    numbers += [f"{mine[0].max():.2f} and {mine[1].max():.2f} of them"]
    check_claim("length", "Reverse: not told apart", numbers)
    shares = [f"{values.mean():.2f}" for values in solved("reverse", 24)]
    of_both = f"| {' and '.join(shares)}, the same; {difference(*solved('reverse', 24), 3)}"
    assert f"{of_both}, published +0.64 | not told apart |" in text_of("length")


def test_copying_where_the_trained_lengths_are_solved() -> None:
    mine, theirs = (values.mean() for values in solved("copy", 16))
    fewer, slower = (SOLVED["copy", "as_entmax_nape", rate, "6000", "exact_match", 16] for rate in ("0.002", "0.001"))
    assert slower.mean() < fewer.mean() < 0.99 < min(mine, theirs)
    assert min(p_solved("copy")) > 0.05
    numbers = [f"{difference(*solved('copy', 24), 3)} at 1.5", f"{difference(*solved('copy', 32), 3)} at twice"]
    numbers += [f"{mine:.3f} right at 16", f"{fewer.mean():.3f} with", f"{slower.mean():.3f} at 1e-3", f"{theirs:.3f})"]
    numbers += ["{:.2f}, {:.2f} and {:.2f} of the".format(*solved("copy", 32)[1])]
    check_claim("length", "Copy: not told apart", numbers)


def test_more_steps_make_asentmax_copy_less_beyond() -> None:
    more, fewer = (SOLVED["copy", "as_entmax_nape", "0.002", n, "exact_match", 32] for n in ("24000", "6000"))
    assert (more < fewer).all()
    numbers = [f"{more.mean():.2f} in place of {fewer.mean():.2f}", difference(more, fewer, 3)]
    check_claim("length", "With four times the steps", numbers)


def test_seeds_differ_more_than_normalisers() -> None:
    halves = [float(half_width(np.subtract(*solved("sort", length)))) for length in (24, 32)]
    assert half_width(np.subtract(*solved("reverse", 24))) > 1
    check_claim(
        "length", "Seeds differ more", ["{:.2f} (24 symbols) and {:.2f} (32)".format(*halves), "more than 1 in"]
    )


def test_published_scores_of_copying_are_divided_by_their_ceiling() -> None:
    """results/sanity_check.jsonl of McGill-NLP/length-generalization, split cmc_tr20_ts40, means of three seeds."""
    published = {
        "NoPE": (0.8015, 0.722, 0.4993, 0.0253), "T5's bias": (0.8184, 0.7467, 0.6773, 0.368),
        "ALiBi": (0.8201, 0.7507, 0.568, 0.0353),
    }  # fmt: skip
    for name, scores in published.items():
        cells = [f"{score / 0.99**length:.2f}" for score, length in zip(scores, (20, 24, 28, 32), strict=True)]
        (row,) = re.findall(rf"^\| {name} \|(?: [\d.]+ \|){{14}}$", text_of("length"), re.M)
        assert [cell.strip() for cell in row.split("|")[6:10]] == cells


def test_the_rate_decides_recall_and_the_number_of_examples_does_not() -> None:
    few_slow, few, many_slow, many = (MQAR[*cell, "token_accuracy", 64] for cell in CELLS)
    p = holm([float(paired_p(mine[:, None], theirs[:, None])[0][0]) for mine, theirs in ((few, few_slow), (many, few))])
    check_claim(
        "length",
        "At 8,192 steps the rate decides",
        [
            f"{difference(few, few_slow)} with 8,192 examples, p {p[0]:.3f}",
            f"100,000 it is {difference(many, many_slow)}",
        ],
    )
    assert np.abs(many - few).max() + half_width(many - few) < 0.05
    check_claim("length", "Twelve times the examples", [f"{difference(many, few, 3)}, within", f"(p {p[1]:.3f} after"])
    published = "| {:.3f}, {:.3f} and {:.3f} of the values are right".format(*many)
    assert published in text_of("length")
    assert "| {:.2f}, {:.2f} and {:.2f} of the values there, {:.2f} at".format(*few_slow, few.mean()) in text_of(
        "length"
    )


def test_nope_comes_first() -> None:
    nope, alibi, t5 = (REPEAT[pe, "exact_match", 30] for pe in ("nope", "alibi", "t5_bias"))
    corrected = p_of_repetition()
    assert len(corrected) == 16
    at_24 = REPEAT["alibi", "exact_match", 24] - REPEAT["t5_bias", "exact_match", 24]
    apart = t5 - alibi
    for pe in ("rope", "sinusoidal"):
        assert all(not REPEAT[pe, "exact_match", length].any() for length in (24, 30, 32, 40))
    check_claim("length", "NoPE comes first", [
        *(f"{(nope - other).min():.2f} to {(nope - other).max():.2f} before" for other in (alibi, t5)),
        f"{corrected['alibi', 30]:.3f} and {corrected['t5_bias', 30]:.3f}",
        f"({apart.mean():.2f}, {apart.mean() - half_width(apart):.2f} to {apart.mean() + half_width(apart):.2f})",
        f"by {at_24.min():.2f} to {at_24.max():.2f}",
        f"({t5[1]:.2f})", f"({REPEAT['t5_bias', 'exact_match', 24][1]:.2f})",
    ])  # fmt: skip


def test_nothing_but_nape_copies() -> None:
    for pe in ("nope", "rope", "p_rope", "alibi"):
        assert COPY[pe, "softmax", "exact_match", 24].max() < 0.005
    assert COPY["nape", "softmax", "exact_match", 24].min() > 0.5
    check_claim(
        "length",
        "With the plain softmax nothing but NAPE",
        [f"({seeds(COPY['t5_bias', 'softmax', 'exact_match', 24])})", "0.92 to 0.96"],
    )


def test_alibi_copies_with_entmax() -> None:
    at_30 = {softmax: COPY["alibi", softmax, "exact_match", 30] for softmax in NORMALISERS}
    corrected = p_of_copying()
    assert len(corrected) == 39
    p = {n: [corrected["alibi", softmax, n] for softmax in ("entmax15", "as_entmax")] for n in (24, 30, 40)}
    symbols = [COPY["alibi", softmax, "token_accuracy", 30].mean() for softmax in ("softmax", "entmax15")]
    within = COPY["alibi", "entmax15", "exact_match", 20].mean()
    assert within < 0.99
    check_claim(
        "length",
        "ALiBi with entmax does",
        [
            f"{seeds(at_30['entmax15'])} where its own softmax has {seeds(at_30['softmax'])}",
            f"{share(at_30['as_entmax'])} (p after Holm {p[30][0]:.3f} and {p[30][1]:.4f})",
            f"training length {share(COPY['alibi', 'as_entmax', 'exact_match', 40])} (p {p[40][1]:.3f})",
            f"told (p {p[24][0]:.3f} and {p[24][1]:.4f})",
            f"has {within:.2f} right within",
            f"the softmax has {symbols[0]:.2f} of them right, entmax {symbols[1]:.3f}",
            f"stays at {share(at_30['ssmax'])}",
        ],
    )


def test_no_other_is_helped() -> None:
    for pe in ("nope", "rope", "p_rope", "t5_bias", "nape"):
        for softmax in NORMALISERS[1:]:
            gain = COPY[pe, softmax, "exact_match", 30] - COPY[pe, "softmax", "exact_match", 30]
            assert gain.min() <= 0, (pe, softmax)
    corrected = p_of_copying()
    p = [corrected["nape", softmax, 30] for softmax in ("as_entmax", "adaptive_temperature")]
    nape = {softmax: COPY["nape", softmax, "exact_match", 30] for softmax in (*NORMALISERS, "adaptive_temperature")}
    loss = [(nape["softmax"] - nape[softmax]).mean() for softmax in ("as_entmax", "adaptive_temperature")]
    assert min(corrected["nape", softmax, 40] for softmax in NORMALISERS[1:]) > 0.05
    check_claim(
        "length",
        "At 30 symbols no other encoding is helped",
        [
            f"{seeds(COPY['nope', 'entmax15', 'exact_match', 24])} with entmax",
            f"{share(COPY['nope', 'as_entmax', 'exact_match', 24])} with ASEntmax",
            f"reaches {COPY['t5_bias', 'as_entmax', 'exact_match', 40].max():.2f} at 40",
            "({:.2f} and {:.2f})".format(*(COPY[pe, "entmax15", "exact_match", 20].mean() for pe in ("nope", "nape"))),
            f"loses {loss[0]:.2f} with ASEntmax at 30 symbols and {loss[1]:.2f} with",
            f"({p[0]:.2f} and {p[1]:.2f})",
        ],
    )


def test_adaptive_temperature_makes_copying_fail() -> None:
    tokens = [COPY[pe, "adaptive_temperature", "token_accuracy", 20] for pe in ENCODINGS]
    assert max(COPY[pe, "adaptive_temperature", "exact_match", 20].max() for pe in ENCODINGS) < 0.005
    least = min(COPY[pe, "softmax", "exact_match", 20].mean() for pe in ENCODINGS)
    check_claim(
        "length",
        "Adaptive temperature at inference",
        [f"means of {least:.2f} and more", f"{100 * np.min(tokens):.0f} to {100 * np.max(tokens):.0f} %"],
    )


def test_as_entmax_sorts_further() -> None:
    pairs = [tuple(SORT[s, rate, "exact_match", 32] for s in ("as_entmax_nape", "softmax")) for rate in RATES]
    means = sorted(mine.mean() for mine, _ in pairs)
    apart = sorted((mine - theirs for mine, theirs in pairs), key=np.mean)
    ends = [(d.mean(), d.mean() - half_width(d), d.mean() + half_width(d)) for d in (apart[0], apart[-1])]
    corrected, of_symbols = p_of_sorting("exact_match"), p_of_sorting("token_accuracy")
    assert {n for _, n in corrected} == {32}  # at 64 symbols both are at the floor
    most = max(p for (_, n), p in of_symbols.items() if n == 64)
    assert f"(+0.29 to +0.32, p after Holm {most:.3f} or less)" in text_of("length")
    check_claim(
        "length",
        "ASEntmax is ahead of softmax",
        [
            f"{means[0]:.2f} to {means[-1]:.2f} of the sequences",
            *("{:.3f}, {:.3f} to {:.3f}".format(*end) for end in ends),
            f"p after Holm over the three rates {max(corrected.values()):.2f} or less",
        ],
    )


def test_the_rate_does_not_decide_sorting() -> None:
    most = max(SORT["softmax", rate, "exact_match", 32].max() for rate in RATES)
    within = {s: [SORT[s, rate, "exact_match", 16].mean() for rate in RATES] for s in ("softmax", "as_entmax_nape")}
    assert [int(np.argmax(means)) for means in within.values()] == [1, 2]
    check_claim(
        "length",
        "The learning rate does not decide",
        [f"at most {most:.2f}", "({2:.3f} there, {1:.3f} at 2e-3)".format(*within["as_entmax_nape"])],
    )


def test_reversal_is_not_told_apart() -> None:
    ours = {
        (rate, n): np.sort(REVERSE["as_entmax_nape", rate, "exact_match", n]) for rate in RATES for n in (24, 32, 64)
    }
    plain = [REVERSE["softmax", rate, "exact_match", n].max() for rate in RATES for n in (24, 32, 64)]
    best = [ours["0.004", 24][-1], ours["0.002", 24][-1], ours["0.004", 32][-1]]
    rest = [value for values in ours.values() for value in values if value not in best]
    most = max(*plain, *rest)
    check_claim(
        "length",
        "Which of the two reverses",
        [f"at most {most:.3f} of", f"({best[0]:.2f} and {best[1]:.2f} at 1.5", f"the first {best[2]:.2f} at twice"],
    )


def test_reversal_by_symbols() -> None:
    values = {
        s: [REVERSE[s, "0.004", "token_accuracy", n] for n in (24, 32, 64)] for s in ("softmax", "as_entmax_nape")
    }
    check_claim(
        "length",
        "the grid's edge",
        [difference(mine, theirs) for mine, theirs in zip(*reversed(values.values()), strict=True)],
    )


def test_reversal_within_the_trained_lengths() -> None:
    within = {s: [REVERSE[s, rate, "exact_match", 16].mean() for rate in RATES] for s in ("softmax", "as_entmax_nape")}
    assert [int(np.argmax(means)) for means in within.values()] == [0, 1]
    check_claim("length", "1e-3, the other edge", [])


def test_random_positions_beyond_the_trained_lengths() -> None:
    tasks = ("copy", "reverse")
    assert min(of.mean() for task in tasks for of in random_positions(task, 16)) >= 0.99
    assert not any(of.any() for task in tasks for n in (24, 32) for of in random_positions(task, n))
    pairs = [random_positions(task, 20) for task in tasks]
    assert all((drawn > plain).all() and not plain.any() for drawn, plain in pairs)
    p = [p_of([random_positions(task, n) for n in (20, 24, 32)])[0] for task in tasks]
    numbers = [f"{difference(*pairs[0], 3)} in copying and {difference(*pairs[1], 3)} in reversal"]
    (a, b), (c, d) = ((drawn.min(), drawn.max()) for drawn, _ in pairs)
    assert max(p) < 0.05
    with_floor = [3 * one for one in p]  # the smallest of three
    numbers += [f"({a:.2f} to {b:.2f}, and {c:.2f} to {d:.2f})", "p {:.3f} and {:.3f}".format(*p)]
    numbers.append("p {:.3f} and {:.3f}".format(*with_floor))
    check_claim("length", "Both solve their own lengths, and", numbers)


def test_symbols_of_random_positions() -> None:
    numbers = []
    for task, of in (("copy", "a copy are"), ("reverse", "a reversal")):
        drawn, plain = random_positions(task, 20, "token_accuracy")
        numbers.append(f"{drawn.mean():.2f} of {of}")
        numbers += [f"against {plain.mean():.2f}, {difference(drawn, plain, 3)}"]
        numbers.append(difference(*random_positions(task, 32, "token_accuracy"), 3))
    check_claim("length", "Single symbols show it clearly", numbers)


def test_positions_have_to_be_random_in_tests_too() -> None:
    copied, singly, reversed_ = (
        RANDOM[task, "rope_random at consecutive positions", metric, 16].mean()
        for task, metric in (("copy", "exact_match"), ("copy", "token_accuracy"), ("reverse", "exact_match"))
    )
    assert copied == 0
    numbers = [f"{singly:.2f} of them singly", f"reverse {reversed_:.2f}", f"{2048 // 35} or more"]
    check_claim("length", "The positions have to be random", numbers)  # 35 tokens: the longest row in training


def test_final_answers_of_algorithms_beyond_the_trained_lengths() -> None:
    pairs = {n: of_algorithms("output_match", n) for n in (10, 12, 16)}
    assert all((mine > theirs).all() for mine, theirs in pairs.values())
    p = p_of([*pairs.values()])
    assert min(p) > 0.05
    numbers = [f"{n} {difference(*pair, 3)}" for n, pair in pairs.items()]
    numbers.append("p {:.3f}, {:.3f} and {:.3f}".format(*p))
    check_claim("length", "Beyond the trained lengths more final answers", numbers)
    row = f"final answer by {difference(*pairs[12], 3)} at 1.5 times the length, p {p[1]:.3f} after Holm"
    within = [of.mean() for n in (4, 8) for of in of_algorithms("exact_match", n)]
    assert f"{row}; whole answers right within the trained lengths: {min(within):.2f} to {max(within):.2f}" in text_of(
        "length"
    )


def test_final_answers_of_minimum_and_of_binary_search() -> None:
    (of_minimum, plain_minimum), (search, plain_search) = (
        of_algorithms("output_match", 12, task) for task in ("minimum", "binary_search")
    )
    numbers = [f"in {of_minimum.mean():.2f} of its examples against {plain_minimum.mean():.2f}"]
    check_claim("length", "Most of it is in", [*numbers, f"({search.mean():.2f} against {plain_search.mean():.2f})"])


def test_algorithms_beyond_the_trained_lengths() -> None:
    beyond = [CLRS[s, "all", "exact_match", n].mean() for s, _, metric, n in CLRS if metric == "exact_match" and n > 8]
    assert max(beyond) < 0.025
    check_claim("length", "No whole answer is right much beyond", [])


@pytest.mark.parametrize("page", ["length", "needles", "distance", "language_tasks"])
def test_intervals_of_shares_lie_within_what_is_possible(page: str) -> None:
    """Differences of shares within -1 and 1, shares within 0 and 1: docs/results/method.md."""
    ends = re.findall(r"\(([-+]?\d\.\d+) to ([-+]?\d\.\d+)\)", text_of(page))
    assert len(ends) > 10
    assert all(abs(float(end)) <= 1 for both in ends for end in both)
    halves = re.findall(r"(?<![\d.])(\d\.\d+) ±(\d\.\d+)", text_of(page))
    assert all(float(mean) - float(half) >= 0 and float(mean) + float(half) <= 1 for mean, half in halves)


def test_every_bold_sentence_with_a_number_is_checked_here() -> None:
    not_claims = [
        "The rule, fixed before the runs",
        "The rule, fixed before these runs",
        "The contrast, fixed once two seeds had been seen",
        "a single symbol as often as it stood there",
        "The scores of random symbols are divided",
        "One repeated symbol",
        "Random symbols, seven encodings",
        "Sort",
    ]
    check_listed("length", __file__, not_claims)
