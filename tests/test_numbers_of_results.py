"""Every number of the ten findings, of the table of claims and of questions.md, in its place, from stored values.

Intervals of Gemma 3 270M are those of test_numbers_of_gemma3.py.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest
from helpers_stored import check_all_numbers
from results import distance, induction_heads, needles
from results.distance import FAR, NEAR, VALUES, control, effect, less_control, quarter_turn
from results.encodings_by_normalisers import LENGTHS, NAMES, crossed
from results.engines import ROWS as ANSWERS
from results.forecasts import ROWS as FORECASTS
from results.gap_counting import mean, moved
from results.language_tasks import ZORRO, cell
from results.length import CELLS, COPY, MQAR, REPEAT, of_algorithms, of_tuned, random_positions, share, solved
from results.max_retrieval import TABLE_1, distances, fits, per_cent_right, trainings
from results.needles import SAME, contrasts
from results.norm_band import CASES, bounds, median_turn, rows_of_case
from results.order import VALUES as ORDER
from results.stored import DOCS, Array, difference, family
from results.table2 import forty, in_nats, nats, p_of_differences, resting, sweep
from scipy import stats
from test_numbers_of_bench import LARGER, at_both_sizes, ranks
from test_numbers_of_gemma3 import INTERVAL, of_distance
from test_numbers_of_norm_band import interval, ratio, slope_p, slopes

from roundround.analysis.intervals import half_width, holm, paired_p
from roundround.analysis.standings import compared, read_set
from roundround.analysis.standings import stored as standings
from roundround.papers.claim import AGREES, DIFFERS, NO_CLEAR, SIGN_AGREES, read_entries

RESULTS = (DOCS.parent / "results.md").read_text()
FINDINGS = re.split(r"^\d+\. ", RESULTS.partition("## Ten findings\n")[2].partition("\n## ")[0], flags=re.M)[1:]
FINDINGS = [" ".join(one.partition("\n\n")[0].split()) for one in FINDINGS]
ROWS = [line for line in (DOCS / "questions.md").read_text().splitlines() if line.startswith("|")][2:]
QUESTIONS = {cells[0].strip(): cells[1:] for cells in (row.strip("|").split("|") for row in ROWS)}


ENTRIES = {one.name: one for one in read_entries(DOCS / "reproduction")}


def verdicts(figure: str, numbers: str) -> Counter[str]:
    """How often each verdict was given on the numbers of a figure whose names begin so."""
    return Counter(one.verdict for one in ENTRIES[figure].comparisons if one.what.startswith(numbers))


def finding(start: str) -> str:
    (found,) = [one for one in FINDINGS if one.startswith(f"**{start}")]
    return found


def row(question: str, seeds: int | str, *said: str) -> None:
    """The answer and the effect have these numbers and no others; so many seeds."""
    (cells,) = [cells for asked, cells in QUESTIONS.items() if asked.startswith(question)]
    assert cells[2].strip() == str(seeds)
    check_all_numbers(f"{cells[0]}|{cells[1]}", *said)


def p_paired(mine: Array, theirs: Array) -> float:
    return float(paired_p(mine[:, None], theirs[:, None])[0][0])


def from_rope(corpus: str, encoding: str, tokens: int) -> Array:
    return in_nats(sweep(corpus), encoding, tokens) - in_nats(sweep(corpus), "rope", tokens)


def on_both(encoding: str, tokens: int) -> list[str]:
    return [nats(from_rope(corpus, encoding, tokens), bold=False) for corpus in ("tinystories", "wikitext2")]


def unsigned(values: Array) -> str:
    size, half = abs(values.mean()), float(half_width(values))
    return f"{size:.4f} ({size - half:.4f} to {size + half:.4f})"


# -- distance, table 2 and the band


def test_a_search_by_meaning() -> None:
    rope, half = (distance.mean(VALUES[10_000, p, 2048, 2_032]) for p in (1, 0.5))
    apart = {theta: less_control()[theta, d] for theta, d in ((1_000, 1_024), (10_000, 2_032), (500_000, 2_032))}
    check_all_numbers(
        finding("RoPE breaks a search by meaning"),
        f"2,032 tokens away {rope} of the searches are right with RoPE and {half} with half of the pairs at rest",
        f"minus the same difference at near targets, {difference(effect(10_000, 2_032), control(10_000))}",
        "15 runs",  # conf/experiment/rope/distance.yaml
    )
    row(
        "Does a search by meaning break",
        5,
        "at bases 1,000 and 10,000, and well before it at 500,000",
        "p-RoPE with half",
        "At base 100 the seeds",
        "RoPE less p = 0.5",
        f"{apart[1_000][0]} at base 1,000, {apart[10_000][0]} at 10,000, {apart[500_000][0]} at 500,000",
        f"p {max(p for _, p in apart.values()):.3f} or less",
    )
    old, new = (distance.at(theta, 0.75, FAR) - distance.at(theta, 0.75, NEAR) for theta in (3_000, 30_000))
    row(
        "Which pairs have to rest",
        5,
        "margin of 0.1",
        f"in {quarter_turn(3_000, 0.75):.0f} of 128 tokens",
        f"base 30,000 less base 3,000: {difference(new, old)}, p {p_paired(new, old):.3f}",
    )


def test_resting_where_the_pairs_would_turn() -> None:
    whole, more = forty(256)
    assert (len(whole), len(more)) == (40, 32)
    assert whole.mean() > half_width(whole)
    check_all_numbers(
        finding("Where the slow pairs would turn"),
        f"costs**: {unsigned(whole)} nats per token over forty seeds",
        f"{unsigned(more)} over the 32 added",
    )
    slow = [resting("98", p, 256) - resting("10000", p, 256) for p in ("0.75", "0.5")]
    p = holm([float(stats.ttest_1samp(one, 0).pvalue) for one in slow])
    row(
        "Does resting the slowest quarter",
        "8 and 40",
        "than at base 10,000",
        f"RoPE, {nats(whole, bold=False)} over 40 seeds; over {len(slow[0])}",
        f"less the same at 10,000 {nats(slow[0], bold=False)}, p {p[0]:.3f}",
    )


def test_encodings_of_a_language_model() -> None:
    stories, wiki = on_both("p_rope", 256)
    check_all_numbers(
        finding("At base 10,000 0.75-RoPE shows no clear"), "At base 10,000", f"{stories} nats per token on stories"
    )
    row("Is p-RoPE better than RoPE", 5, f"{stories} on TinyStories", f"{wiki} on")
    stories, wiki = on_both("nope", 256)
    check_all_numbers(finding("A language model needs positions"), f"is {stories} nats per token higher than RoPE's")
    told = {corpus: p_of_differences(sweep(corpus)) for corpus in ("tinystories", "wikitext2")}
    assert told["tinystories"]["nope", 256] < 0.05 < told["wikitext2"]["nope", 256]
    row(
        "Does a language model need a position",
        5,
        f"p {told['wikitext2']['nope', 256]:.3f}",
        f"{stories} on TinyStories",
        f"{wiki} on",
    )
    (far, far_wiki), (within, within_wiki) = (on_both("p_rope_reversed", n) for n in (2048, 256))
    row(
        "Which frequencies of RoPE matter",
        5,
        "fastest of 16 pairs",
        f"at 8 times the context {far} on stories, {far_wiki} on",
        f"within it {within} on stories and {within_wiki} on",
    )
    stories, wiki = on_both("rope_500k", 2048)
    row("Do slower frequencies", 5, "Base 500,000", f"at 8 times the context {stories} on TinyStories and {wiki} on")


def test_the_band_of_large_norms() -> None:
    one, other = (interval(slopes(theta)) for theta in (10_000, 500_000))
    check_all_numbers(
        finding("In small models the band"), f"of {one} at base 10,000, where by", f"and {other} at base 500,000, where"
    )
    at_128, at_256, at_512 = (ratio((n,)) for n in (128, 256, 512))
    assert f"{slope_p()[0]:.3f}" == f"{slope_p()[1]:.3f}"
    row(
        "What sets the band",
        3,
        "(at base 500,000 the",
        "at 256 and 512 tokens, by the rule; at 128 this",
        f"{one} at base 10,000 and {other} at 500,000, p {slope_p()[0]:.3f} for both",
        f"base 500,000 over 10,000: {at_256} and {at_512} times at 256 and 512 tokens, {at_128} at 128",
    )
    low, high = bounds()
    stories, local, in_global, smollm2 = (f"{median_turn(rows_of_case(case)):.2f}" for case in CASES)
    row(
        "Does it lie at the same multiples",
        "-",
        f"predicted {low:.2f} to {high:.2f}: {local} and {in_global} (local and global layers of Gemma)",
        f"{smollm2}, {stories}; over ten texts",
    )


# -- adaptive temperature


def test_adaptive_temperature_in_a_language_model() -> None:
    cells = [one for n in LENGTHS for one in crossed("adaptive_temperature", n)]
    n_clear, means = sum(p < 0.05 for *_, p in cells), [one for one, *_ in cells]
    assert all(low > 0 for _, low, _, _ in cells)
    n_seeds = 3
    check_all_numbers(
        INTERVAL.sub("", finding("Adaptive temperature put into")),
        "at 512 tokens",
        f"each of {n_seeds * len(NAMES)} small models at four lengths ({n_clear} of {len(cells)} differences are clear",
    )
    row(
        "Does adaptive temperature help a trained",
        n_seeds,
        f"all {len(NAMES)} encodings at all {len(LENGTHS)} lengths",
        f"{min(means):+.3f} to {max(means):+.3f}, all {len(cells)} intervals above 0; {n_clear} of them clear",
        f"over the {4 * len(cells)} of the page",
    )
    _, (size, low, high, p), _, _ = crossed("adaptive_temperature_trained", 2048)
    apart = f"{size:+.3f} ({low:+.3f} to {high:+.3f})"
    row("Does it help a model that is trained", 3, f"RoPE at 8 times: {apart}, p {p:.2f} after")
    assert all(p > 0.05 for n in LENGTHS for *_, p in crossed("adaptive_temperature_trained", n))


def test_adaptive_temperature_in_max_retrieval() -> None:
    gain = TABLE_1["gain, 1,024 items"]
    told = Counter(n for training in trainings() for n, p in training.items() if p < 0.05)
    assert told == {256: 2, 1024: 2, 4096: 2}
    gains = [TABLE_1[f"gain, {n} items"] for n in ("256", "512", "1,024", "2,048", "4,096")]
    assert all(1.8 < one["ours"] / one["published"] < 2.6 for one in gains)
    sizes = "256 to 4,096 items"
    check_all_numbers(
        finding("In max retrieval, its paper's task"),
        sizes,
        f"{gain['ours']:.2f} points at 1,024 items, {gain['published']:.1f} published",
        "At 256, 1,024 and 4,096 items",
    )
    accuracies = verdicts("softmax.table1", "softmax,")
    row(
        "Is the max-retrieval table reproduced",
        10,
        sizes,
        "in two of three trainings at 256, 1,024 and 4,096",
        f"of {sum(accuracies.values())} accuracies {accuracies[AGREES]} agrees, {accuracies[NO_CLEAR]} show no clear",
        f"gain at 1,024 items {gain['ours']:.2f} points, the paper's {gain['published']:.1f}, difference "
        f"{gain['ours'] - gain['published']:.2f} ±{gain['error']:.2f}",
    )
    row("Which recipe gives the gains", 5, f"gains of the recipe {distances('nothing')[1]} points from")
    hard, adaptive = (f"{per_cent_right(name).mean(1)[1]:.0f} %" for name in ("hard", "adaptive_temperature"))
    row("Can a normaliser rescue", 10, f"hard attention {hard} right at 1,024 items, adaptive temperature {adaptive}")
    others = ("softmax", "adaptive_temperature", "log_n", "hard")
    of_fits = {name: difference(fits("fitted"), fits(name), 1, np.inf) for name in others}
    p = holm([p_paired(fits("fitted"), fits(name)) for name in others])
    row(
        "Does a fitted adaptive temperature",
        5,
        f"(p {p[0]:.2f})",
        f"less each of them: {of_fits['softmax']}, {of_fits['adaptive_temperature']} and {of_fits['hard']} points",
    )


# -- tasks


def test_lengths() -> None:
    assert not any(REPEAT[pe, "exact_match", 30].any() for pe in ("rope", "sinusoidal"))
    own, far = (REPEAT["nope", "exact_match", n] for n in (20, 30))
    row("Which encoding counts", len(far), "(0)", f"({own.mean():.3f} within", f"NoPE: {share(far)} right at 1.5 times")
    entmax, plain = (COPY["alibi", name, "exact_match", 30] for name in ("entmax15", "softmax"))
    assert f"{plain.max():.2f}" == f"{plain.min():.2f}"
    row(
        "Which encodings copy",
        len(entmax),
        "(below 0.99 within",
        f"at 1.5 times: ALiBi {', '.join(f'{one:.2f}' for one in entmax)} with entmax, {plain.mean():.2f} with softmax",
    )
    sort, reverse, copy = (difference(*solved(task, n), 3) for task, n in (("sort", 32), ("reverse", 24), ("copy", 24)))
    row(
        "Does ASEntmax sort, reverse or copy",
        3,
        f"sorting twice the length {sort}, published +1.00",
        f"reversing and copying 1.5 times, {reverse} and {copy}",
    )
    pairs = {task: random_positions(task, 20) for task in ("copy", "reverse")}
    copy, reverse = (difference(*pair, 3) for pair in pairs.values())
    p = [family({n: random_positions(task, n) for n in (20, 24, 32)})[20] for task in pairs]
    assert all((drawn > plain).all() and len(drawn) == 5 for drawn, plain in pairs.values())
    row(
        "Do random positions carry",
        5,
        "to 1.25 times",
        "at 1.5 times",
        f"copies {copy}, reversals {reverse}, p {p[0]:.3f} and {p[1]:.3f}",
    )
    few_slow, few, _, many = (MQAR[*place, "token_accuracy", 64] for place in CELLS)
    p = holm([p_paired(few, few_slow), p_paired(many, few)])
    row(
        "What keeps associative recall",
        3,
        "at 8,192 steps",
        f"rate {difference(few, few_slow)} of the values, p {p[0]:.3f}",
        f"number {difference(many, few, 3)}",
    )


def test_algorithms_needles_and_grammar() -> None:
    pairs = {n: of_algorithms("output_match", n) for n in (10, 12, 16)}
    apart = ", ".join(difference(*pair, 3) for pair in pairs.values())
    p = family(pairs).values()
    row("Does adaptive temperature in training help CLRS", 3, f"at 10, 12 and 16: {apart}, p {min(p):.3f} or more")
    pairs = {n: of_tuned(n) for n in (9, 12)}
    apart, p_9, p_12 = " and ".join(difference(*pair, 3) for pair in pairs.values()), *family(pairs).values()
    row(
        "And in fine-tuning",
        2,
        "reach 0.99",
        f"at 9 and 12: {apart}, p {p_9:.2f} and {p_12:.2f} after",
    )
    (mine, theirs, p_rule), (same, plain, p_same) = (
        contrasts(8_192, of)["as_entmax_nape"] for of in (needles.CHOSEN, SAME)
    )
    assert p_rule < 0.05 < p_same
    row(
        "Which normaliser keeps a needle",
        5,
        "At 31 million",
        f"at 8,192 tokens, ASEntmax less the softmax: {difference(mine, theirs)}, p {p_rule:.3f} after",
        f"with the same steps and rate {difference(same, plain)}",
    )
    rope, p_rope = (cell((ZORRO[pe, 8192] - ZORRO[pe, 0]).mean(1), "+") for pe in ("rope", "p_rope"))
    row("Does grammar survive", 3, "on 256 tokens, lose it at 8,192", f"RoPE {rope},", p_rope)


def test_where_the_order_of_tokens_comes_from() -> None:
    losses = {one: ORDER[one, "", "nats_per_token", "128"] for one in ("nope", "nope canon", "rope")}
    canon, rope = (difference(losses[one], losses["nope"], 3, np.inf) for one in ("nope canon", "rope"))
    row("Where does the order of tokens", 5, f"Canon {canon}, RoPE {rope}")


# -- pretrained models and engines


def test_heads_of_pretrained_models() -> None:
    every = induction_heads.heads()
    falls = sorted(-float(induction_heads.fall(own).mean()) for own in every)
    p_falls, p_rest = (max(p for _, p in induction_heads.told(name).values()) for name in ("falls", "less at rest"))
    n = Counter(map(induction_heads.verdict, every))["confirms"]
    assert Counter(map(induction_heads.mostly, every)) == {"distance": len(every)}
    n_texts = sorted({len(induction_heads.fall(own)) for own in every})
    check_all_numbers(
        finding("Trained induction heads lose"),
        f"in {n} of {len(every)} heads of two models",
        f"is {falls[0]:.1f} to {falls[-1]:.1f} nats smaller",
    )
    row(
        "Do all induction heads",
        "-",
        f"Yes, {n} of {len(every)} in",
        f"far less 64 tokens apart: -{falls[0]:.1f} to -{falls[-1]:.1f} nats, p {p_falls:.3f} or less",
        f"at rest, p {p_rest:.3f} or less; over {n_texts[0]} and {n_texts[1]} texts",
    )
    kinds = ("Gemma 3 270M", "stories260k", "its global layers")
    gains = {kind: mean(right - wrong, 1) for kind in kinds for right, _, wrong, _ in [moved(kind)]}
    page = " ".join((DOCS / "gap_counting.md").read_text().split())
    assert f"In Gemma 3 270M right heads lead wrong ones by {gains['Gemma 3 270M']} of 72;" in page
    row(
        "Does the adaptive temperature sharpen",
        "-",
        f"Gemma {gains['Gemma 3 270M']} of 72, stories260k {gains['stories260k']} of 40",
        f"in Gemma's 12 global heads {gains['its global layers']}; over 5 and 8 texts",
    )


def gemma(question: str, *said: str) -> None:
    """A row whose intervals are checked beside the page's."""
    (cells,) = [cells for asked, cells in QUESTIONS.items() if asked.startswith(question)]
    assert "gemma3.md" in cells[4]
    assert cells[2].strip() == "-"
    check_all_numbers(INTERVAL.sub("", f"{cells[0]}|{cells[1]}"), *said)


