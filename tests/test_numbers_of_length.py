"""The claims of docs/results/length.md and length_recall.md, from the values of each seed in docs/results/length."""

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
    REPEAT,
    SOLVED,
    TUNED,
    of_algorithms,
    of_tuned,
    p_of_copying,
    p_of_repetition,
    random_positions,
    solved,
)
from results.stored import Array, difference, family

from roundround.analysis.intervals import half_width, holm, paired_p


def p_of(pairs: list[tuple[Array, Array]]) -> list[float]:
    """p of each difference after Holm over all that can be tested; 1 for a cell at the floor."""
    return [family(dict(enumerate(pairs))).get(n, 1.0) for n in range(len(pairs))]


def p_solved(task: str) -> list[float]:
    """p of exact match at 24, 32 and 64 symbols."""
    return p_of([solved(task, length) for length in (24, 32, 64)])


def test_the_answers() -> None:
    drawn, plain = random_positions("copy", 20)
    numbers = [difference(*solved("sort", 32), 3), difference(drawn, plain, 3)]
    check_claim("length", "Rotary encodings neither", [re.sub(r" \((.*)\)", r", \1", number) for number in numbers])
    few_slow, few = (MQAR[*cell, "token_accuracy", 64] for cell in CELLS[:2])
    apart = difference(few, few_slow).replace(" (", ", ")
    check_claim("length", "The learning rate, not the number", [f"({apart}"])


def test_asentmax_where_the_trained_lengths_are_solved() -> None:
    for task in ("sort", "reverse", "copy"):
        assert min(values.mean() for values in solved(task, 16)) >= 0.99
        assert min(p_solved(task)) > 0.05
    fewer, slower = (SOLVED["copy", "as_entmax_nape", rate, "6000", "exact_match", 16] for rate in ("0.002", "0.001"))
    assert max(fewer.mean(), slower.mean()) < 0.99
    rows = [("sorting", "sort", 32, "differs"), ("reversing", "reverse", 24, "no clear difference")]
    for begins, task, length, verdict in rows:
        mine, theirs = solved(task, length)
        row = f"| {mine.mean():.2f} and {theirs.mean():.2f}; {difference(mine, theirs, 3)} | {verdict} |"
        assert re.search(rf"^\| {begins} .*{re.escape(row)}$", text_of("length"), re.M)


def test_seeds_differ_more_than_normalisers() -> None:
    half = float(half_width(np.subtract(*solved("sort", 32))))
    check_claim("length", "Seeds differ more", [f"reaches {half:.2f} to"])


def test_published_scores_of_copying_are_divided_by_their_ceiling() -> None:
    """results/sanity_check.jsonl of McGill-NLP/length-generalization, split cmc_tr20_ts40, means at 24."""
    published = [score / 0.99**24 for score in (0.722, 0.7467, 0.7507)]  # NoPE, T5's bias, ALiBi
    ours = [COPY[pe, "softmax", "exact_match", 24].mean() for pe in ("nope", "t5_bias", "alibi")]
    assert COPY["rope", "softmax", "exact_match", 24].max() == 0
    said = f"{min(published):.2f} to {max(published):.2f} with NoPE, T5's bias and ALiBi, rotary 0"
    assert f"{said} | {min(ours):.2f} to {max(ours):.2f}; 0 | differs |" in text_of("length")


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
    check_claim("length", "Twelve times the examples", [f"{difference(many, few, 3)}, within", f"(p {p[1]:.3f})"])
    text = text_of("length")
    assert "| {:.3f}, {:.3f} and {:.3f} of the values are right".format(*many) in text
    assert "| {:.2f}, {:.2f} and {:.2f} of the values, {:.2f} at".format(*few_slow, few.mean()) in text


