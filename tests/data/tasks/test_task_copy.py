"""Copy: the same symbols again."""

from __future__ import annotations

import pytest
from helpers_tasks import answered, between, build, mistakes, texts

from roundround.support.errors import UserError


def test_a_solver_gets_every_scored_target() -> None:
    """The symbol at the place that comes next, or the end after the last of them."""
    task = build("copy")
    found = mistakes(task, lambda before: answered(between(before, "<bos>", "<sep>"), before), 1, 2, 20, 64)
    assert found == []


def test_one_symbol_and_its_end() -> None:
    for words in texts(build("copy"), 5, length=1):
        assert words == ["<bos>", words[1], "<sep>", words[1], "<eos>"]


@pytest.mark.parametrize("n_symbols", [1, 2**20 + 1])
def test_too_few_and_too_many_symbols_are_refused(n_symbols: int) -> None:
    with pytest.raises(UserError, match=f"data: n_symbols is {n_symbols}: 2 to 1,048,576 is allowed"):
        build("copy", n_symbols=n_symbols)
