"""Flip-flop language: a memory of one bit."""

from __future__ import annotations

import numpy as np
import pytest
from helpers_tasks import build, drawn, mistakes, texts


@pytest.mark.parametrize("p", [0.1, 0.01, 0.45, 0.0, 0.5])  # FFL(0.8), sparse, dense, neither, never ignored
def test_a_solver_gets_every_scored_target(p: float) -> None:
    """The last bit that was written."""
    task = build("flip_flop", p_write=p, p_read=p)
    found = mistakes(task, lambda before: dict(zip(before[1:-1:2], before[2::2], strict=True))["w"], 4, 5, 64, 512)
    assert found == []


def test_the_first_instruction_writes_and_the_last_one_reads_and_every_read_is_scored() -> None:
    task = build("flip_flop")
    for example, words in zip(drawn(task, 20, length=64), texts(task, 20, length=64), strict=True):
        assert (words[1], words[-2]) == ("w", "r")
        reads = [2 * place + 2 for place, name in enumerate(words[1::2]) if name == "r"]
        assert example.scored.nonzero()[0].tolist() == reads


def test_instructions_are_drawn_with_their_probabilities() -> None:
    drawn_ones = [name for words in texts(build("flip_flop"), 40, length=512) for name in words[1::2][1:-1]]
    for name, p in (("w", 0.1), ("r", 0.1), ("i", 0.8)):
        n = len(drawn_ones)
        assert abs(drawn_ones.count(name) / n - p) < 4 * np.sqrt(p * (1 - p) / n)


def test_the_bit_before_a_read_says_nothing() -> None:
    same = []
    for words in texts(build("flip_flop"), 60, length=128):
        places = [place for place in range(3, len(words), 2) if words[place] == "r" and words[place - 2] == "i"]
        same += [words[place - 1] == words[place + 1] for place in places]
    assert abs(np.mean(same) - 0.5) < 2 / np.sqrt(len(same))


def test_without_reads_only_the_last_one_is_asked() -> None:
    task = build("flip_flop", p_read=0)
    assert {int(example.scored.sum()) for example in drawn(task, 10, length=64)} == {1}