def test_counting() -> None:
    nope, alibi, t5 = (REPEAT[pe, "exact_match", 30] for pe in ("nope", "alibi", "t5_bias"))
    corrected = p_of_repetition()
    assert len(corrected) == 16
    for pe in ("rope", "sinusoidal"):
        assert not REPEAT[pe, "exact_match", 30].any()
    check_claim("length", "NoPE comes first", [
        *(f"{(nope - other).min():.2f} to {(nope - other).max():.2f} before" for other in (alibi, t5)),
        f"{corrected['alibi', 30]:.3f} and {corrected['t5_bias', 30]:.3f}",
    ])  # fmt: skip
    check_claim("length", "T5's bias and ALiBi", [difference(t5, alibi).replace("+", "")])
    within = [REPEAT[pe, "exact_match", 20].mean() for pe in ("nope", "t5_bias")]
    assert f"| {nope.mean():.2f}; NoPE has {within[0]:.3f} within" in text_of("length")
    assert f"| {t5.mean():.2f} and {alibi.mean():.2f}; T5's bias has {within[1]:.3f} within" in text_of("length")


def test_copying() -> None:
    at_30 = [COPY[pe, softmax, "exact_match", 30] for pe in ("nope", "rope", "p_rope") for softmax in NORMALISERS]
    assert max(values.max() for values in at_30) < 0.005
    check_claim("length", "NoPE, RoPE and 0.75-RoPE have 0.00 with", [])
    own = [COPY[pe, softmax, "exact_match", 20].mean() for pe in ENCODINGS for softmax in NORMALISERS]
    assert f"where {min(own):.2f} to {max(own):.2f} are right" in text_of("length")


def test_alibi_copies_with_entmax() -> None:
    corrected = p_of_copying()
    assert len(corrected) == 39
    assert not COPY["alibi", "softmax", "exact_match", 30].any()
    assert COPY["alibi", "entmax15", "exact_match", 30].min() > 0.5
    within = [COPY["alibi", softmax, "exact_match", 20].mean() for softmax in ("entmax15", "as_entmax")]
    assert max(within) < 0.99
    assert {f"{value:.2f}" for value in within} == {"0.98"}
    p = [corrected["alibi", softmax, 30] for softmax in ("entmax15", "as_entmax")]
    check_claim("length", "ALiBi copies with entmax", [f"{p[0]:.3f}, with ASEntmax {p[1]:.4f}", "0.98 within"])


def test_adaptive_temperature_makes_copying_fail() -> None:
    assert max(COPY[pe, "adaptive_temperature", "exact_match", 20].max() for pe in ENCODINGS) < 0.005
    least = min(COPY[pe, "softmax", "exact_match", 20].mean() for pe in ENCODINGS)
    check_claim("length", "Adaptive temperature at inference", [f"means of {least:.2f} and more"])


def test_random_positions_beyond_the_trained_lengths() -> None:
    tasks = ("copy", "reverse")
    assert min(of.mean() for task in tasks for of in random_positions(task, 16)) >= 0.99
    assert not any(of.any() for task in tasks for n in (24, 32) for of in random_positions(task, n))
    pairs = [random_positions(task, 20) for task in tasks]
    assert all((drawn > plain).all() and not plain.any() for drawn, plain in pairs)
    p = [p_of([random_positions(task, n) for n in (20, 24, 32)])[0] for task in tasks]
    assert max(p) < 0.05
    with_floor = [3 * one for one in p]  # the smallest of three
    numbers = [text.format(*of) for text, of in (("p {:.3f} and {:.3f}.", p), ("p {:.3f} and {:.3f}.", with_floor))]
    check_claim("length", "Both solve 16 symbols", numbers)
    row = f"copying {difference(*pairs[0], 3)}, reversal {difference(*pairs[1], 3)} | sign agrees |"
    assert row in text_of("length")


def test_positions_have_to_be_random_in_tests_too() -> None:
    assert not RANDOM["copy", "rope_random at consecutive positions", "exact_match", 16].any()
    check_claim("length", "They have to be random", [])


