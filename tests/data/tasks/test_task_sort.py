"""Sort: the symbols by size, each as often as it is there."""

from __future__ import annotations

from functools import partial

from helpers_tasks import after, answered, between, build, mistakes, texts


def test_a_solver_gets_every_scored_target() -> None:
    """The numbers by size, and then the end."""
    task, by_size = build("sort"), partial(sorted, key=int)
    found = mistakes(task, lambda before: answered(by_size(between(before, "<bos>", "<sep>")), before), 1, 2, 20, 64)
    assert found == []


def test_symbols_repeat_and_9_comes_before_10() -> None:
    answers = [after(words, "<sep>")[:-1] for words in texts(build("sort", n_symbols=11), 20, length=30)]
    assert all(len(answer) == 30 > len(set(answer)) for answer in answers)
    assert any(answer.index("9") < answer.index("10") for answer in answers if {"9", "10"} <= set(answer))
