"""Repeat: one symbol, as often as it stood there."""

from __future__ import annotations

from helpers_tasks import answered, between, build, mistakes, texts


def test_a_solver_gets_every_scored_target() -> None:
    """The symbol again until it has been said as often as before, then the end."""
    task = build("repeat")
    found = mistakes(task, lambda before: answered(between(before, "<bos>", "<sep>"), before), 1, 2, 20, 64)
    assert found == []


def test_one_symbol_stands_on_both_sides() -> None:
    for words in texts(build("repeat"), 5, length=3):
        assert words == ["<bos>", *3 * [words[1]], "<sep>", *3 * [words[1]], "<eos>"]
