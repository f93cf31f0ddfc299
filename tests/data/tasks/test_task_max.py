"""Max retrieval as a sequence."""

from __future__ import annotations

from operator import itemgetter

import numpy as np
import pytest
from helpers_tasks import between, build, drawn, mistakes, texts
from scipy.stats import chisquare


def items(words: list[str]) -> list[tuple[int, str]]:
    """Priorities and classes."""
    prompt = between(words, "<bos>", "<sep>")
    return [(int(priority[1:]), name) for priority, name in zip(prompt[::2], prompt[1::2], strict=True)]


def test_a_solver_gets_every_scored_target() -> None:
    """The class of the first of the largest priorities."""
    for task, longest in ((build("max"), 512), (build("max", n_priorities=2, n_classes=2), 64)):
        assert mistakes(task, lambda before: max(items(before), key=itemgetter(0))[1], 1, 2, 16, longest) == []


@pytest.mark.parametrize("length", [1, 2, 16, 256])
def test_the_largest_priority_stands_once_whatever_the_length(length: int) -> None:
    for words in texts(build("max", n_priorities=4), 30, length=length):
        priorities = [priority for priority, _ in items(words)]
        assert len(priorities) == length
        assert priorities.count(max(priorities)) == 1


def test_the_largest_priority_its_place_and_its_class_are_drawn_evenly() -> None:
    found = [items(words) for words in texts(build("max", n_priorities=9, n_classes=5), 800, length=6)]
    best = [max(range(6), key=lambda place: one[place][0]) for one in found]
    assert chisquare(np.bincount(best, minlength=6)).pvalue > 1e-3
    largest = [one[place][0] for one, place in zip(found, best, strict=True)]
    assert chisquare(np.bincount(largest, minlength=9)[1:]).pvalue > 1e-3
    names = [int(one[place][1][1:]) for one, place in zip(found, best, strict=True)]
    assert chisquare(np.bincount(names, minlength=5)).pvalue > 1e-3


def test_the_class_alone_is_scored() -> None:
    assert {int(example.scored.sum()) for example in drawn(build("max"), 20, length=8)} == {1}
