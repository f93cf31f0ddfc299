"""Multi-query associative recall."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from helpers_tasks import build, drawn, mistakes, texts
from scipy.stats import chisquare

from roundround.data.tasks.batches import padded
from roundround.data.tasks.mqar import MQAR


@pytest.mark.parametrize("answers_in_sequence", [False, True])
@pytest.mark.parametrize("random_filler", [False, True])
@pytest.mark.parametrize(("n_pairs", "length"), [(4, 64), (8, 128), (1, 4), (16, 64), (4, 37)])
def test_a_solver_gets_every_scored_target(
    n_pairs: int, length: int, random_filler: bool, answers_in_sequence: bool
) -> None:
    changes = {"random_filler": random_filler, "answers_in_sequence": answers_in_sequence}
    task = build("mqar", n_pairs=n_pairs, train_lengths=[length, length], **changes)

    # looks the last key up among the pairs at the beginning
    assert mistakes(task, lambda before: before[before[: 2 * n_pairs : 2].index(before[-1]) * 2 + 1], length) == []


def test_no_value_stands_behind_the_pairs_unless_it_is_asked_for() -> None:
    for words, example in zip(texts(build("mqar"), 40, length=64), drawn(build("mqar"), 40, length=64), strict=True):
        keys = words[:8:2]
        assert Counter(words[8:]) == Counter({"_": 52, **dict.fromkeys(keys, 1)})
        assert sorted(example.targets[example.scored]) == sorted(example.tokens[1:8:2])
    within = drawn(build("mqar", answers_in_sequence=True), 40, length=64)
    for example, kept in zip(within, drawn(build("mqar"), 40, length=64), strict=True):
        if example.tokens[:8].tolist() == kept.tokens[:8].tolist():  # of the same split by both hashes
            assert example.targets.tolist() == kept.targets.tolist()


def test_a_batch_gives_the_model_no_value_and_asks_for_it() -> None:
    [example] = drawn(build("mqar"), 1, length=64)
    batch = padded([example])
    asked = example.scored[1:].nonzero()[0]
    assert batch.targets[0, asked].tolist() == example.targets[asked + 1].tolist()
    assert (batch.tokens[0, 8:] >= example.tokens[1:8:2].min()).sum() == 0, "ids of values are the largest"


def test_each_key_is_asked_for_once_and_the_rest_is_filler() -> None:
    task = build("mqar", answers_in_sequence=True)
    for words, example in zip(texts(task, 40, length=64), drawn(task, 40, length=64), strict=True):
        keys, values = words[:8:2], words[1:8:2]
        assert len(words) == 64
        assert (len(set(keys)), len(set(values))) == (4, 4)
        assert all(word.startswith("k") for word in keys)
        assert all(word.startswith("v") for word in values)
        asked = (example.scored.nonzero()[0] - 1).tolist()
        assert all(place % 2 == 0 for place in asked)
        assert sorted(words[place] for place in asked) == sorted(keys)
        assert Counter(words[8:]) == Counter({"_": 48, **dict.fromkeys(keys + values, 1)})


@pytest.mark.parametrize("power_a", [0.01, 0.5, 1.0])
def test_places_are_drawn_one_by_one_with_weights_by_the_power_law(power_a: float) -> None:
    task = build("mqar", n_pairs=2, power_a=power_a, train_lengths=[12, 12])
    assert isinstance(task, MQAR)
    weights = {place: place ** (power_a - 1) for place in (1, 2, 3, 4)}
    expected = {
        (a, b): weights[a] / sum(weights.values()) * weights[b] / (sum(weights.values()) - weights[a])
        for a, b in itertools.permutations(weights, 2)
    }
    rng, n = np.random.default_rng(0), 4000
    found = Counter(tuple(int(place) + 1 for place in task.query_positions(rng, 4)) for _ in range(n))
    assert found.keys() <= expected.keys()
    assert chisquare([found[pair] for pair in expected], [n * p for p in expected.values()]).pvalue > 1e-3
