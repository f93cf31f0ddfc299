"""Each cell of the table of claims in docs/results.md: its verdict, and its numbers, from the stored values.

As mathematics a claim is a statement that `roundround theory` checks (tests/papers/test_claims.py); in Gemma 3 270M it
is a row of gemma3.md, whose numbers are those of test_numbers_of_gemma3.py.
"""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
from helpers_stored import check_all_numbers
from results import induction_heads
from results.distance import VALUES, less_control
from results.encodings_by_normalisers import CROSSED, LENGTHS, NAMES, crossed
from results.length import of_algorithms, of_tuned
from results.max_retrieval import per_cent_right, times_the_paper
from results.needles import contrasts
from results.norm_band import ASKED, contexts
from results.norm_band import LENGTHS as TRAINED
from results.stored import DOCS
from results.table2 import forty, in_nats, p_of_differences, sweep
from test_numbers_of_gemma3 import stored as of_gemma

from roundround.analysis.intervals import half_width
from roundround.papers.claim import AGREES, DIFFERS, NO_CLEAR, SIGN_AGREES, read_entries

TEXT = (DOCS.parent / "results.md").read_text()
LINES = TEXT.partition("| claim |")[2].partition("\n\n")[0].splitlines()[2:]
CLAIMS = [[cell.strip() for cell in line.strip("|").split("|")] for line in LINES]
YES, NO, NOT_TESTED, NOTHING = "yes", "no", "not tested", "-"
TABLE = {  # the verdicts as mathematics, in small models, in pretrained ones, and in the paper's setting
    "**RoPE**": (YES, NOT_TESTED, NOT_TESTED, YES),
    "A head without positions": (YES, NOT_TESTED, NOT_TESTED, NOTHING),
    "Fast pairs can make a head positional": (YES, NOT_TESTED, YES, NOT_TESTED),
    "Some heads are positional": (NOTHING, NOT_TESTED, YES, NOT_TESTED),
    "Positional heads come near": (NOTHING, NOT_TESTED, NO, NOT_TESTED),
    "Queries and keys prefer slow pairs": (NOTHING, NOT_TESTED, YES, NOT_TESTED),
    "The pairs with the largest norms": (NOTHING, YES, YES, NOT_TESTED),
    "Slow pairs carry meaning": (NOTHING, NOT_TESTED, YES, NOT_TESTED),
    "An apostrophe head": (YES, NOT_TESTED, YES, NOT_TESTED),
    "A search by meaning does not last": (YES, YES, YES, NOT_TESTED),
    "p-RoPE keeps such a search": (YES, YES, YES, NOT_TESTED),
    "p-RoPE predicts text better": (NOTHING, NO_CLEAR, NOT_TESTED, NOT_TESTED),
    "NoPE is worst": (NOTHING, YES, NOT_TESTED, NOT_TESTED),
    "Leaving out the fastest quarter": (NOTHING, NO, NOT_TESTED, NOT_TESTED),
    "**Softmax**": (YES, YES, YES, NO_CLEAR),
    "Sharp rows need large weights": (YES, NOT_TESTED, NOT_TESTED, NOTHING),
    "Max retrieval falls to chance": (NOTHING, NOTHING, NOTHING, NO_CLEAR),
    "Adaptive temperature recovers": (NOTHING, NOTHING, NOTHING, DIFFERS),
    "Its polynomial": (YES, NOTHING, NOTHING, DIFFERS),
    "Swapped into a language model": (NOTHING, YES, YES, NOT_TESTED),
    "Trained with it": (NOTHING, NOT_TESTED, NOT_TESTED, "not run"),
    "The spread of logits": (NOTHING, NOTHING, NO, NOT_TESTED),
}
MATHEMATICS, SMALL, PRETRAINED, IN_PAPER = range(1, 5)
OF_GEMMA = {  # rows of gemma3.md
    "Fast pairs can make a head positional": "positional heads use the fastest pairs",
    "Some heads are positional": "some heads are positional",
    "Positional heads come near": "positional heads come near Cauchy-Schwarz",
    "Queries and keys prefer slow pairs": "keys prefer the slow pairs",
    "The pairs with the largest norms": "the band turns less than once within the context",
    "An apostrophe head": "an apostrophe head: fast pairs find the place, slow ones hold the first token",
}


