"""Addition of whole numbers."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from helpers_tasks import after, between, build, mistakes, texts
from scipy.stats import chisquare

from roundround.data.tasks.addition import added

ORDERS = [*itertools.product([False, True], repeat=2)]


@pytest.mark.parametrize(("reverse_answer", "reverse_operands"), ORDERS)
def test_a_solver_gets_every_scored_target(reverse_answer: bool, reverse_operands: bool) -> None:
    task = build("addition", reverse_answer=reverse_answer, reverse_operands=reverse_operands)

    def solver(before: list[str]) -> str:
        """Adds Python's whole numbers, and says the digits that come next, or the end."""
        a, b = "".join(between(before, "<bos>", "<sep>")).split("+")
        total = str(int(a[::-1]) + int(b[::-1]) if reverse_operands else int(a) + int(b))
        return [*(reversed(total) if reverse_answer else total), "<eos>"][len(after(before, "<sep>"))]

    assert mistakes(task, solver, 1, 2, 8, 40) == []


@pytest.mark.parametrize("pair", [(999, 1), (5, 5), (95, 5), (990, 10), (0, 0), (1000, 9), (10**40 - 1, 1), (949, 51)])
def test_carries_go_as_far_as_they_must(pair: tuple[int, int]) -> None:
    longer, shorter = ([int(digit) for digit in reversed(str(number))] for number in pair)
    found = added(np.array(longer), np.array(shorter))
    assert "".join(map(str, found[::-1])) == str(sum(pair))


def test_the_longer_number_has_the_length_and_the_shorter_any_and_either_is_first() -> None:
    sizes = Counter()
    for words in texts(build("addition"), 800, length=5):
        a, b = "".join(between(words, "<bos>", "<sep>")).split("+")
        assert str(int(a)) == a, "no zeros in front"
        assert str(int(b)) == b
        assert max(len(a), len(b)) == 5
        sizes[len(a) - len(b)] += 1
    shorter = [sizes[0] if size == 5 else sizes[5 - size] + sizes[size - 5] for size in range(1, 6)]
    assert chisquare(shorter).pvalue > 1e-3
    assert chisquare([sizes[4] + sizes[3], sizes[-4] + sizes[-3]]).pvalue > 1e-3


def test_single_digits_may_be_zero() -> None:
    found = [between(words, "<bos>", "<sep>") for words in texts(build("addition"), 200, length=1, split="train")]
    assert {a for a, _, _ in found} == {b for _, _, b in found} == set("0123456789")
