"""Reverse: the symbols from the last to the first."""

from __future__ import annotations

from helpers_tasks import answered, between, build, mistakes, texts


def test_a_solver_gets_every_scored_target() -> None:
    """The last symbol that has not been said yet, or the end."""
    task = build("reverse")
    found = mistakes(task, lambda before: answered(between(before, "<bos>", "<sep>")[::-1], before), 1, 2, 20, 64)
    assert found == []


def test_one_symbol_is_its_own_reverse() -> None:
    for words in texts(build("reverse"), 5, length=1):
        assert words == ["<bos>", words[1], "<sep>", words[1], "<eos>"]