def test_gemma() -> None:
    check_all_numbers(INTERVAL.sub("", finding("Gemma 3 270M has large keys")))
    gemma("Does it help a real one", "at 512 tokens", "at 8,192", "over 5 stretches")
    counts = "Of 12 claims 8 hold (three of them elsewhere or in part), 1 half, 2 do"  # test_numbers_of_gemma3.py
    gemma("Does Gemma 3 270M do what", counts, "over 10 texts")
    left, kept = of_distance("target"), of_distance("target", "lowest:0.375")
    back = [f"{100 * (kept[d] - left[d]) / (left[64] - left[d]):.0f} %" for d in (32_768, 49_152)]
    gemma(
        "Does a trained head lose",
        f"gives back {back[0]} and {back[1]} of",
        "at 32,768 tokens,  at 49,152,  at 8,192; over 4 to 6 texts",
    )
    gemma("Can slow pairs of a trained model", "at 32,768 tokens", "over 4 windows; at 8,192", "over 6")


def test_engines() -> None:
    n = Counter(row["verdict"] for row in ANSWERS)
    row(
        "Do inference engines put",
        "-",
        f"of {len(ANSWERS)} answers {n['agrees']} agree, {n['mistake']} are named mistakes, {n['differs']} differ, "
        f"{n['refused']} are refusals",
    )
    page = (DOCS / "engines.md").read_text()
    table = page.partition("## Faults that affect published checkpoints")[2].split("\n\n")[1].splitlines()[2:]
    wrong = {name for line in table if "(none known)" not in line for name in line.split("|")[1].strip().split(", ")}
    by_reading = {line.split("|")[1].strip() for line in table if "(by reading)" in line} - {"CTranslate2"}
    assert by_reading == {"vLLM"}
    assert wrong - by_reading == {"CTranslate2", "llama.cpp", "mlx-lm", "ONNX Runtime GenAI"}
    assert len({row["engine"] for row in ANSWERS}) == 6
    check_all_numbers(finding("Four of six inference engines"))


