"""Multi-query multi-token associative recall."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from helpers_tasks import answered, build, mistakes, texts

PAPER: dict[str, Any] = {"n_letters": 256}


def pairs_of(words: list[str], n_key: int, n_value: int) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """The words before and after each colon."""
    places = [place for place, word in enumerate(words) if word == ":"]
    return [(tuple(words[p - n_key : p]), tuple(words[p + 1 : p + 1 + n_value])) for p in places]


def solver(before: list[str], n_key: int = 2, n_value: int = 2) -> str:
    """Answers the questions in their order: a mark, then the value of the key; and the end after the last."""
    values = dict(pairs_of(before, n_key, n_value))
    questions = before[before.index("?") : before.index("<sep>")]
    answer = []
    for start in range(0, len(questions), 1 + n_key):
        answer += ["?", *values[tuple(questions[start + 1 : start + 1 + n_key])]]
    return answered(answer, before)


def test_a_solver_gets_every_scored_target() -> None:
    assert mistakes(build("mqmtar"), solver, 30, 31, 64, 256) == []
    assert mistakes(build("mqmtar", **PAPER), solver, 48, 1024, n=10) == []


@pytest.mark.parametrize(("n_key", "n_value"), [(1, 1), (1, 3), (3, 1)])
def test_keys_and_values_may_have_different_sizes(n_key: int, n_value: int) -> None:
    task = build("mqmtar", key_tokens=n_key, value_tokens=n_value)
    assert mistakes(task, partial(solver, n_key=n_key, n_value=n_value), task.shortest, 64) == []


def test_the_authors_numbers_give_eight_pairs_at_64_tokens() -> None:
    task = build("mqmtar", **PAPER)
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