def test_final_answers_of_algorithms_beyond_the_trained_lengths() -> None:
    pairs = {n: of_algorithms("output_match", n) for n in (10, 12, 16)}
    assert all((mine > theirs).all() for mine, theirs in pairs.values())
    p = p_of([*pairs.values()])
    assert min(p) > 0.05
    check_claim("length", "Adaptive temperature is ahead", ["p {:.3f}, {:.3f} and {:.3f}".format(*p)])
    within = [of.mean() for n in (4, 8) for of in of_algorithms("exact_match", n)]
    row = f"final answers at 12: {difference(*pairs[12], 3)}, p {p[1]:.3f} after Holm; whole answers within the trained"
    assert f"{row} lengths: {min(within):.2f} to {max(within):.2f} | not tested |" in text_of("length")


def test_final_answers_of_minimum_and_of_binary_search() -> None:
    (of_minimum, plain_minimum), (search, plain_search) = (
        of_algorithms("output_match", 12, task) for task in ("minimum", "binary_search")
    )
    numbers = [f"at 12 {of_minimum.mean():.2f} against {plain_minimum.mean():.2f}"]
    check_claim("length", "Most of it is in", [*numbers, f"({search.mean():.2f} against {plain_search.mean():.2f})"])


def test_algorithms_beyond_the_trained_lengths() -> None:
    beyond = [CLRS[s, "all", "exact_match", n].mean() for s, _, metric, n in CLRS if metric == "exact_match" and n > 8]
    assert max(beyond) < 0.025
    check_claim("length", "Hardly a whole answer", [])


def test_after_fine_tuning_the_gate_is_missed_and_nothing_is_decided_beyond_it() -> None:
    assert {len(values) for values in TUNED.values()} == {2}
    check_claim("length", "Not tested: its own lengths", [])
    adaptive, plain = ([of_tuned(n)[k].mean() for n in (4, 5, 6)] for k in range(2))
    assert max(adaptive) < 0.99
    assert [n for n, mean in zip((4, 5, 6), plain, strict=True) if mean < 0.99] == [5]
    assert (192 * of_tuned(5)[1]).tolist() == pytest.approx([190, 190])
    numbers = ["{:.3f}, {:.3f} and {:.3f}".format(*adaptive), f"at 4 and 6 ({plain[0]:.3f})", f"at 5 ({plain[1]:.4f}"]
    check_claim("length", "The rule asks for a mean of 0.99", numbers)
    pairs = {n: of_tuned(n) for n in (9, 12)}
    p = family(pairs)
    check_claim("length", "Beyond them two seeds", [f"p {p[9]:.2f} at 9 and {p[12]:.2f} at 12"])
    effects = [difference(*pair, 3) for pair in pairs.values()]
    row = "final answers at 9: {}, at 12: {}; within the trained lengths {:.3f} to {:.3f} | not tested |"
    assert row.format(*effects, min(adaptive), max(plain)) in text_of("length")
    whole = {place: values for place, values in TUNED.items() if place[1] == "exact_match"}
    assert not any(np.any(values) for (*_, n), values in whole.items() if int(n) > 6)
    slower, faster = (
        np.concatenate([whole[s, "exact_match", n] for n in (4, 5, 6)])
        for s in ("adaptive_temperature_trained", "softmax")
    )
    ends = [slower.min(), slower.max(), faster.min(), faster.max()]
    text = "{:.2f} to {:.2f} of the whole answers at 4 to 6 against {:.2f} to {:.2f}."
    check_claim("length", "Adaptive temperature learned more slowly", [text.format(*ends)])


@pytest.mark.parametrize("page", ["length", "needles", "distance", "language_tasks"])
def test_intervals_of_shares_lie_within_what_is_possible(page: str) -> None:
    """Differences of shares within -1 and 1, shares within 0 and 1: docs/results/method.md."""
    ends = re.findall(r"\(([-+]?\d\.\d+) to ([-+]?\d\.\d+)\)", text_of(page))
    assert len(ends) > 5
    assert all(abs(float(end)) <= 1 for both in ends for end in both)
    halves = re.findall(r"(?<![\d.])(\d\.\d+) ±(\d\.\d+)", text_of(page))
    assert all(float(mean) - float(half) >= 0 and float(mean) + float(half) <= 1 for mean, half in halves)


def test_every_bold_sentence_with_a_number_is_checked_here() -> None:
    check_listed("length", __file__, [])
