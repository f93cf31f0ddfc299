"""Induction: what followed the trigger before follows it again."""

from __future__ import annotations

import numpy as np
from helpers_tasks import build, drawn, mistakes, texts
from scipy.stats import chisquare


def test_a_solver_gets_every_scored_target() -> None:
    assert mistakes(build("induction"), lambda before: before[before.index("=>") + 1], 3, 4, 64, 256) == []


def test_the_trigger_stands_at_any_place_but_the_last_two_and_at_the_end() -> None:
    places = []
    for words in texts(build("induction"), 600, length=8):
        assert words[9] == "=>"
        assert words.count("=>") == 2
        places.append(words.index("=>") - 1)
    assert chisquare(np.bincount(places, minlength=6)).pvalue > 1e-3


def test_the_answer_is_any_symbol_and_alone_is_scored() -> None:
    answers = [int(words[-1]) for words in texts(build("induction"), 600, length=8)]
    assert chisquare(np.bincount(answers, minlength=15)).pvalue > 1e-3
    assert {int(example.scored.sum()) for example in drawn(build("induction"), 20, length=8)} == {1}