# -- the standard set, figures, statements


def test_the_standard_set_and_forecasts() -> None:
    found = {one.name: one for one in standings("v2", "default")}
    the_set = read_set("v2", "default", None)
    [rise] = [one for one in compared(found["alibi"], found["rope"], the_set) if one["metric"] == "rise 8x"]
    assert rise["p_holm"] < 0.0005
    [column] = [one for one in the_set.columns if one.name == "rise 8x"]
    row(
        "Where does a variant stand",
        3,
        f"at 8 times the context, where RoPE's rises by {found['rope'].mean(column):.2f}",
        f"ALiBi less RoPE: {rise['difference']:+.3f}, p below 0.001",
    )
    orders = {name: ranks(*at_both_sizes(name, [*LARGER["loss"]])) for name in ("loss", "rise 8x")}
    row(
        "Does the set's order hold at 5 million",
        "1, copying and needles 2",
        f"over nine variants: the order of the loss {orders['loss']}, that of the rise {orders['rise 8x']}",
    )
    forecasts = sum(one["forecast"] != "none" for one in FORECASTS)
    row("Does the set forecast", "-", f"{forecasts} forecasts stand")


def test_figures_and_seeds() -> None:
    page = " ".join((DOCS / "reproduction.md").read_text().split())
    (cells,) = [cells for asked, cells in QUESTIONS.items() if asked.startswith("Are the papers' figures")]
    said = cells[0].strip()
    assert said in page
    of_seeds = (DOCS / "method.md").read_text().partition("## How many seeds")[2]
    losses = [float(loss) for loss in re.findall(r"4\.4\d{3}", of_seeds)]
    spread = float(np.std(losses, ddof=1))
    low, high = (spread * (4 / stats.chi2.ppf(q, 4)) ** 0.5 for q in (0.975, 0.025))
    row(
        "How far are two seeds apart",
        len(losses),
        f"{spread:.3f} ({low:.3f} to {high:.3f}) at",
        f"about {1.96 * 2**0.5 * spread:.2f} ({stats.t.ppf(0.975, 4) * 2**0.5 * spread:.3f} by",
    )
    row("Do the papers' statements hold", "-")
    errata = [line for line in (DOCS.parent / "inside" / "errata.md").read_text().splitlines() if line.startswith("| ")]
    assert (len(errata) - 1, "ten [slips of print" in "".join(ROWS)) == (10, True)


