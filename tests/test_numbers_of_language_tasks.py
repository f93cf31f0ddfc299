"""The contrasts of docs/results/language_tasks.md that stand in no table, from the values of each seed."""

from __future__ import annotations

import numpy as np
from helpers_stored import text_of
from results.language_tasks import BLIMP, NAMES, PREFIXES, ZORRO, cell
from results.stored import Array, family
from scipy import stats


def test_every_seed_has_every_phenomenon() -> None:
    assert {values.shape[1] for values in ZORRO.values()} == {23}
    assert {values.shape[1] for values in BLIMP.values()} == {67}
    assert ZORRO.keys() == {(pe, n) for pe in NAMES for n in PREFIXES}


def change(pe: str, prefix: int) -> Array:
    """Accuracy behind a prefix less that behind none, over all phenomena, [S]."""
    return (ZORRO[pe, prefix] - ZORRO[pe, 0]).mean(1)


def test_changes_less_those_without_position() -> None:
    text = " ".join(text_of("language_tasks").split())
    for pe in ("rope", "p_rope"):
        apart = change(pe, 8192) - change("nope", 8192)
        assert f"is {cell(apart, '+')}, p {stats.ttest_1samp(apart, 0).pvalue:.3f}" in text


def test_over_all_prefixes() -> None:
    text = " ".join(text_of("language_tasks").split())
    p = family({(pe, n): (change(pe, n), np.zeros(3)) for pe in NAMES for n in PREFIXES[1:]})
    assert f"RoPE at 8,192 has p {p['rope', 8192]:.2f} and 0.75-RoPE {p['p_rope', 8192]:.3f}" in text
    assert f"at 2,048 stays lost (p {p['p_rope', 2048]:.4f})" in text
    assert [place for place, one in p.items() if one < 0.05] == [("p_rope", 2048)]


def test_the_answer_over_seeds_and_over_phenomena() -> None:
    text = " ".join(text_of("language_tasks").split())
    moved = [ZORRO[pe, 8192] - ZORRO[pe, 0] for pe in ("rope", "p_rope")]
    seeds = [cell(one.mean(1), "+") for one in moved]
    assert f"by {seeds[0]} and {seeds[1]}." in text
    phenomena = [cell(one.mean(0), "+") for one in moved]
    assert f"contain 0: {phenomena[0]} and {phenomena[1]}." in text


def test_accuracy_without_a_prefix() -> None:
    text = " ".join(text_of("language_tasks").split())
    zorro, blimp = (sorted(found[pe, 0].mean() for pe in NAMES) for found in (ZORRO, BLIMP))
    assert f"without a prefix**: {zorro[0]:.3f} to {zorro[-1]:.3f} are right" in text
    assert f"the models have {blimp[0]:.3f} to {blimp[-1]:.3f}." in text
