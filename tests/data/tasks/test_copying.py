"""Copies: the same symbols again, in this order, backwards, by size; and one symbol as often."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from helpers_tasks import after, answered, between, build, mistakes, texts

ANSWERS: dict[str, Callable[[list[str]], list[str]]] = {
    "copy": list,
    "repeat": list,
    "reverse": lambda symbols: symbols[::-1],
    "sort": lambda symbols: sorted(symbols, key=int),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_a_solver_gets_every_scored_target(name: str) -> None:
    """The symbol at the place that comes next, or the end after the last of them."""
    rearranged = ANSWERS[name]
    found = mistakes(build(name), lambda b: answered(rearranged(between(b, "<bos>", "<sep>")), b), 1, 2, 20, 64)
    assert found == []


def test_one_symbol_stands_on_both_sides() -> None:
    for words in texts(build("repeat"), 5, length=3):
        assert words == ["<bos>", *3 * [words[1]], "<sep>", *3 * [words[1]], "<eos>"]


def test_symbols_repeat_and_9_comes_before_10() -> None:
    answers = [after(words, "<sep>")[:-1] for words in texts(build("sort", n_symbols=11), 20, length=30)]
    assert all(len(answer) == 30 > len(set(answer)) for answer in answers)
    assert any(answer.index("9") < answer.index("10") for answer in answers if {"9", "10"} <= set(answer))
