"""The claims of docs/results/induction_heads.md, from the values of each text in docs/results/induction_heads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from helpers_stored import check_claim, check_listed, text_of
from results.induction_heads import (
    NEAR,
    TABLES,
    Head,
    change,
    distances,
    fall,
    heads,
    interval,
    mostly,
    parts,
    told,
    values,
    verdict,
    weights,
)
from results.stored import Array

from roundround.analysis.intervals import half_width

GEMMA, SMOLLM2 = "gemma-3-270m", "smollm2-135m-instruct"


def of(model: str) -> list[Head]:
    return [own for own in heads() if own[0] == model]


def far(own: Head) -> int:
    return distances(own[0])[-1]


def span(number: Callable[[Head], Array], some: list[Head], sign: str = "") -> str:
    """The least and the largest mean over texts of some heads."""
    means = sorted((float(number(own).mean()) for own in some), key=abs if sign == "" else None)
    return f"{means[0]:{sign}.1f} to {means[-1]:{sign}.1f}"


def signs(number: Callable[[Head], Array], some: list[Head]) -> Counter[int]:
    """How many heads have an interval above 0 (1), below it (-1), and around it (0)."""
    found = [(float(number(own).mean()), float(half_width(number(own)))) for own in some]
    return Counter(0 if abs(mean) <= half else 1 if mean > 0 else -1 for mean, half in found)


def test_texts_and_heads_are_those_that_the_page_names() -> None:
    n_texts = {model: len(fall(of(model)[0])) for model in (GEMMA, SMOLLM2)}
    text = " ".join(text_of("induction_heads").split())
    assert f"32,768 tokens, {n_texts[GEMMA]} texts" in text
    assert f"8,192 tokens, {n_texts[SMOLLM2]} texts" in text
    n_all = {model: len(fall(of(model)[0], rest=1.0)) for model in (GEMMA, SMOLLM2)}
    assert f"(Gemma {n_all[GEMMA]} texts, SmolLM2 {n_all[SMOLLM2]})" in text
    assert f"far is {far(of(GEMMA)[0]):,};" in text
    assert f"far is {far(of(SMOLLM2)[0]):,}." in text
    for model in (GEMMA, SMOLLM2):
        chosen = [head for head, (weight, window) in weights(model).items() if weight >= 0.3 and not window]
        assert chosen == [head for _, head in of(model)]


def test_the_answer_counts_verdicts() -> None:
    n = Counter(map(verdict, heads()))
    assert n == {"confirms": len(heads())}
    p = [f"{max(p for _, p in told(name).values()):.3f}" for name in ("falls", "less at rest")]
    numbers = [f"{n['confirms']} of {len(heads())}", f"{span(lambda own: -fall(own), heads())} nats smaller"]
    assert f"All {n['confirms']} *confirm*" in text_of("induction_heads")
    check_claim("induction_heads", "Yes, in", [*numbers, f"(p at most {p[0]})", f"(p at most {p[1]})"])


def test_who_loses_the_target() -> None:
    n = signs(lambda own: values(own, "gap", far(own)), heads())
    left = [own for own in heads() if values(own, "gap", far(own)).mean() > 0]
    assert (n[-1], n[0], n[1]) == (9, 0, 3)
    check_claim(
        "induction_heads", "In 9 of them", [", ".join(head for _, head in left[:2]) + f" and {left[2][1]} of Gemma"]
    )


def test_parts_of_the_loss() -> None:
    assert Counter(map(mostly, heads())) == {"distance": 12}
    by_distance = span(lambda own: parts(own)[1], heads())
    by_keys = span(lambda own: parts(own)[0], heads(), "+")
    check_claim("induction_heads", "It is rotation more", ["all 12", f"({by_distance} nats)", f"cost {by_keys} nats"])


def test_rest_gives_back_far_and_takes_near() -> None:
    at_far, near = signs(lambda own: change(own, far(own)), heads()), signs(lambda own: change(own, NEAR), heads())
    check_claim("induction_heads", "Rest helps far", [f"in {at_far[1]} of 12", f"64 apart in {near[-1]}"])


def test_the_head_that_rest_does_not_help() -> None:
    own = (GEMMA, "5.2")
    assert [one for one in heads() if change(one, far(one)).mean() < 0] == [own]
    numbers = [interval(-change(own, distance), sign="") for distance in (NEAR, far(own))]
    check_claim("induction_heads", "Head 5.2", [f"by {numbers[0]} there, by {numbers[1]} far away"])


def test_all_pairs_at_rest() -> None:
    gemma, smollm2 = (span(lambda own: fall(own, rest=1.0), of(model), "+") for model in (GEMMA, SMOLLM2))
    check_claim("induction_heads", "All pairs of a head", [f"{gemma} nats in Gemma, {smollm2} in SmolLM2"])
    stays = fall((GEMMA, "5.1"), rest=1.0).mean() / fall((GEMMA, "5.1")).mean()
    assert 0.45 < stays < 0.55


def test_against_the_first_token() -> None:
    gemma, smollm2 = (span(lambda own: -fall(own, "over_first"), of(model)) for model in (GEMMA, SMOLLM2))
    check_claim("induction_heads", "Against the first token", [f"by {gemma} nats in Gemma, {smollm2} in SmolLM2"])


def test_a_swapped_row_or_another_sign_is_another_table() -> None:
    """The cells of a head are not those of another, and no cell is that of the opposite difference."""
    rows = [row.split("|")[2:6] for row in TABLES["induction_gaps"]()]
    assert len({cell for row in rows for cell in row}) == 4 * len(rows)
    for own, row in zip(heads(), rows, strict=True):
        assert row[0].strip() == interval(fall(own))
        assert row[0].strip() != interval(-fall(own))


def test_every_claim_of_the_page_is_checked() -> None:
    check_listed("induction_heads", __file__, ["Text", "Heads", "Verdict", "Parts"])
