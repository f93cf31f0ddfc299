"""N-back: which symbol stood there a few symbols ago?"""

from __future__ import annotations

import pytest
from helpers_tasks import build, drawn, mistakes, texts


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_a_solver_gets_every_scored_target(steps: int) -> None:
    task = build("n_back", steps=steps, train_lengths=[8, 8])
    assert task.shortest == steps + 1

    # looks at the symbols alone, which stand at every other place
    found = mistakes(task, lambda before: ([*"." * steps, *before[1::2]])[-1 - steps], steps + 1, steps + 2, 20, 64)
    assert found == []


def test_every_answer_is_scored_and_the_first_ones_are_none() -> None:
    for words, example in zip(texts(build("n_back"), 5, length=9), drawn(build("n_back"), 5, length=9), strict=True):
        assert example.scored.nonzero()[0].tolist() == [*range(2, 19, 2)]
        assert words[2:6:2] == [".", "."]
        assert "." not in words[6:]
