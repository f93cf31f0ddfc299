"""Copy: the same symbols again."""

from __future__ import annotations

from helpers_tasks import answered, between, build, mistakes, texts


def test_a_solver_gets_every_scored_target() -> None:
    """The symbol at the place that comes next, or the end after the last of them."""
    task = build("copy")
    found = mistakes(task, lambda before: answered(between(before, "<bos>", "<sep>"), before), 1, 2, 20, 64)
    assert found == []


def test_one_symbol_and_its_end() -> None:
    for words in texts(build("copy"), 5, length=1):
        assert words == ["<bos>", words[1], "<sep>", words[1], "<eos>"]