def test_hours_are_those_of_the_pages() -> None:
    hours: dict[str, float] = defaultdict(float)
    for cells in QUESTIONS.values():
        page = cells[4].partition("](")[2].partition(")")[0].partition("#")[0]
        hours[page] += float(cells[3]) if re.fullmatch(r"[\d.]+", cells[3].strip()) else 0
    for page, total in hours.items():
        for stated in re.findall(r"([\d.]+) hours of one core", (DOCS / page).read_text()):
            assert float(stated) == pytest.approx(total), page


# -- the table of claims

LINES = RESULTS.partition("| claim |")[2].partition("\n\n")[0].splitlines()[2:]
CLAIMS = {cells[0].strip(): cells[1:] for cells in (line.strip("|").split("|") for line in LINES)}
MATHEMATICS, SMALL, PRETRAINED, IN_PAPER, _ = range(5)  # columns
GEMMA = {  # claims whose cell of a pretrained model is a row of gemma3.md
    "Fast pairs can make a head positional": "positional heads use the fastest pairs",
    "Some heads are positional": "some heads are positional",
    "Positional heads come near": "positional heads come near Cauchy-Schwarz",
    "Queries and keys prefer slow pairs": "keys prefer the slow pairs",
    "The pairs with the largest norms": "the band turns less than once within the context",
    "An apostrophe head": "an apostrophe head: fast pairs find the place, slow ones hold the first token",
}


