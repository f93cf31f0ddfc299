"""Local count: how often has the symbol just been repeated?"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from helpers_tasks import build, mistakes, texts
from scipy.stats import chisquare


def runs_of(words: list[str]) -> list[tuple[str, int]]:
    """The symbols and how often each is repeated, questions and answers left out."""
    symbols = [word for word in words if word.startswith("x")]
    return [(symbol, len(list(run))) for symbol, run in itertools.groupby(symbols)]


def test_a_solver_gets_every_scored_target() -> None:
    """How often the symbol before the question is repeated there."""
    for task, lengths in (
        (build("local_count"), (2, 3, 32, 128)),
        (build("local_count", n_symbols=16, longest_run=48), (64, 128)),
    ):
        assert mistakes(task, lambda before: str(runs_of(before)[-1][1]), *lengths) == []


def test_neighbours_differ_and_runs_make_up_the_length() -> None:
    for words in texts(build("local_count", n_symbols=2), 30, length=40):
        runs = runs_of(words)
        assert len(runs) == words.count("<sep>"), "two runs of one symbol would be one"
        assert sum(size for _, size in runs) == 40
        assert all(2 <= size <= 8 for _, size in runs[:-1])
        assert 1 <= runs[-1][1] <= 8


def test_runs_are_drawn_evenly() -> None:
    first = [runs_of(words)[0] for words in texts(build("local_count"), 700, length=32)]
    assert chisquare(np.bincount([size for _, size in first], minlength=9)[2:]).pvalue > 1e-3
    assert chisquare(np.bincount([int(symbol[1:]) for symbol, _ in first], minlength=16)).pvalue > 1e-3


@pytest.mark.parametrize("length", [2, 3, 64])
def test_context_is_reached_by_runs_of_two(length: int) -> None:
    task = build("local_count", longest_run=2)
    assert {len(words) for words in texts(task, 3, length=length)} == {task.context(length)}