def cell(claim: str, column: int) -> str:
    (cells,) = [cells for cells in CLAIMS if cells[0].startswith(claim)]
    return cells[column]


def test_every_cell_has_its_verdict() -> None:
    assert len(CLAIMS) == len(TABLE)
    for claim, verdicts in TABLE.items():
        for column, verdict in enumerate(verdicts, 1):
            bare = verdict in (NOT_TESTED, NOTHING, "not run")
            assert (bare and cell(claim, column) == verdict) or cell(claim, column).startswith(f"[{verdict}](results/")


def test_every_number_stands_in_its_cell() -> None:
    said = {
        ("The pairs with the largest norms", PRETRAINED): ["in two of four cases", "of three models"],
        ("Slow pairs carry meaning", PRETRAINED): ["for the slowest quarter, no for the band of local layers"],
        ("A search by meaning does not last", PRETRAINED): [f"in {confirm()} induction heads"],
        ("p-RoPE keeps such a search", SMALL): ["with half of the pairs at rest"],
        ("p-RoPE keeps such a search", PRETRAINED): [f"in {gain()} of {len(induction_heads.heads())} induction heads"],
        ("**Softmax**", SMALL): ["at 8,192 keys"],
        ("Max retrieval falls to chance", IN_PAPER): [accuracies()],
        ("Adaptive temperature recovers", IN_PAPER): gains(),
        ("Its polynomial", IN_PAPER): [polynomial()],
        ("Swapped into a language model", SMALL): [in_cells()],
        ("Trained with it", SMALL): ["ahead in three seeds"],
        ("Trained with it", PRETRAINED): ["learned to 0.99"],
    }
    for claim in TABLE:
        for column in range(1, 5):
            check_all_numbers(cell(claim, column), *said.get((claim, column), []))


def confirm() -> int:
    return Counter(map(induction_heads.verdict, induction_heads.heads()))["confirms"]


def gain() -> int:
    """Heads with more of their target far away if slow pairs rest."""
    far = {own: induction_heads.distances(own[0])[-1] for own in induction_heads.heads()}
    return sum(induction_heads.change(own, distance).mean() > 0 for own, distance in far.items())


def of_figure(name: str, numbers: str) -> dict[str, str]:
    """The verdicts on those numbers of a figure whose names have this form."""
    (entry,) = [one for one in read_entries(DOCS / "reproduction") if one.name == name]
    return {one.what: one.verdict for one in entry.comparisons if re.match(numbers, one.what)}


def accuracies() -> str:
    n = Counter(of_figure("softmax.table1", "softmax, ").values())
    return f"in {n[NO_CLEAR]} accuracies of {n.total()}; {n[AGREES]} agrees"


def gains() -> list[str]:
    n = Counter(of_figure("softmax.table1", "gain, ").values())
    of_all = f"{n[DIFFERS]} gains of {n.total()} differ, {n[AGREES]} agree, {n[SIGN_AGREES]} agree in sign"
    return [of_all, f"{times_the_paper()} as large at 256 to 4,096 items"]


def polynomial() -> str:
    first, *others = of_figure("softmax.fig5", r"beta at [\d.]+ nats").items()
    assert first[1] == NO_CLEAR
    assert {verdict for _, verdict in others} == {DIFFERS}
    return f"from {others[0][0].split()[2]} nats on"


def in_cells() -> str:
    cells = [one for n in LENGTHS for one in crossed("adaptive_temperature", n)]
    return f"its loss is higher, after Holm in {sum(p < 0.05 for *_, p in cells)} cells of {len(cells)}"


# -- the verdicts in small models