def claim(start: str, column: int, verdict: str, *said: str) -> None:
    """The cell begins with the verdict, and has these numbers and no others."""
    (cells,) = [cells for name, cells in CLAIMS.items() if name.startswith(start)]
    assert cells[column].strip().startswith((f"[{verdict}]", verdict))
    check_all_numbers(cells[column], *said)


def test_claims_in_small_models() -> None:
    found = less_control()[10_000, 2_032]
    assert found[0].startswith("-")
    assert found[1] < 0.05
    claim("A search by meaning does not last", SMALL, "yes")
    assert VALUES[10_000, 0.5, 2048, 2_032].mean() > 0.9
    claim("p-RoPE keeps such a search", SMALL, "yes")
    told = {corpus: p_of_differences(sweep(corpus)) for corpus in ("tinystories", "wikitext2")}
    assert all(of["p_rope", n] > 0.05 for of in told.values() for n in LENGTHS)
    claim("p-RoPE predicts text better", SMALL, "no clear difference")
    losses = {pe: from_rope("tinystories", pe, 256).mean() for pe in ("nope", "p_rope_25", "p_rope", "p_rope_reversed")}
    assert sorted(losses, key=losses.__getitem__)[-2:] == ["p_rope_25", "nope"]
    assert max(told["tinystories"][pe, 256] for pe in ("nope", "p_rope_25")) < 0.05
    assert min(told["wikitext2"][pe, 256] for pe in ("nope", "p_rope_25")) > 0.05
    claim("NoPE is worst", SMALL, "yes")
    assert all(of["p_rope_reversed", 2048] < 0.05 for of in told.values())
    assert all(from_rope(corpus, "p_rope_reversed", 2048).mean() > 0 for corpus in told)
    claim("Leaving out the fastest quarter", SMALL, "no")
    cells = [one for n in LENGTHS for one in crossed("adaptive_temperature", n)]
    n_clear = sum(p < 0.05 for *_, p in cells)
    claim("Swapped into a language model", SMALL, "yes", f"after Holm in {n_clear} cells of {len(cells)}")
    assert all((adaptive > plain).all() for adaptive, plain in (of_algorithms("output_match", n) for n in (10, 12, 16)))
    assert max(of.mean() for n in (4, 8) for of in of_algorithms("exact_match", n)) < 0.99
    claim("Trained with it", SMALL, "not tested")
    claim("The pairs with the largest norms", SMALL, "yes")
    claim("**Softmax**", SMALL, "yes", "at 8,192 keys")
    assert contrasts(8_192)["ssmax"][1].mean() > 0.5


