"""Each answer to an open question fails when its own formula is broken."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from roundround.papers import constructions
from roundround.papers.claim import claim_of
from roundround.papers.rope import length, p_rope
from roundround.papers.softmax import dispersion

BREAKAGES: dict[str, tuple[str, Any, str, Any]] = {
    "a band that does not turn": (
        "beyond.thm_6_1_wide", length, "channel", lambda first, last, n: torch.ones(n, dtype=torch.float64)
    ),
    "a quarter turn taken for a whole one": (
        "beyond.thm_6_1_wide", length, "quarter_turn", lambda first, last: 4 * QUARTER(first, last)
    ),
    "cosines of the wrong pairs": (
        "beyond.thm_6_1_wide", length, "aligned_by_formula", lambda n, g: COSINE(n, 1.04 * g)
    ),
    "p-RoPE that turns every pair": (
        "beyond.p_rope_guarantee", p_rope, "p_rope_frequencies", lambda p: p_rope.frequencies()
    ),
    "a bound of half the size": (
        "beyond.p_rope_guarantee", p_rope, "both_bounds", lambda *made: BOUNDS(*made) / 4
    ),
    "a soft cut that is as hard": ("beyond.soft_cut", p_rope, "soft", p_rope.hard),
    "an arcsine law squared": (
        "beyond.confusion", length, "token_failure", lambda *made: FAILURE(*made) ** 2
    ),
    "a p-RoPE that forgets": (
        "beyond.confusion", length, "p_rope_frequencies", lambda p, *sizes: FULL(1.0, *sizes)
    ),
    "an entropy of a row without its rest": (
        "beyond.lifted_constant", dispersion, "lone_entropy_by_formula", lambda n: ENTROPY(n) / math.log(2)
    ),
    "log-n trained elsewhere": ("beyond.lifted_constant", dispersion, "TRAINED", 4096),
}  # fmt: skip
QUARTER, COSINE, BOUNDS = length.quarter_turn, constructions.aligned_by_formula, p_rope.both_bounds
FAILURE, FULL, ENTROPY = length.token_failure, constructions.p_rope_frequencies, dispersion.lone_entropy_by_formula


QUICK = ("a band that does not turn", "cosines of the wrong pairs", "a soft cut that is as hard")  # a tenth of a second


@pytest.mark.parametrize(
    "breakage", [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK)) for name in BREAKAGES]
)
def test_an_answer_fails_when_its_formula_is_broken(breakage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    claim, module, name, broken = BREAKAGES[breakage]
    monkeypatch.setattr(module, name, broken)
    assert not claim_of(claim).check().holds