def test_searches_by_meaning() -> None:
    difference, p = less_control()[10_000, 2_032]
    assert difference.startswith("-")
    assert p < 0.05
    assert VALUES[10_000, 0.5, 2048, 2_032].mean() > 0.9


def test_encodings_of_a_language_model() -> None:
    sweeps = {corpus: sweep(corpus) for corpus in ("tinystories", "wikitext2")}
    stories, wiki = (p_of_differences(of) for of in sweeps.values())
    assert min(p[place] for p in (stories, wiki) for place in stories if place[0] == "p_rope") > 0.05
    assert forty(256)[0].mean() > half_width(forty(256)[0])  # worse where the slow pairs would turn
    losses = {pe: in_nats(sweeps["tinystories"], pe, 256).mean() for pe, n in stories if n == 256}
    assert sorted(losses, key=losses.__getitem__)[-2:] == ["p_rope_25", "nope"]
    assert (
        max(stories[pe, 256] for pe in ("nope", "p_rope_25"))
        < 0.05
        < min(wiki[pe, 256] for pe in ("nope", "p_rope_25"))
    )
    far = [in_nats(of, "p_rope_reversed", 2048) - in_nats(of, "rope", 2048) for of in sweeps.values()]
    assert max(stories["p_rope_reversed", 2048], wiki["p_rope_reversed", 2048]) < 0.05
    assert min(one.mean() for one in far) > 0


def test_the_band_turns_less_than_once() -> None:
    assert min(contexts(theta, length).min() for theta in ASKED for length in TRAINED) > 1


def test_heads_disperse_in_max_retrieval_and_keep_most_needles() -> None:
    falls = per_cent_right("softmax").mean(1)
    assert (np.diff(falls) < 0).all()
    softmax = contrasts(8_192)["ssmax"][1]
    assert softmax.mean() > 0.5


def test_adaptive_temperature() -> None:
    apart = [CROSSED[pe, "adaptive_temperature", n] - CROSSED[pe, "softmax", n] for pe in NAMES for n in LENGTHS]
    assert min(one.mean() for one in apart) > 0
    beyond = [of_algorithms("output_match", n) for n in (10, 12, 16)]
    assert all((adaptive > plain).all() and len(plain) == 3 for adaptive, plain in beyond)
    assert max(of.mean() for n in (4, 8) for of in of_algorithms("exact_match", n)) < 0.99
    assert min(of_tuned(n)[0].mean() for n in (4, 5, 6)) < 0.99


# -- the verdicts in pretrained models and in the paper's setting


def test_claims_in_pretrained_models() -> None:
    table = (DOCS / "gemma3.md").read_text().partition("## Claim by claim")[2].split("\n\n")[1].splitlines()
    verdicts = {cells[1].strip(): cells[4].strip() for cells in (line.split("|") for line in table)}
    for claim, name in OF_GEMMA.items():
        assert re.split(r"\W", verdicts[name])[0] == TABLE[claim][PRETRAINED - 1], claim
    assert "mostly in the middle" in verdicts["some heads are positional"]
    assert "mostly in middle layers" in cell("Some heads are positional", PRETRAINED)
    assert verdicts["queries prefer the slow pairs"] == NO
    assert cell("Queries and keys prefer slow pairs", PRETRAINED).endswith("for keys, no for queries")
    assert verdicts["slow pairs carry meaning, not position"] == "half"
    assert verdicts["spread of logits: mean over heads, sd"] == "wider"
    assert "wider" in cell("The spread of logits", PRETRAINED)


def test_adaptive_temperature_in_gemma() -> None:
    apart = [ends for place, ends in of_gemma().items() if place.startswith("temperature.csv") and "minus" in place]
    assert apart
    assert all(low > 0.5 for _, low, _ in apart)


def test_claims_in_the_papers_setting() -> None:
    entries = {one.name: one.verdict for one in read_entries(DOCS / "reproduction")}
    assert entries["rope.fig2"] in (AGREES, SIGN_AGREES)
    assert entries["softmax.fig2"] == NO_CLEAR
