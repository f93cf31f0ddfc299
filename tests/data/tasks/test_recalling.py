"""Recall: values by their keys, one token or several, by distance; a number in filler, a pattern, the largest item."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from functools import partial
from operator import itemgetter

import numpy as np
import pytest
from helpers_tasks import answered, between, build, drawn, mistakes, spelled, texts
from scipy.stats import chisquare

from roundround.support.errors import UserError

FILLER = "the grass is green . the sky is blue . the sun is yellow . here we go . there and back again ."

# -- mqar


@pytest.mark.parametrize("answers_in_sequence", [False, True])
@pytest.mark.parametrize("random_filler", [False, True])
@pytest.mark.parametrize(("n_pairs", "length"), [(4, 64), (8, 128), (1, 4), (16, 64), (4, 37)])
def test_mqar_is_solved_by_the_pairs_at_the_beginning(
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
    weights = {place: place ** (power_a - 1) for place in (1, 2, 3, 4)}
    expected = {
        (a, b): weights[a] / sum(weights.values()) * weights[b] / (sum(weights.values()) - weights[a])
        for a, b in itertools.permutations(weights, 2)
    }
    rng, n, found = np.random.default_rng(0), 4000, Counter[tuple[int, ...]]()
    for _ in range(n):
        words = task.example(rng, 12).tokens.tolist()
        found[tuple(words.index(key, 4) // 2 - 1 for key in words[:4:2])] += 1
    assert found.keys() <= expected.keys()
    assert chisquare([found[pair] for pair in expected], [n * p for p in expected.values()]).pvalue > 1e-3


# -- mqmtar


def pairs_of(words: list[str], n_key: int, n_value: int) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """The words before and after each colon."""
    places = [place for place, word in enumerate(words) if word == ":"]
    return [(tuple(words[p - n_key : p]), tuple(words[p + 1 : p + 1 + n_value])) for p in places]


def of_pairs(before: list[str], n_key: int = 2, n_value: int = 2) -> str:
    """Answers the questions in their order: a mark, then the value of the key; and the end after the last."""
    values = dict(pairs_of(before, n_key, n_value))
    questions = before[before.index("?") : before.index("<sep>")]
    answer = []
    for start in range(0, len(questions), 1 + n_key):
        answer += ["?", *values[tuple(questions[start + 1 : start + 1 + n_key])]]
    return answered(answer, before)


def test_mqmtar_is_solved_by_its_pairs() -> None:
    assert mistakes(build("mqmtar"), of_pairs, 30, 31, 64, 256) == []
    assert mistakes(build("mqmtar", n_letters=256), of_pairs, 48, 1024, n=10) == []


@pytest.mark.parametrize(("n_key", "n_value"), [(1, 1), (1, 3), (3, 1)])
def test_keys_and_values_may_have_different_sizes(n_key: int, n_value: int) -> None:
    task = build("mqmtar", key_tokens=n_key, value_tokens=n_value)
    assert mistakes(task, partial(of_pairs, n_key=n_key, n_value=n_value), task.shortest, 64) == []


def test_the_authors_numbers_give_eight_pairs_at_64_tokens() -> None:
    task = build("mqmtar", n_letters=256)
    assert task.shortest == 30
    # bos, the text, four queries of three tokens, sep, four answers of three, eos
    assert [task.context(length) for length in (32, 64, 4096)] == [length + 27 for length in (32, 64, 4096)]
    for length, n_pairs in ((32, 4), (64, 8), (4096, 546)):
        for words in texts(task, 3, length=length):
            pairs = pairs_of(words, 2, 2)
            assert len(pairs) == n_pairs
            assert len({key for key, _ in pairs}) == len({value for _, value in pairs}) == n_pairs


def test_each_pair_has_its_part_of_the_length_and_a_space_behind_it() -> None:
    places = set()
    for words in texts(build("mqmtar"), 60, length=64):
        text = words[1:65]
        assert words[65] == "?"
        for part in (text[start : start + 8] for start in range(0, 64, 8)):
            place = part.index(":") - 2
            places.add(place)
            letters = [word.startswith("a") for word in part]
            assert letters == [place <= i < place + 5 and i != place + 2 for i in range(8)]
            assert part[place + 5] == "_"
    assert places == {0, 1, 2}


# -- recall


def item_of(before: list[str]) -> int:
    """The place of the item with the last word's key."""
    return next(place for place, word in enumerate(before) if word.startswith(f"{before[-1]}v"))


def value_asked_for(before: list[str]) -> str:
    found = before[item_of(before)]
    return found[found.index("v") :]


@pytest.mark.parametrize(("n_items", "n_queries"), [(8, 8), (16, 1), (5, 2), (1, 1)])
def test_recall_is_solved_by_its_items(n_items: int, n_queries: int) -> None:
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
    with pytest.raises(UserError, match=r"length=32 is too short for any of data.distances=\[100\]"):
        build("recall", distances=[100]).check_length(32, "length")
    assert build("recall", distances=[]).groups() == {}


# -- passkey, induction, max


def of_the_sentence(before: list[str]) -> str:
    """Finds the sentence that gives the number, and goes on with it where the question stops."""
    text = " ".join(before)
    key = re.search(r"the pass key is ((?:\d )+)\. remember it", text)[1].split()
    said = re.search(r"\? the pass key is((?: \d)*)$", text)[1].split()
    return key[len(said)]


def test_passkey_is_solved_by_its_sentence() -> None:
    assert mistakes(build("passkey"), of_the_sentence, 39, 40, 64, 1024) == []
    assert mistakes(build("passkey", n_digits=1), of_the_sentence, 27, 64) == []


def test_filler_stands_before_and_after_and_begins_anew_after_the_number() -> None:
    filler = FILLER.split() * 3
    places = set()
    for words in texts(build("passkey"), 300, length=39 + 12):
        text = " ".join(words)
        before, number, behind = re.fullmatch(
            r"<bos> (.*?)(the pass key is .* is the pass key \. )(.*)what is the pass key \? the pass key is .*", text
        ).groups()
        assert len(number.split()) == 23
        assert before.split() == filler[: len(before.split())]
        assert behind.split() == filler[: len(behind.split())]
        places.add(len(before.split()))
    assert places == {*range(13)}


def test_induction_is_solved_by_what_followed_the_trigger() -> None:
    assert mistakes(build("induction"), lambda before: before[before.index("=>") + 1], 3, 4, 64, 256) == []


def test_the_trigger_stands_at_any_place_but_the_last_two_and_at_the_end() -> None:
    places = []
    for words in texts(build("induction"), 600, length=8):
        assert words[9] == "=>"
        assert words.count("=>") == 2
        places.append(words.index("=>") - 1)
    assert chisquare(np.bincount(places, minlength=6)).pvalue > 1e-3


def items(words: list[str]) -> list[tuple[int, str]]:
    """Priorities and classes."""
    prompt = between(words, "<bos>", "<sep>")
    return [(int(priority[1:]), name) for priority, name in zip(prompt[::2], prompt[1::2], strict=True)]


def test_max_is_solved_by_the_largest_priority() -> None:
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