def test_claims_in_pretrained_models() -> None:
    page = (DOCS / "gemma3.md").read_text().partition("## Claim by claim")[2].split("\n\n")[1].splitlines()
    verdicts = {cells[1].strip(): cells[4].strip() for cells in (line.split("|") for line in page)}
    for start, name in GEMMA.items():
        claim(start, PRETRAINED, re.split(r"\W", verdicts[name])[0])
    assert verdicts["queries prefer the slow pairs"] == "no"
    assert "for keys, no for queries" in CLAIMS["Queries and keys prefer slow pairs"][PRETRAINED]
    assert verdicts["slow pairs carry meaning, not position"] == "half"
    claim("Slow pairs carry meaning", PRETRAINED, "yes")
    assert "yes](results/gemma3.md#local-and-global-layers) for the slowest quarter, no for the band" in RESULTS
    assert verdicts["spread of logits: mean over heads, sd"] == "wider"
    claim("The spread of logits", PRETRAINED, "no")
    every = induction_heads.heads()
    n = Counter(map(induction_heads.verdict, every))["confirms"]
    claim("A search by meaning does not last", PRETRAINED, "yes", f"in {n} induction heads")
    gains = [induction_heads.change(own, induction_heads.distances(own[0])[-1]).mean() > 0 for own in every]
    claim("p-RoPE keeps such a search", PRETRAINED, "yes", f"in {sum(gains)} of {len(every)} induction heads")
    claim("Swapped into a language model", PRETRAINED, "yes")
    assert min(of_tuned(n)[0].mean() for n in (4, 5, 6)) < 0.99
    claim("Trained with it", PRETRAINED, "not tested", "learned to 0.99")


