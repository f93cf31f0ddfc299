"""Recall at a distance."""

from __future__ import annotations

import numpy as np
import pytest
from helpers_tasks import build, drawn, mistakes, spelled
from scipy.stats import chisquare

from roundround.support.errors import UserError


def item_of(before: list[str]) -> int:
    """The place of the item with the last word's key."""
    return next(place for place, word in enumerate(before) if word.startswith(f"{before[-1]}v"))


def value_asked_for(before: list[str]) -> str:
    found = before[item_of(before)]
    return found[found.index("v") :]


@pytest.mark.parametrize(("n_items", "n_queries"), [(8, 8), (16, 1), (5, 2), (1, 1)])
def test_a_solver_gets_every_scored_target(n_items: int, n_queries: int) -> None:
    task = build("recall", n_items=n_items, n_queries=n_queries)
    assert mistakes(task, value_asked_for, task.shortest, 64, 300) == []


@pytest.mark.parametrize(("distance", "length"), [(1, 18), (4, 64), (8, 18), (54, 64), (200, 256)])
def test_the_first_query_stands_at_its_distance_and_is_scored_alone(distance: int, length: int) -> None:
    task = build("recall", distances=[distance])
    one = task.groups()[str(distance)]
    assert mistakes(one, value_asked_for, length) == []
    for example in drawn(one, 40, length=length):
        words, (target,) = spelled(one, example), example.scored.nonzero()[0].tolist()
        assert len(words) == length
        assert (target - 1, item_of(words[:target])) == (length - 9, length - 9 - distance)
        asked = [word for word in words if word.startswith("k") and "v" not in word]
        assert len(set(asked)) == len(asked) == 8
        assert sum("v" in word for word in words) == 8


def test_items_stand_anywhere_and_no_answer_does() -> None:
    task, places, answers = build("recall"), [], []
    for example in drawn(task, 400, length=32):
        words = spelled(task, example)
        places += [place for place, word in enumerate(words) if "v" in word]
        assert not [word for word in words if word.startswith("v")]
        answers += example.targets[example.scored].tolist()
    assert chisquare(np.bincount(places, minlength=23)[1:]).pvalue > 1e-3
    assert chisquare(np.bincount(np.array(answers) - min(answers), minlength=16)).pvalue > 1e-3


def test_lengths_have_those_distances_that_they_have_room_for() -> None:
    task = build("recall", distances=[4, 100])
    has = {name: [n in (part.test_lengths() or ()) for n in (32, 109, 110)] for name, part in task.groups().items()}
    assert has == {"4": [True, True, True], "100": [False, False, True]}
    with pytest.raises(UserError, match=r"length=32 has no room for any of data.distances=\[100\]"):
        build("recall", distances=[100]).check_length(32, "length")
    assert build("recall", distances=[]).groups() == {}