def test_claims_in_the_papers_setting() -> None:
    table, figure = ENTRIES["softmax.table1"], ENTRIES["softmax.fig5"]
    accuracies, gains = verdicts(table.name, "softmax,"), verdicts(table.name, "gain,")
    assert sum(accuracies.values()) == sum(gains.values()) == 11
    claim(
        "Max retrieval falls to chance",
        IN_PAPER,
        NO_CLEAR,
        f"in {accuracies[NO_CLEAR]} accuracies of 11; {accuracies[AGREES]} agrees",
    )
    claim(
        "Adaptive temperature recovers",
        IN_PAPER,
        table.verdict,
        f"{gains[DIFFERS]} gains of 11 differ, {gains[AGREES]} agree, {gains[SIGN_AGREES]} agree in sign",
        "at 256 to 4,096 items",
    )
    betas = {one.what: one.verdict for one in figure.comparisons if re.fullmatch(r"beta at [\d.]+ nats", one.what)}
    assert [*betas.values()] == [NO_CLEAR, *[DIFFERS] * 4]
    claim("Its polynomial", IN_PAPER, DIFFERS, f"from {[*betas][1].split()[2]} nats on")


def test_every_finding_and_every_question_is_checked() -> None:
    source = Path(__file__).read_text()
    asked = re.findall(r'\b(?:row|gemma)\(\s*"(.+?)"', source)
    told = re.findall(r'\bfinding\(\s*"(.+?)"', source)
    assert all(one.startswith(tuple(f"**{start}" for start in told)) for one in FINDINGS)
    assert len(told) == len(FINDINGS) == 10
    left = [question for question in QUESTIONS if not question.startswith((*asked, "Are the papers' figures"))]
    assert left == []
